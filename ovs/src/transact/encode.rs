//! Encodes operations as JSON into one buffer, on the caller's own thread; the connection's task
//! then only joins buffers.

use super::{
    Columns, Condition, Function, Kind, Mutation, Mutator, Name, Operation, TransactError,
    Transaction,
};
use crate::value::{EncodeError, Value, append, encode_str};

/// A transaction, ready to go into a request.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The operations, separated by commas.
    pub(crate) bytes: Vec<u8>,
    /// The expected form of each operation's result.
    pub(crate) shapes: Vec<Shape>,
}

/// What is kept of an encoded operation: enough to parse its result and to name it in an error.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) operation: &'static str,
    pub(crate) table: Name,
    pub(crate) result: ResultKind,
    pub(crate) count: Option<u64>,
}

/// The content of an operation's result (RFC 7047 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultKind {
    Uuid,
    Rows,
    Count,
    Nothing,
}

impl Transaction {
    /// Encodes the transaction. `names` makes its row names distinct from those of every other
    /// transaction in the same request.
    pub(crate) fn encode(&self, names: u64) -> Result<Encoded, TransactError> {
        let mut bytes = Vec::with_capacity(self.operations.len() * 256);
        let mut shapes = Vec::with_capacity(self.operations.len());
        for (index, operation) in self.operations.iter().enumerate() {
            if index > 0 {
                bytes.push(b',');
            }
            operation
                .encode(names, &mut bytes)
                .map_err(|source| TransactError::Invalid { index, source })?;
            shapes.push(operation.shape());
        }
        Ok(Encoded { bytes, shapes })
    }

    /// The operations as JSON (RFC 7047 §5.2), one by one, for operators.
    ///
    /// # Errors
    /// [`TransactError::Invalid`].
    pub fn to_json(&self) -> Result<Vec<String>, TransactError> {
        let operations = self.operations.iter().enumerate();
        let encoded = operations.map(|(index, operation)| {
            let mut bytes = Vec::new();
            let encoded = operation.encode(0, &mut bytes);
            encoded.map_err(|source| TransactError::Invalid { index, source })?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        encoded.collect()
    }
}

impl Operation {
    fn shape(&self) -> Shape {
        let (operation, table, result) = match &self.kind {
            Kind::Insert { table, .. } => ("insert", table.clone(), ResultKind::Uuid),
            Kind::Select { table, .. } => ("select", table.clone(), ResultKind::Rows),
            Kind::Update { table, .. } => ("update", table.clone(), ResultKind::Count),
            Kind::Mutate { table, .. } => ("mutate", table.clone(), ResultKind::Count),
            Kind::Delete { table, .. } => ("delete", table.clone(), ResultKind::Count),
            Kind::Guard { table, .. } => ("wait", table.clone(), ResultKind::Nothing),
            Kind::Comment(_) => ("comment", Name::Borrowed(""), ResultKind::Nothing),
        };
        Shape {
            operation,
            table,
            result,
            count: self.count,
        }
    }

    fn encode(&self, names: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match &self.kind {
            Kind::Insert {
                table,
                name,
                columns,
            } => {
                begin("insert", table, out)?;
                append(
                    out,
                    format_args!(r#","uuid-name":"r{names}_{}","row":"#, name.0),
                );
                encode_columns(columns, names, out)?;
            }
            Kind::Select {
                table,
                conditions,
                columns,
            } => {
                begin("select", table, out)?;
                encode_conditions(conditions, names, out)?;
                if !columns.is_empty() {
                    encode_names(columns, out)?;
                }
            }
            Kind::Update {
                table,
                conditions,
                columns,
            } => {
                begin("update", table, out)?;
                encode_conditions(conditions, names, out)?;
                out.extend_from_slice(br#","row":"#);
                encode_columns(columns, names, out)?;
            }
            Kind::Mutate {
                table,
                conditions,
                mutations,
            } => {
                begin("mutate", table, out)?;
                encode_conditions(conditions, names, out)?;
                out.extend_from_slice(br#","mutations":"#);
                encode_list(
                    mutations,
                    out,
                    |Mutation {
                         column,
                         mutator,
                         value,
                     },
                     out| {
                        encode_triple(column, mutator.symbol(), value, names, out)
                    },
                )?;
            }
            Kind::Delete { table, conditions } => {
                begin("delete", table, out)?;
                encode_conditions(conditions, names, out)?;
            }
            Kind::Guard { table, conditions } => {
                begin("wait", table, out)?;
                encode_conditions(conditions, names, out)?;
                out.extend_from_slice(
                    br#","columns":["_uuid"],"timeout":0,"until":"!=","rows":[]"#,
                );
            }
            Kind::Comment(text) => {
                out.extend_from_slice(br#"{"op":"comment","comment":"#);
                encode_str(text, out)?;
            }
        }
        out.push(b'}');
        Ok(())
    }
}

impl Function {
    fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::Includes => "includes",
        }
    }
}

impl Mutator {
    fn symbol(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Delete => "delete",
        }
    }
}

fn begin(operation: &str, table: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    append(out, format_args!(r#"{{"op":"{operation}","table":"#));
    encode_str(table, out)
}

fn encode_conditions(
    conditions: &[Condition],
    names: u64,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    out.extend_from_slice(br#","where":"#);
    encode_list(
        conditions,
        out,
        |Condition {
             column,
             function,
             value,
         },
         out| { encode_triple(column, function.symbol(), value, names, out) },
    )
}

fn encode_names(columns: &[Name], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.extend_from_slice(br#","columns":"#);
    encode_list(columns, out, |column, out| encode_str(column, out))
}

fn encode_columns(columns: &Columns, names: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.push(b'{');
    for (at, (column, value)) in columns.0.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        encode_str(column, out)?;
        out.push(b':');
        value.encode(names, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn encode_triple(
    column: &str,
    symbol: &str,
    value: &Value,
    names: u64,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    out.push(b'[');
    encode_str(column, out)?;
    append(out, format_args!(r#","{symbol}","#));
    value.encode(names, out)?;
    out.push(b']');
    Ok(())
}

fn encode_list<T>(
    items: &[T],
    out: &mut Vec<u8>,
    encode: impl Fn(&T, &mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    out.push(b'[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        encode(item, out)?;
    }
    out.push(b']');
    Ok(())
}
