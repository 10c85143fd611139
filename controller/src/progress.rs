//! The controller's progress.

use std::sync::Arc;

use tokio::sync::watch;

/// The controller's counters, for tests and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It leads, and has compared everything at least once.
    pub is_ready: bool,
    /// Nothing is dirty or in flight.
    pub is_idle: bool,
    /// Passes with something to compare.
    pub passes: u64,
    /// Keys compared.
    pub keys: u64,
    /// Operations that were committed in the database.
    pub operations: u64,
    /// Writes to the API server.
    pub writes: u64,
    /// Writes to the API server that failed.
    pub write_failures: u64,
    /// Changes of objects received.
    pub changes: u64,
    /// This controller leads.
    pub leads: bool,
    /// Known nodes.
    pub nodes: u64,
    /// Pods on the pod network.
    pub pods: u64,
    /// Services with cluster IPs.
    pub services: u64,
    /// Objects whose rows can't be brought in line.
    pub problems: u64,
    /// Objects that can't be read.
    pub unreadable: u64,
    /// Objects that will be retried shortly.
    pub retries: u64,
}

/// Publishes [`Progress`].
#[derive(Clone, Debug, Default)]
pub struct Reporter(pub(crate) Arc<watch::Sender<Progress>>);

impl Reporter {
    /// The present progress, and a notification of each later one.
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.0.subscribe()
    }
}
