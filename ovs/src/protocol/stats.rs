/// A client's counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Transactions sent, counted once even if sent again.
    pub transactions: u64,
    /// Requests with transactions.
    pub requests: u64,
    /// Number of requests with 1, 2 to 4, 5 to 16, and more than 16 transactions.
    pub request_sizes: [u64; 4],
    /// The maximum number of transactions in one request.
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

impl Stats {
    /// Counts a request with this many transactions, of which `again` were sent before.
    pub(super) fn requested(&mut self, transactions: usize, again: usize) {
        self.transactions += (transactions - again) as u64;
        self.retries += again as u64;
        self.requests += 1;
        self.largest_request = self.largest_request.max(transactions as u64);
        let size = match transactions {
            ..=1 => 0,
            2..=4 => 1,
            5..=16 => 2,
            _ => 3,
        };
        self.request_sizes[size] += 1;
    }
}
