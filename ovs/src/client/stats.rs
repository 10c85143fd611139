use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::queue::Group;

/// What a client has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Transactions that were sent, those sent again not counted twice.
    pub transactions: u64,
    /// Requests that carried them.
    pub requests: u64,
    /// How many requests carried 1, 2 to 4, 5 to 16, and more than 16 transactions.
    pub request_sizes: [u64; 4],
    /// The most transactions that one request carried.
    pub largest_request: u64,
    /// Transactions sent again because another one in their request failed.
    pub retries: u64,
    /// Transactions that ended in an error of the server.
    pub failures: u64,
    /// Connections made.
    pub connects: u64,
    /// Snapshots taken.
    pub resyncs: u64,
    /// Update notifications applied.
    pub updates: u64,
}

#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) transactions: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) request_sizes: [AtomicU64; 4],
    pub(super) largest_request: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) resyncs: AtomicU64,
    pub(super) updates: AtomicU64,
}

impl Stats {
    /// A request went out, or rather into the session's buffer.
    pub(super) fn sent(&self, group: &Group) {
        let members = group.members.len();
        let again = group.members.iter().filter(|member| member.again).count();
        self.transactions
            .fetch_add((members - again) as u64, Relaxed);
        self.retries.fetch_add(again as u64, Relaxed);
        let bucket = match members {
            ..=1 => 0,
            2..=4 => 1,
            5..=16 => 2,
            _ => 3,
        };
        self.requests.fetch_add(1, Relaxed);
        self.request_sizes[bucket].fetch_add(1, Relaxed);
        self.largest_request.fetch_max(members as u64, Relaxed);
    }

    pub(super) fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            transactions: self.transactions.load(Relaxed),
            requests: self.requests.load(Relaxed),
            request_sizes: self
                .request_sizes
                .each_ref()
                .map(|count| count.load(Relaxed)),
            largest_request: self.largest_request.load(Relaxed),
            retries: self.retries.load(Relaxed),
            failures: self.failures.load(Relaxed),
            connects: self.connects.load(Relaxed),
            resyncs: self.resyncs.load(Relaxed),
            updates: self.updates.load(Relaxed),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
