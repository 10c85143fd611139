/// What a client has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
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

impl Stats {
    /// A request with this many transactions was made, of which so many were sent before.
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
