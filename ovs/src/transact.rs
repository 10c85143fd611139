//! Transactions as data: the operations, the expectations, and the outcome (RFC 7047 §4.1.3, §5.2).
//!
//! A [`Transaction`] is a list of operations. The client sends it alone or together with others'
//! (see [`crate::client`]), which makes no difference to a caller except in time: row names are
//! made unique when the transaction is encoded, and `batch` separates the outcomes.

pub(crate) mod batch;
mod encode;
mod outcome;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::value::{RowName, Uuid, Value};

pub(crate) use encode::{Encoded, Shape};
pub use outcome::{Outcome, SelectedRow, TransactError};

/// Operations that are committed together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    operations: Vec<Operation>,
    names: u32,
}

/// One operation and its expectation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// Empty for a comment and for what the whole transaction is.
    pub(crate) table: Name,
    /// Its `where`; an insert, a comment and a commit have none.
    pub(crate) conditions: Vec<Condition>,
    /// The number of rows that it has to affect.
    pub(crate) count: Option<u64>,
}

/// A table's or a column's name.
pub type Name = Cow<'static, str>;

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Insert {
        name: RowName,
        columns: Columns,
    },
    Select(Vec<Name>),
    Update(Columns),
    Mutate(Vec<Mutation>),
    Delete,
    /// Whether such a row has to be there, or has not to.
    Guard(bool),
    Comment(String),
    Durable,
}

/// Columns of a row with their values, for `insert` and `update`.
#[derive(Clone, Debug, Default)]
pub struct Columns(pub(crate) Vec<(Name, Value)>);

/// One `<condition>`: a column compared with a value. All conditions of an operation must hold;
/// without one, it applies to every row.
#[derive(Clone, Debug)]
pub struct Condition(pub(crate) Triple);

/// One `<mutation>`: a change to a column without knowledge of its value.
#[derive(Clone, Debug)]
pub struct Mutation(pub(crate) Triple);

/// Both are a column, a word of RFC 7047 §5.1 (`<function>`, `<mutator>`) and a value.
#[derive(Clone, Debug)]
pub(crate) struct Triple {
    pub(crate) column: Name,
    pub(crate) word: &'static str,
    pub(crate) value: Value,
}

impl Triple {
    fn new(column: impl Into<Name>, word: &'static str, value: impl Into<Value>) -> Self {
        Self {
            column: column.into(),
            word,
            value: value.into(),
        }
    }
}

/// The operation just added, for further settings.
#[derive(Debug)]
pub struct Added<'a>(&'a mut Operation, usize);

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts a row. Its name stands for its uuid in this transaction, and finds the uuid in the
    /// [`Outcome`].
    ///
    /// A row of a table that is not a root table is removed at commit unless something refers to
    /// it.
    pub fn insert(&mut self, table: impl Into<Name>, columns: Columns) -> RowName {
        let name = RowName(self.names);
        self.names += 1;
        self.push(Kind::Insert { name, columns }, table, []);
        name
    }

    /// Selects rows; no columns means all.
    pub fn select(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        columns: &[&'static str],
    ) -> Added<'_> {
        let columns = columns.iter().map(|&column| column.into()).collect();
        self.push(Kind::Select(columns), table, conditions)
    }

    /// Sets columns of rows. A map or a set is replaced as a whole; to keep what others wrote
    /// there, use [`Self::mutate`].
    pub fn update(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        columns: Columns,
    ) -> Added<'_> {
        self.push(Kind::Update(columns), table, conditions)
    }

    /// Changes columns of rows in place.
    ///
    /// A mutation that matches no row "succeeds" (RFC 7047 §5.2.4), and rows inserted for it
    /// vanish; see [`Added::expect_count`].
    pub fn mutate(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        mutations: impl Into<Vec<Mutation>>,
    ) -> Added<'_> {
        self.push(Kind::Mutate(mutations.into()), table, conditions)
    }

    /// Deletes rows.
    pub fn delete(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
    ) -> Added<'_> {
        self.push(Kind::Delete, table, conditions)
    }

    /// Aborts the transaction with a [`TransactError::Guard`] unless a row meets the conditions: a
    /// `wait` (RFC 7047 §5.2.6) that does not wait, because podwire waits on the replica.
    ///
    /// Use it if [`Added::expect_count`] would come too late: a count is known only after the
    /// commit, a guard prevents it. For guards on everything that a client writes, see
    /// [`Client::set_fence`].
    ///
    /// [`Client::set_fence`]: crate::client::Client::set_fence
    pub fn guard(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
    ) -> Added<'_> {
        self.push(Kind::Guard(true), table, conditions)
    }

    /// The same, unless no row meets them: two who make a row of one name, in a table that does not
    /// want its names to differ, are not to make two.
    pub fn guard_none(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
    ) -> Added<'_> {
        self.push(Kind::Guard(false), table, conditions)
    }

    /// Leaves a comment in the database's log.
    pub fn comment(&mut self, text: impl Into<String>) -> Added<'_> {
        self.push(Kind::Comment(text.into()), "", [])
    }

    /// Has the database answer only when the transaction is on its disk (RFC 7047 §5.2.7): without
    /// it, a loss of power may undo what was answered.
    pub fn durable(&mut self) -> Added<'_> {
        self.push(Kind::Durable, "", [])
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    fn push(
        &mut self,
        kind: Kind,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
    ) -> Added<'_> {
        let index = self.operations.len();
        self.operations.push(Operation {
            kind,
            table: table.into(),
            conditions: conditions.into(),
            count: None,
        });
        Added(&mut self.operations[index], index)
    }
}

impl Added<'_> {
    /// Requires the operation to affect exactly `count` rows; for `select`, to find as many.
    ///
    /// The database reports the count but does not enforce it. If it differs, the caller gets
    /// [`TransactError::Count`] *after* the commit, which can't be undone; if that matters, use
    /// [`Transaction::guard`].
    pub fn expect_count(self, count: u64) -> Self {
        self.0.count = Some(count);
        self
    }

    /// The position of the operation, as in [`Outcome`] and [`TransactError`].
    pub fn index(&self) -> usize {
        self.1
    }
}

impl Columns {
    /// No columns yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds this column.
    #[must_use]
    pub fn set(mut self, column: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.0.push((column.into(), value.into()));
        self
    }

    /// Adds this column if there is a value for it.
    #[must_use]
    pub fn set_some(self, column: impl Into<Name>, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.set(column, value),
            None => self,
        }
    }
}

impl Condition {
    /// The row with this uuid.
    pub fn uuid(row: Uuid) -> Self {
        Self(Triple::new("_uuid", "==", row))
    }

    /// Rows whose column equals this value.
    pub fn equal(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self(Triple::new(column, "==", value))
    }

    /// Rows whose column contains at least these elements or entries.
    pub fn includes(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self(Triple::new(column, "includes", value))
    }
}

impl From<Condition> for Vec<Condition> {
    fn from(condition: Condition) -> Self {
        vec![condition]
    }
}

impl Mutation {
    /// Inserts elements into a set, or entries with new keys into a map.
    pub fn insert(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self(Triple::new(column, "insert", value))
    }

    /// Adds to a number.
    pub fn add(column: impl Into<Name>, number: i64) -> Self {
        Self(Triple::new(column, "+=", number))
    }

    /// Deletes elements of a set; or entries of a map, by key when `value` is a set and by key and
    /// value when it is a map.
    pub fn delete(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self(Triple::new(column, "delete", value))
    }
}

impl From<Mutation> for Vec<Mutation> {
    fn from(mutation: Mutation) -> Self {
        vec![mutation]
    }
}
