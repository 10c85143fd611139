//! Why rows can't be brought in line.

use podwire_ovs::nb::Table;

/// Why a key's rows can't be brought in line. Nothing is changed for that key then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// A row that somebody else created has the name.
    #[error(
        "{table} {name} in the northbound database does not belong to this controller: remove it, \
         or start the controller with --adopt to take it over"
    )]
    Foreign {
        /// The row's table.
        table: &'static str,
        /// The row's name.
        name: String,
    },
    /// The row of another key of this controller has the name: two names have one hash.
    #[error(
        "{table} {name} in the northbound database is that of {key}, whose name has the same hash: \
         one of them needs another name"
    )]
    Taken {
        /// The row's table.
        table: &'static str,
        /// The row's name.
        name: String,
        /// The key that has it.
        key: String,
    },
    /// A row that this one belongs to does not exist yet.
    #[error("{table} {name} is not in the northbound database yet")]
    Missing {
        /// The missing row's table.
        table: &'static str,
        /// Its name.
        name: String,
    },
}

pub(super) fn taken(table: Table, name: &str, key: Option<&str>) -> DiffError {
    DiffError::Taken {
        table: table.name(),
        name: name.to_owned(),
        key: key.unwrap_or_default().to_owned(),
    }
}
