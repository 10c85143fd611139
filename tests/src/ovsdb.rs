//! A few OVSDB requests (RFC 7047 §4.1.3), each on a connection of its own: enough to look into the
//! database and, above all, not podwire's own client, which is under test.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::failure::{Failure, Step};
use crate::node::DAEMON_LIMIT;

/// A row as plain JSON: uuids as strings, sets as arrays, maps as objects.
pub type Row = Map<String, Value>;

/// The database of a node.
#[derive(Clone, Debug)]
pub struct Ovsdb {
    socket: PathBuf,
    database: &'static str,
}

impl Ovsdb {
    pub(crate) fn at(socket: PathBuf) -> Ovsdb {
        Ovsdb::of(socket, "Open_vSwitch")
    }

    /// Another database than a switch's.
    pub(crate) fn of(socket: PathBuf, database: &'static str) -> Ovsdb {
        Ovsdb { socket, database }
    }

    /// Waits until the rows that meet `conditions` (RFC 7047 §5.1) are, or with `until` "!=" are
    /// not, these, of these columns.
    pub fn wait(
        &self,
        table: &str,
        conditions: Value,
        until: &str,
        columns: &[&str],
        rows: Value,
    ) -> Result<(), Failure> {
        let limit = u64::try_from(DAEMON_LIMIT.as_millis()).unwrap_or(u64::MAX);
        self.transact(&[json!({
            "op": "wait", "timeout": limit, "table": table, "where": conditions,
            "columns": columns, "until": until, "rows": rows,
        })])
        .map(drop)
    }

    /// All rows of a table.
    pub fn rows(&self, table: &str) -> Result<Vec<Row>, Failure> {
        let results = self.transact(&[json!({"op": "select", "table": table, "where": []})])?;
        let rows = results
            .first()
            .and_then(|result| result["rows"].as_array())
            .cloned()
            .unwrap_or_default();
        Ok(rows
            .into_iter()
            .filter_map(|row| row.as_object().cloned())
            .map(plain_row)
            .collect())
    }

    /// Runs operations as one transaction and returns their results. An error of any of them is a
    /// [`Failure::Ovsdb`].
    pub fn transact(&self, operations: &[Value]) -> Result<Vec<Value>, Failure> {
        let mut params = vec![json!(self.database)];
        params.extend_from_slice(operations);
        let request = json!({"method": "transact", "params": params, "id": 0});
        let refused = |answer: String| Failure::Ovsdb {
            request: request.to_string(),
            answer,
        };

        let reply = ask(&self.socket, &request)?;
        let results = reply["result"].as_array().cloned().unwrap_or_default();
        let whole =
            reply["error"].is_null() && results.iter().all(|result| result.get("error").is_none());
        if whole {
            Ok(results)
        } else {
            Err(refused(reply.to_string()))
        }
    }
}

/// Sends a request of JSON-RPC 1.0 to a daemon of Open vSwitch, on a connection of its own, and
/// returns the answer.
pub(crate) fn ask(socket: &Path, request: &Value) -> Result<Value, Failure> {
    let refused = |answer: String| Failure::Ovsdb {
        request: request.to_string(),
        answer,
    };
    let mut stream =
        UnixStream::connect(socket).step(|| format!("connect to {}", socket.display()))?;
    // Longer than the longest `wait` operation that a fixture sends.
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .step(|| "set a timeout")?;
    stream
        .write_all(request.to_string().as_bytes())
        .step(|| format!("send a request to {}", socket.display()))?;
    let mut messages = serde_json::Deserializer::from_reader(stream).into_iter::<Value>();
    match messages.next() {
        Some(Ok(reply)) => Ok(reply),
        Some(Err(error)) => Err(refused(error.to_string())),
        None => Err(refused("connection closed".into())),
    }
}

fn plain_row(row: Row) -> Row {
    row.into_iter()
        .map(|(column, value)| (column, plain(value)))
        .collect()
}

/// RFC 7047 §5.1 `<value>` to plain JSON.
fn plain(value: Value) -> Value {
    let Value::Array(parts) = value else {
        return value;
    };
    let Ok([Value::String(kind), content]) = <[Value; 2]>::try_from(parts) else {
        return Value::Null;
    };
    match (kind.as_str(), content) {
        ("map", Value::Array(pairs)) => {
            let pair = |pair: Value| match pair {
                Value::Array(pair) => Some((
                    key(&plain(pair.first()?.clone())),
                    plain(pair.get(1)?.clone()),
                )),
                _ => None,
            };
            Value::Object(pairs.into_iter().filter_map(pair).collect())
        }
        ("set", Value::Array(elements)) => Value::Array(elements.into_iter().map(plain).collect()),
        (_, content) => content,
    }
}

fn key(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_in_plain_json() {
        let row = json!({
            "name": "eth0",
            "ofport": ["set", []],
            "interfaces": ["uuid", "5f3c"],
            "ports": ["set", [["uuid", "1"], ["uuid", "2"]]],
            "external_ids": ["map", [["iface-id", "ns_pod"]]],
            "queues": ["map", [[0, ["uuid", "3"]]]],
        });
        let row = plain_row(row.as_object().unwrap().clone());
        assert_eq!(
            Value::Object(row),
            json!({
                "name": "eth0",
                "ofport": [],
                "interfaces": "5f3c",
                "ports": ["1", "2"],
                "external_ids": {"iface-id": "ns_pod"},
                "queues": {"0": "3"},
            })
        );
    }
}
