//! A logical switch with everybody on it, and the rows of each case in its northbound database.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_tests::Ovsdb;
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::rows::Rows;
use crate::world::{OUTSIDE, World};
use crate::{cases, generated, tiers};

pub(crate) const SWITCH: &str = "everybody";

/// Of the node that has the switch.
pub(crate) const MANAGEMENT_PORT: &str = "k8s-everybody";

pub(crate) struct Switch<'c> {
    central: &'c Central,
    northbound: Ovsdb,
    pub(crate) ports: Vec<Port>,
    /// The ports' rows, by name.
    uuids: BTreeMap<String, Value>,
    /// Whether OVN has tiers of ACLs.
    has_tiers: bool,
}

/// A logical port, of a pod or of the machine outside.
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) mac: [u8; 6],
    pub(crate) addresses: [IpAddr; 2],
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) world: World,
    /// One of many that differ little.
    pub(crate) is_generated: bool,
}

impl Case {
    /// One packet of how many is asked about: of all cases, or in `make test`.
    pub(crate) fn every(&self, is_whole: bool) -> usize {
        match (is_whole, self.is_generated) {
            (true, false) => 1,
            (true, true) => 7,
            (false, _) => 53,
        }
    }
}

impl Port {
    pub(crate) fn mac(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }
}

fn ports(world: &World) -> Vec<Port> {
    let pods = world.pods.iter();
    let pods = pods.map(|pod| (format!("{}_{}", pod.namespace, pod.name), pod.addresses));
    let outside = OUTSIDE.map(|address| address.parse().unwrap());
    let all = pods.chain([("outside".to_owned(), outside)]);
    let port = |(number, (name, addresses))| Port {
        name,
        mac: [0x0a, 0x58, 0, 0, 0, number],
        addresses,
    };
    (1..).zip(all).map(port).collect()
}

impl<'c> Switch<'c> {
    pub(crate) fn make(central: &'c Central) -> Self {
        let ports = ports(&World::new(json!([])));
        central.nbctl(format!("ls-add {SWITCH}"));
        for port in &ports {
            let ([v4, v6], name, mac) = (port.addresses, &port.name, port.mac());
            central.nbctl(format!(
                "lsp-add {SWITCH} {name} -- lsp-set-addresses {name} '{mac} {v4} {v6}'"
            ));
        }
        // A group without ports on a switch is none in the matches of that switch.
        central.nbctl(format!("lsp-add {SWITCH} {MANAGEMENT_PORT}"));
        let northbound = central.northbound();
        let rows = northbound.rows("Logical_Switch_Port").unwrap();
        let uuids = rows.into_iter().map(|row| {
            let name = row["name"].as_str().unwrap().to_owned();
            (name, row["_uuid"].clone())
        });
        let columns = format!(
            "list-columns {} OVN_Northbound ACL",
            central.local_northbound()
        );
        let columns = central.machine().run("ovsdb-client", columns);
        Self {
            central,
            ports,
            uuids: uuids.collect(),
            has_tiers: columns.lines().any(|line| line.starts_with("tier ")),
            northbound,
        }
    }

    /// The port with an address.
    pub(crate) fn with(&self, address: IpAddr) -> &Port {
        let mut ports = self.ports.iter();
        ports.find(|it| it.addresses.contains(&address)).unwrap()
    }

    /// All cases that this OVN can have; of those that are generated, one of some.
    pub(crate) fn cases(&self, one_of: usize) -> Vec<Case> {
        let by_hand = || {
            cases::all()
                .into_iter()
                .map(|(name, it)| (name.to_owned(), it))
        };
        let mut found = Vec::new();
        let mut add = |is_generated, world: fn(Value) -> World, all: Vec<(String, Value)>| {
            let step = if is_generated { one_of } else { 1 };
            let all = all.into_iter().step_by(step);
            found.extend(all.map(|(name, policies)| Case {
                name,
                world: world(policies),
                is_generated,
            }));
        };
        add(false, World::new, by_hand().collect());
        add(true, World::new, generated::all());
        if self.has_tiers {
            add(
                false,
                World::tiered,
                by_hand().chain(tiers::all()).collect(),
            );
            add(true, World::tiered, tiers::generated::all());
        }
        found
    }

    /// Has the database's policies be those of a case.
    pub(crate) fn apply(&self, world: &World) {
        // One after the other: OVN 26.03 loses a port group that is deleted and made again at once
        // (docs/upstream).
        let all = ["Port_Group", "Address_Set"];
        let removed = all.map(|table| json!({ "op": "delete", "table": table, "where": [] }));
        let made = Rows::of(world).northbound(&self.uuids, MANAGEMENT_PORT);
        for operations in [&removed[..], &made] {
            self.northbound.transact(operations).unwrap();
            self.central.nbctl("--wait=sb sync");
        }
    }
}
