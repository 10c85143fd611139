use std::collections::BTreeMap;
use std::time::Duration;

use crate::value::{EncodeError, RowName, Uuid, Value};

/// The result of a committed transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub(crate) inserted: Vec<Uuid>,
    pub(crate) results: Vec<OperationOutcome>,
}

/// The result of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperationOutcome {
    Count(u64),
    Rows(Vec<SelectedRow>),
    Nothing,
}

/// A row found by a `select`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub struct SelectedRow(BTreeMap<String, Value>);

impl Outcome {
    /// The uuid of an inserted row; `None` if the name is another transaction's.
    pub fn uuid(&self, name: RowName) -> Option<Uuid> {
        self.inserted.get(name.0 as usize).copied()
    }

    /// Number of rows that the `update`, `mutate` or `delete` at this position matched.
    pub fn count(&self, index: usize) -> Option<u64> {
        match self.results.get(index)? {
            OperationOutcome::Count(count) => Some(*count),
            _ => None,
        }
    }

    /// The rows that the `select` at this position found.
    pub fn rows(&self, index: usize) -> &[SelectedRow] {
        match self.results.get(index) {
            Some(OperationOutcome::Rows(rows)) => rows,
            _ => &[],
        }
    }
}

impl SelectedRow {
    /// A column's value.
    pub fn column(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The columns in the order of their names.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// Why a transaction has no [`Outcome`]. Unless a variant says otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactError {
    /// The database refused an operation.
    #[error("OVSDB operation {index} ({operation} {table}): {error}{}", parenthesised(.details))]
    Operation {
        /// Its position in the transaction.
        index: usize,
        /// `insert`, `mutate`, …
        operation: &'static str,
        /// Its table; empty when it has none.
        table: String,
        /// The short word of RFC 7047 §3.1 `<error>`, such as `constraint violation`.
        error: String,
        /// The server's details.
        details: Option<String>,
    },
    /// No row meets the conditions of a guard; or one does, of [`Transaction::guard_none`].
    ///
    /// [`Transaction::guard_none`]: super::Transaction::guard_none
    #[error("OVSDB guard {index} does not hold: whether {table} has such a row")]
    Guard {
        /// Its position in the transaction.
        index: usize,
        /// Its table.
        table: String,
    },
    /// The client's fence does not hold: another client has replaced it. See [`Client::set_fence`].
    ///
    /// [`Client::set_fence`]: crate::client::Client::set_fence
    #[error("another client has taken this one's place in the database: {error}")]
    Fenced {
        /// The guard that does not hold.
        error: String,
    },
    /// All operations succeeded, but the result could not be committed: a duplicate name, a
    /// reference to a missing row.
    #[error("OVSDB commit: {error}{}", parenthesised(.details))]
    Commit {
        /// Such as `constraint violation` or `referential integrity violation`.
        error: String,
        /// The server's details.
        details: Option<String>,
    },
    /// The server refused the whole request, for example because it does not have this database.
    #[error("OVSDB refused the request: {error}")]
    Refused {
        /// The JSON-RPC error as received.
        error: String,
    },
    /// An operation affected a different number of rows than expected. **The transaction is
    /// committed.**
    #[error(
        "OVSDB operation {index} ({operation} {table}) touched {actual} rows instead of {expected}"
    )]
    Count {
        /// Its position in the transaction.
        index: usize,
        /// `update`, `mutate`, `delete` or `select`.
        operation: &'static str,
        /// Its table.
        table: String,
        /// The number required with `expect_count`.
        expected: u64,
        /// The actual number.
        actual: u64,
    },
    /// An operation can't be encoded.
    #[error("OVSDB operation {index} can't be encoded: {source}")]
    Invalid {
        /// Its position in the transaction.
        index: usize,
        /// What is wrong with it.
        source: EncodeError,
    },
    /// The transaction exceeds the size limit.
    #[error("an OVSDB transaction of {bytes} bytes, {limit} at most")]
    TooLarge {
        /// Its size as JSON.
        bytes: usize,
        /// [`ClientConfig::transaction_bytes`](crate::client::ClientConfig).
        limit: usize,
    },
    /// Too many transactions are waiting.
    #[error("{queued} OVSDB transactions wait already")]
    Overloaded {
        /// Their number.
        queued: usize,
    },
    /// The deadline passed. If `sent`, **the transaction may yet be committed**; otherwise it never
    /// will be.
    #[error("{}: {seen}", unanswered(*.waited))]
    Timeout {
        /// Whether it had been sent.
        sent: bool,
        /// How long the caller waited.
        waited: Duration,
        /// What the caller was waiting for, with the state of the connection.
        seen: String,
    },
    /// The connection was lost, or the client ended. If `sent`, **the transaction may have been
    /// committed**; otherwise it never will be.
    #[error(
        "the OVSDB connection was lost {} the transaction was sent: {reason}",
        if *.sent { "after" } else { "before" }
    )]
    Disconnected {
        /// Whether it had been sent.
        sent: bool,
        /// Why the connection ended.
        reason: String,
    },
}

/// A caller may have used up its time before.
fn unanswered(waited: Duration) -> String {
    match waited.as_millis() {
        0 => "no time was left to ask OVSDB".to_owned(),
        waited => format!("no answer of OVSDB after {waited} ms"),
    }
}

impl TransactError {
    /// Whether a row that the transaction refers to is gone, or one that it deletes is still
    /// referred to: its author's view of the database was out of date. Nothing was changed.
    pub fn is_dangling_reference(&self) -> bool {
        // ovsdb-server's wording (`ovsdb_error` in ovsdb/transaction.c).
        matches!(self, Self::Commit { error, .. } if error == "referential integrity violation")
    }
}

fn parenthesised(details: &Option<String>) -> String {
    details
        .as_ref()
        .map(|details| format!(" ({details})"))
        .unwrap_or_default()
}
