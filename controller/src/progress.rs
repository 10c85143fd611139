//! How far the controller is.

use std::sync::Arc;

use tokio::sync::watch;

/// What the controller has done, for tests and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It leads, and has compared everything at least once.
    pub is_ready: bool,
    /// Nothing is dirty, nothing is on its way.
    pub is_idle: bool,
    /// Passes that had something to compare.
    pub passes: u64,
    /// Keys compared.
    pub keys: u64,
    /// Operations that were committed in the database.
    pub operations: u64,
    /// Writes to the API server.
    pub writes: u64,
    /// Writes to the API server that failed.
    pub write_failures: u64,
    /// Changes of objects taken.
    pub changes: u64,
    /// This controller leads.
    pub leads: bool,
    /// Nodes that are known.
    pub nodes: u64,
    /// Pods on the pod network.
    pub pods: u64,
    /// Services with cluster IPs.
    pub services: u64,
    /// Objects that can't have what they should.
    pub problems: u64,
    /// Objects that are tried again in a moment.
    pub retries: u64,
}

/// Where [`Progress`] is told.
#[derive(Clone, Debug, Default)]
pub struct Reporter(pub(crate) Arc<watch::Sender<Progress>>);

impl Reporter {
    /// The present progress, and a wake-up for each later one.
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.0.subscribe()
    }
}
