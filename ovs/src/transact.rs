//! Transactions as data: what to do, what to expect of it, and what came of it (RFC 7047 §4.1.3, §5.2).
//!
//! A [`Transaction`] is a list of operations. The client sends it alone or together with others' (see [`crate::client`]), which a caller
//! only notices by the clock: row names are made unique when the transaction is encoded, and outcomes are told apart by `batch`.

pub(crate) mod batch;
mod encode;
mod outcome;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::value::{RowName, Uuid, Value};

pub(crate) use encode::Encoded;
pub use outcome::{Outcome, SelectedRow, TransactError};

/// Operations that are committed together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    operations: Vec<Operation>,
    names: u32,
}

/// One operation and what is expected of it.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// How many rows it has to touch.
    pub(crate) count: Option<u64>,
}

/// A table's or a column's name.
pub type Name = Cow<'static, str>;

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Insert {
        table: Name,
        name: RowName,
        columns: Columns,
    },
    Select {
        table: Name,
        conditions: Vec<Condition>,
        columns: Vec<Name>,
    },
    Update {
        table: Name,
        conditions: Vec<Condition>,
        columns: Columns,
    },
    Mutate {
        table: Name,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
    },
    Delete {
        table: Name,
        conditions: Vec<Condition>,
    },
    Wait {
        table: Name,
        conditions: Vec<Condition>,
        until: Until,
        columns: Vec<Name>,
        rows: Vec<Columns>,
    },
    Comment(String),
    Assert(String),
}

/// Columns of a row with their values, for `insert`, `update` and `wait`.
#[derive(Clone, Debug, Default)]
pub struct Columns(pub(crate) Vec<(Name, Value)>);

/// One `<condition>`: a column compared with a value. The conditions of an operation must all hold; no condition means every row.
#[derive(Clone, Debug)]
pub struct Condition {
    pub(crate) column: Name,
    pub(crate) function: Function,
    pub(crate) value: Value,
}

/// How a [`Condition`] compares (RFC 7047 §5.1 `<function>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `>=`
    GreaterOrEqual,
    /// `>`
    Greater,
    /// `includes`
    Includes,
    /// `excludes`
    Excludes,
}

/// One `<mutation>`: a change to a column that needs no knowledge of its value.
#[derive(Clone, Debug)]
pub struct Mutation {
    pub(crate) column: Name,
    pub(crate) mutator: Mutator,
    pub(crate) value: Value,
}

/// What a [`Mutation`] does (RFC 7047 §5.1 `<mutator>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutator {
    /// `+=`
    Add,
    /// `-=`
    Subtract,
    /// `*=`
    Multiply,
    /// `/=`
    Divide,
    /// `%=`
    Modulo,
    /// `insert`: elements into a set, or entries into a map, which leaves the entries of existing keys as they are.
    Insert,
    /// `delete`: elements of a set, or entries of a map by key or by key and value.
    Delete,
}

/// What a `wait` operation demands of the selected rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// They are the given rows.
    Equal,
    /// They are not the given rows.
    NotEqual,
}

/// The operation just added, to say more about it.
#[derive(Debug)]
pub struct Added<'a>(&'a mut Operation, usize);

impl Transaction {
    /// A transaction that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts a row. Its name stands for its uuid in this transaction, and finds the uuid in the [`Outcome`].
    ///
    /// A row of a table that is not a root table is gone again at commit unless something refers to it.
    pub fn insert(&mut self, table: impl Into<Name>, columns: Columns) -> RowName {
        let name = RowName(self.names);
        self.names += 1;
        self.push(Kind::Insert {
            table: table.into(),
            name,
            columns,
        });
        name
    }

    /// Selects rows; no column named means all.
    pub fn select(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        columns: &[&'static str],
    ) -> Added<'_> {
        let columns = columns.iter().map(|&column| column.into()).collect();
        self.push(Kind::Select {
            table: table.into(),
            conditions: conditions.into(),
            columns,
        })
    }

    /// Sets columns of rows. A map or a set is replaced whole; to keep what others wrote there, [`Self::mutate`] it.
    pub fn update(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        columns: Columns,
    ) -> Added<'_> {
        self.push(Kind::Update {
            table: table.into(),
            conditions: conditions.into(),
            columns,
        })
    }

    /// Changes columns of rows in place.
    ///
    /// A mutation that matches no row "succeeds" (RFC 7047 §5.2.4), and rows inserted for it vanish; see [`Added::expect_count`].
    pub fn mutate(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        mutations: impl Into<Vec<Mutation>>,
    ) -> Added<'_> {
        self.push(Kind::Mutate {
            table: table.into(),
            conditions: conditions.into(),
            mutations: mutations.into(),
        })
    }

    /// Deletes rows.
    pub fn delete(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
    ) -> Added<'_> {
        self.push(Kind::Delete {
            table: table.into(),
            conditions: conditions.into(),
        })
    }

    /// Aborts the transaction unless the selected rows, reduced to the columns that `rows` name, are (or are not) `rows`.
    ///
    /// It is sent with a timeout of 0 and alone: a server-side wait that lasts would hold up every other caller, and the replica is
    /// where podwire waits. A guard that does not hold is a [`TransactError::Guard`].
    pub fn wait(
        &mut self,
        table: impl Into<Name>,
        conditions: impl Into<Vec<Condition>>,
        until: Until,
        columns: &[&'static str],
        rows: impl Into<Vec<Columns>>,
    ) -> Added<'_> {
        let columns = columns.iter().map(|&column| column.into()).collect();
        self.push(Kind::Wait {
            table: table.into(),
            conditions: conditions.into(),
            until,
            columns,
            rows: rows.into(),
        })
    }

    /// Aborts the transaction unless the row exists.
    ///
    /// This is the guard to use where [`Added::expect_count`] would come too late: a count is known only after the commit, a guard
    /// prevents it. The price is that the transaction shares no round trip with others.
    pub fn guard_exists(&mut self, table: impl Into<Name>, row: Uuid) -> Added<'_> {
        let columns = Columns::new().set("_uuid", row);
        self.wait(
            table,
            [Condition::uuid(row)],
            Until::Equal,
            &["_uuid"],
            [columns],
        )
    }

    /// Leaves a comment in the database's log.
    pub fn comment(&mut self, text: impl Into<String>) -> Added<'_> {
        self.push(Kind::Comment(text.into()))
    }

    /// Aborts the transaction unless this client holds the lock, whose name is an `<id>`: letters, digits, `_` (RFC 7047 §5.2.10).
    pub fn assert(&mut self, lock: impl Into<String>) -> Added<'_> {
        self.push(Kind::Assert(lock.into()))
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Whether it has a `wait` or an `assert`, and therefore goes alone.
    pub fn is_guarded(&self) -> bool {
        self.operations
            .iter()
            .any(|operation| matches!(operation.kind, Kind::Wait { .. } | Kind::Assert(_)))
    }

    fn push(&mut self, kind: Kind) -> Added<'_> {
        let index = self.operations.len();
        self.operations.push(Operation { kind, count: None });
        Added(&mut self.operations[index], index)
    }
}

impl Added<'_> {
    /// Demands that the operation touches exactly `count` rows; for `select`, that it finds as many.
    ///
    /// The database counts but does not mind. When the count differs the caller gets [`TransactError::Count`], *after* the commit,
    /// which can't be undone; where that matters use [`Transaction::guard_exists`].
    pub fn expect_count(self, count: u64) -> Self {
        self.0.count = Some(count);
        self
    }

    /// The position of the operation, by which [`Outcome`] and [`TransactError`] name it.
    pub fn index(&self) -> usize {
        self.1
    }
}

impl Columns {
    /// No column yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this column.
    #[must_use]
    pub fn set(mut self, column: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.0.push((column.into(), value.into()));
        self
    }

    /// With this column, when there is a value for it.
    #[must_use]
    pub fn set_some(self, column: impl Into<Name>, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.set(column, value),
            None => self,
        }
    }
}

impl Condition {
    /// The column compared with the value by the function.
    pub fn new(column: impl Into<Name>, function: Function, value: impl Into<Value>) -> Self {
        Self {
            column: column.into(),
            function,
            value: value.into(),
        }
    }

    /// The row with this uuid.
    pub fn uuid(row: Uuid) -> Self {
        Self::new("_uuid", Function::Equal, row)
    }

    /// Rows whose column has this value.
    pub fn equal(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self::new(column, Function::Equal, value)
    }
}

impl From<Condition> for Vec<Condition> {
    fn from(condition: Condition) -> Self {
        vec![condition]
    }
}

impl Mutation {
    /// The column changed by the mutator with the value.
    pub fn new(column: impl Into<Name>, mutator: Mutator, value: impl Into<Value>) -> Self {
        Self {
            column: column.into(),
            mutator,
            value: value.into(),
        }
    }

    /// Inserts elements into a set, or entries into a map whose keys are not there yet.
    pub fn insert(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self::new(column, Mutator::Insert, value)
    }

    /// Deletes elements of a set; or entries of a map, by key when `value` is a set and by key and value when it is a map.
    pub fn delete(column: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self::new(column, Mutator::Delete, value)
    }
}

impl From<Mutation> for Vec<Mutation> {
    fn from(mutation: Mutation) -> Self {
        vec![mutation]
    }
}
