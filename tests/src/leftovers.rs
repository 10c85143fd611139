//! What pods have left behind on a node.

use std::fmt;

use crate::failure::{OrFail, Step};
use crate::ovsdb::Row;
use crate::{TestNode, links};

/// What [`TestNode::leftovers`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// veth links in the node's network namespace.
    pub links: Vec<String>,
    /// Rows of Port, Interface, QoS and Queue, as `Table name`.
    pub rows: Vec<String>,
    /// Files in the agent's directory of attachments.
    pub records: Vec<String>,
}

impl Leftovers {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Leftovers::default()
    }

    /// Panics when anything is left, and says what.
    #[track_caller]
    pub fn assert_none(&self) {
        assert!(self.is_empty(), "left behind: {self}");
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "links [{}], rows [{}], records [{}]",
            self.links.join(", "),
            self.rows.join(", "),
            self.records.join(", ")
        )
    }
}

impl TestNode {
    /// What podwire has left on this node: links, OVS rows and attachment records that belong to
    /// pods. What makes up br-int itself is not counted.
    #[track_caller]
    pub fn leftovers(&self) -> Leftovers {
        let text = |row: &Row, column: &str| row[column].as_str().unwrap_or_default().to_owned();
        let all = |table: &str, column: &str| {
            let rows = self.ovsdb_rows(table);
            rows.iter().map(|row| text(row, column)).collect::<Vec<_>>()
        };
        let bridges = all("Bridge", "name");
        let mut rows = Vec::new();
        for (table, column) in [
            ("Port", "name"),
            ("Interface", "name"),
            ("QoS", "_uuid"),
            ("Queue", "_uuid"),
        ] {
            let mut found = all(table, column);
            found.retain(|name| !bridges.contains(name));
            rows.extend(found.iter().map(|name| format!("{table} {name}")));
        }
        let links = links::list(self.place()).into_iter();
        let veths = links.filter(|link| link.kind.as_deref() == Some("veth"));
        let records = match std::fs::read_dir(self.path("/run/podwire/attachments")) {
            Ok(entries) => entries
                .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
                .collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => Err(error).step(|| "list the attachment records").or_fail(),
        };
        Leftovers {
            links: veths.map(|link| link.name).collect(),
            rows,
            records,
        }
    }
}
