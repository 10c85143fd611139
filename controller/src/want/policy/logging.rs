//! ACLs whose packets ovn-controller logs, at most as many as a meter lets through.

use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use crate::cluster::logging::Logging;
use crate::want::{Column, Row};

/// The meter that ACLs of all namespaces share: its name, and packets a second of each of them.
pub const METER: (&str, i64) = ("acl-logging", 20);

/// Has the packets logged that a namespace wants: of the drop, and of the rules of policies.
pub fn logged(mut rows: Vec<Row>, logging: Option<&Logging>) -> Vec<Row> {
    for row in rows.iter_mut().filter(|row| row.table == Table::Acl) {
        let mut ids = row.external_ids.iter();
        let severity = ids.find_map(|(key, value)| match (*key, &**value) {
            ("type", "defaultDeny") => logging.map(|it| it.deny),
            ("gress-index", _) => logging.map(|it| it.allow),
            _ => None,
        });
        if let Some(severity) = severity.flatten() {
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
