//! ACLs whose packets ovn-controller logs, at most as many as a meter lets through.

use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use crate::cluster::logging::Logging;
use crate::want::{Column, Row};

/// The meter that all logged ACLs share: its name, and packets a second of each of them.
pub const METER: (&str, i64) = ("acl-logging", 20);

/// Has the packets logged that are wanted: of the drop, and of the rules of policies.
pub fn logged(mut rows: Vec<Row>, logging: Option<&Logging>) -> Vec<Row> {
    let Some(logging) = logging else {
        return rows;
    };
    for row in rows.iter_mut().filter(|row| row.table == Table::Acl) {
        let decides = |(key, value): &(&str, String)| {
            *key == "gress-index" || (*key == "type" && value == "defaultDeny")
        };
        if !row.external_ids.iter().any(decides) {
            continue;
        }
        let severity = match row.value("action").and_then(Value::as_str) {
            Some("drop") => logging.deny,
            Some("pass") => logging.pass,
            _ => logging.allow,
        };
        if let Some(severity) = severity {
            set(row, "log", true.into());
            set(row, "severity", severity.into());
            set(row, "meter", METER.0.into());
        }
    }
    rows
}

/// Those of an ACL that is not logged: an earlier one may have been.
pub(super) fn unlogged(row: Row) -> Row {
    let none = || Value::set::<&str>([]);
    row.set("log", false)
        .set("severity", none())
        .set("meter", none())
}

fn set(row: &mut Row, column: &str, value: Value) {
    let mut columns = row.columns.iter_mut();
    if let Some((_, there)) = columns.find(|(name, _)| *name == column) {
        *there = Column::Value(value);
    }
}
