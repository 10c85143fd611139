//! The controller's progress.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long changes of objects took from the event of their watch until the transaction with all
/// that they cause was committed, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency(pub BTreeMap<&'static str, Spread>);

/// Durations, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Of each bound, those that are not above it, but above the one before; then the rest.
    pub counts: [u64; BOUNDS.len() + 1],
    /// All of them, in microseconds.
    pub sum: u64,
}

/// In milliseconds.
pub(crate) const BOUNDS: [u64; 15] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

impl Latency {
    /// These changes, of a kind each and since then, are committed now.
    pub(crate) fn observe(&mut self, changes: Vec<(&'static str, Instant)>) {
        let now = Instant::now();
        for (kind, since) in changes {
            let took = u64::try_from((now - since).as_micros()).unwrap_or(u64::MAX);
            let spread = self.0.entry(kind).or_default();
            let place = BOUNDS.iter().position(|bound| took <= bound * 1000);
            spread.counts[place.unwrap_or(BOUNDS.len())] += 1;
            spread.sum = spread.sum.saturating_add(took);
        }
    }
}

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
    /// How long changes took until they were committed.
    pub latency: Latency,
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
