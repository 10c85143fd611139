//! The rows in a northbound database.

use std::collections::{BTreeMap, BTreeSet};

use podwire_controller::want::Row;
use podwire_ovs::nb::Table;
use serde_json::{Value, json};

use super::{Rows, text, value};

impl Rows {
    /// The operations that make these the policies of a northbound database without any, by the
    /// uuids of its logical ports; one of these is a node's.
    pub(crate) fn northbound(
        &self,
        ports: &BTreeMap<String, Value>,
        management_port: &str,
    ) -> Vec<Value> {
        let mut operations = Vec::new();
        let nodes = podwire_controller::want::policy::nodes();
        let all = self.rows.values().flatten().chain(&self.shared);
        let all: Vec<&Row> = all.chain(&nodes).collect();
        for (number, acl) in self.acls().enumerate() {
            let after_lb = !value(acl, "options").is_empty();
            let options: &[_] = if after_lb { &["apply-after-lb"] } else { &[] };
            let options: Vec<_> = options.iter().map(|it| json!([it, "true"])).collect();
            let mut row = json!({
                "direction": text(acl, "direction"), "match": text(acl, "match"),
                "action": text(acl, "action"), "options": ["map", options],
                "priority": value(acl, "priority").as_integer(),
            });
            if self.policies.has_tiers() {
                row["tier"] = self.tier(acl).into();
            }
            operations.push(json!({
                "op": "insert", "table": "ACL", "uuid-name": format!("acl{number}"), "row": row,
            }));
        }
        let members = |group: &str| {
            let all = self.members.values().flatten();
            let own = all.filter(move |(name, _)| *name == *group);
            own.map(|(_, member)| member.to_string())
                .collect::<BTreeSet<_>>()
        };
        for row in all.iter().filter(|row| row.table == Table::AddressSet) {
            operations.push(json!({ "op": "insert", "table": "Address_Set", "row": {
                "name": row.name, "addresses": ["set", members(&row.name)],
            } }));
        }
        for row in all.iter().filter(|row| row.table == Table::PortGroup) {
            let mut own = members(&row.name);
            if nodes.contains(row) {
                own.insert(management_port.to_owned());
            }
            let own: Vec<Value> = own.iter().map(|it| json!(["uuid", ports[it]])).collect();
            let acls = self.acls().enumerate().filter(|(_, acl)| {
                let mut parents = acl.parents.iter();
                parents.any(|parent| parent.name == row.name)
            });
            let acls = acls.map(|(number, _)| json!(["named-uuid", format!("acl{number}")]));
            operations.push(json!({ "op": "insert", "table": "Port_Group", "row": {
                "name": row.name, "ports": ["set", own],
                "acls": ["set", acls.collect::<Vec<_>>()],
            } }));
        }
        operations
    }
}
