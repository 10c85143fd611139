//! Encodes operations as JSON into one buffer, on the caller's own thread; the connection's task
//! then only joins buffers.

use super::{
    Columns, Condition, Kind, Mutation, Name, Operation, TransactError, Transaction, Triple,
};
use crate::value::{EncodeError, append, encode_str};

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

impl Kind {
    /// As RFC 7047 §5.2 calls it, and what its result holds.
    fn word(&self) -> (&'static str, ResultKind) {
        match self {
            Self::Insert { .. } => ("insert", ResultKind::Uuid),
            Self::Select(_) => ("select", ResultKind::Rows),
            Self::Update(_) => ("update", ResultKind::Count),
            Self::Mutate(_) => ("mutate", ResultKind::Count),
            Self::Delete => ("delete", ResultKind::Count),
            Self::Guard(_) => ("wait", ResultKind::Nothing),
            Self::Comment(_) => ("comment", ResultKind::Nothing),
            Self::Durable => ("commit", ResultKind::Nothing),
        }
    }
}

impl Operation {
    fn shape(&self) -> Shape {
        let (operation, result) = self.kind.word();
        Shape {
            operation,
            table: self.table.clone(),
            result,
            count: self.count,
        }
    }

    fn encode(&self, names: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        append(out, format_args!(r#"{{"op":"{}""#, self.kind.word().0));
        match &self.kind {
            Kind::Comment(text) => {
                out.extend_from_slice(br#","comment":"#);
                encode_str(text, out)?;
            }
            Kind::Durable => out.extend_from_slice(br#","durable":true"#),
            Kind::Insert { .. } => self.encode_table(out)?,
            _ => {
                self.encode_table(out)?;
                out.extend_from_slice(br#","where":"#);
                let conditions = self.conditions.iter().map(|Condition(it)| it);
                encode_triples(conditions, names, out)?;
            }
        }
        match &self.kind {
            Kind::Insert { name, columns } => {
                append(out, format_args!(r#","uuid-name":"r{names}_{}""#, name.0));
                encode_row(columns, names, out)?;
            }
            Kind::Select(columns) if !columns.is_empty() => {
                out.extend_from_slice(br#","columns":"#);
                encode_list(columns, out, |column, out| encode_str(column, out))?;
            }
            Kind::Update(columns) => encode_row(columns, names, out)?,
            Kind::Mutate(mutations) => {
                out.extend_from_slice(br#","mutations":"#);
                encode_triples(mutations.iter().map(|Mutation(it)| it), names, out)?;
            }
            Kind::Guard(is_there) => {
                let until = if *is_there { "!=" } else { "==" };
                out.extend_from_slice(br#","columns":["_uuid"],"timeout":0,"until":"#);
                append(out, format_args!(r#""{until}","rows":[]"#));
            }
            Kind::Select(_) | Kind::Delete | Kind::Comment(_) | Kind::Durable => {}
        }
        out.push(b'}');
        Ok(())
    }

    fn encode_table(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(br#","table":"#);
        encode_str(&self.table, out)
    }
}

fn encode_row(columns: &Columns, names: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.extend_from_slice(br#","row":{"#);
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

fn encode_triples<'a>(
    triples: impl Iterator<Item = &'a Triple>,
    names: u64,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    encode_list(triples, out, |triple, out| {
        out.push(b'[');
        encode_str(&triple.column, out)?;
        append(out, format_args!(r#","{}","#, triple.word));
        triple.value.encode(names, out)?;
        out.push(b']');
        Ok(())
    })
}

fn encode_list<T>(
    items: impl IntoIterator<Item = T>,
    out: &mut Vec<u8>,
    encode: impl Fn(T, &mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    out.push(b'[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        encode(item, out)?;
    }
    out.push(b']');
    Ok(())
}
