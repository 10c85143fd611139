use std::collections::BTreeMap;

use crate::transact::{Added, Columns, Condition, Mutation, Name, Transaction};
use crate::value::{RowName, Uuid, Value};

/// The content of a column that maps strings to strings.
pub type StringMap = BTreeMap<String, String>;

/// A port with its one interface, to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// The name of port and interface; for a veth the host end's.
    pub name: String,
    /// `internal`, …; None means `system`: the device exists.
    pub interface_type: Option<String>,
    /// The interface's `external_ids`, which OVN reads.
    pub external_ids: StringMap,
    /// The port's `external_ids`.
    pub port_external_ids: StringMap,
    /// The port's `other_config`.
    pub port_other_config: StringMap,
    /// The interface's `other_config`.
    pub other_config: StringMap,
    /// The MTU that ovs-vswitchd should set on the device, in bytes.
    pub mtu_request: Option<u32>,
    /// The requested OpenFlow port number; ignored if another port has it.
    pub ofport_request: Option<u16>,
    /// The VLAN of packets without a tag.
    pub tag: Option<u16>,
    /// The VLANs of packets with a tag.
    pub trunks: Vec<u16>,
    /// `access`, `trunk`, …; None leaves it to `tag` and `trunks`.
    pub vlan_mode: Option<String>,
    /// Limit for what the interface receives (a pod's egress), in kbit/s.
    pub ingress_policing_rate: Option<u32>,
    /// The burst of that limit, in kbit.
    pub ingress_policing_burst: Option<u32>,
    /// Shaping of what the port sends (a pod's ingress).
    pub qos: Option<QosSpec>,
}

/// A QoS row for one port, created with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosSpec {
    /// `linux-htb`, …
    pub qos_type: String,
    /// Such as `max-rate`, in bit/s.
    pub other_config: StringMap,
    /// Should name the owner: a QoS row outlives its port unless it is deleted.
    pub external_ids: StringMap,
    /// Queues by number.
    pub queues: BTreeMap<u32, QueueSpec>,
}

/// A queue of a [`QosSpec`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSpec {
    /// Such as `max-rate`, in bit/s.
    pub other_config: StringMap,
    /// Should name the owner.
    pub external_ids: StringMap,
}

/// A bridge, to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeSpec {
    /// The name of the bridge and of its local port.
    pub name: String,
    /// `netdev`, or `system` for the kernel's.
    pub datapath_type: Option<String>,
    /// `secure` or `standalone`.
    pub fail_mode: Option<String>,
    /// Such as `hwaddr`.
    pub other_config: StringMap,
    /// The bridge's `external_ids`.
    pub external_ids: StringMap,
    /// The local interface's MTU, in bytes. If set, it no longer follows the smallest MTU among the
    /// ports.
    pub mtu_request: Option<u32>,
}

/// The rows to remove with a port; see `Db::port_rows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRows {
    /// Its bridge.
    pub bridge: Uuid,
    /// The port.
    pub port: Uuid,
    /// Its QoS row, if it is the port's own.
    pub qos: Option<Uuid>,
    /// The QoS row's queues, if they are the port's own.
    pub queues: Vec<Uuid>,
}

/// A transaction that creates a port, and how to find the rows in its outcome.
#[derive(Clone, Debug)]
pub struct AddPort {
    /// To be committed.
    pub transaction: Transaction,
    /// The new row of `Port`.
    pub port: RowName,
    /// The new row of `Interface`, which gets the `ofport`.
    pub interface: RowName,
}

/// A transaction that creates a bridge, and how to find the rows in its outcome.
#[derive(Clone, Debug)]
pub struct AddBridge {
    /// To be committed.
    pub transaction: Transaction,
    /// The new row of `Bridge`.
    pub bridge: RowName,
    /// The new row of `Interface` for the local port.
    pub interface: RowName,
}

/// Puts a port on a bridge, in place of those that it `replaces`, in one transaction: nobody ever
/// sees two interfaces with one iface-id, or none.
///
/// If the bridge is gone, nothing is committed: the outcome is `TransactError::Commit`, a
/// referential integrity violation
/// ([`is_dangling_reference`](crate::transact::TransactError::is_dangling_reference)). Only if the
/// row of `Open_vSwitch` is gone as well, in a database that was emptied, the outcome is
/// `TransactError::Count`, and there is a QoS row that no port uses.
pub fn add_port(bridge: Uuid, spec: &PortSpec, replaces: &[PortRows]) -> AddPort {
    let mut transaction = Transaction::new();
    remove(&mut transaction, replaces);
    let qos = spec
        .qos
        .as_ref()
        .map(|qos| insert_qos(&mut transaction, qos));
    let columns = Columns::new()
        .set("name", &spec.name)
        .set_some("type", spec.interface_type.as_ref())
        .set_some("external_ids", filled(&spec.external_ids))
        .set_some("other_config", filled(&spec.other_config))
        .set_some("mtu_request", spec.mtu_request)
        .set_some("ofport_request", spec.ofport_request.map(i64::from))
        .set_some("ingress_policing_rate", spec.ingress_policing_rate)
        .set_some("ingress_policing_burst", spec.ingress_policing_burst);
    let interface = transaction.insert("Interface", columns);
    let columns = Columns::new()
        .set("name", &spec.name)
        .set("interfaces", interface)
        .set_some("external_ids", filled(&spec.port_external_ids))
        .set_some("other_config", filled(&spec.port_other_config))
        .set_some("tag", spec.tag.map(i64::from))
        .set_some("trunks", some_vlans(&spec.trunks))
        .set_some("vlan_mode", spec.vlan_mode.as_ref())
        .set_some("qos", qos);
    let port = transaction.insert("Port", columns);
    // A mutation of a missing bridge matches no row, and the rest would be committed without it
    // (RFC 7047 §5.2.4). The root already refers to the bridge, so inserting that reference changes
    // nothing; if the bridge is gone, the reference dangles and aborts the transaction. Unlike a
    // guard, this can be sent together with other transactions.
    transaction.mutate("Open_vSwitch", [], Mutation::insert("bridges", bridge));
    transaction
        .mutate(
            "Bridge",
            Condition::uuid(bridge),
            Mutation::insert("ports", port),
        )
        .expect_count(1);
    AddPort {
        transaction,
        port,
        interface,
    }
}

/// Removes ports in one transaction. It requires nothing: a port or a bridge may be gone already.
pub fn del_ports(ports: &[PortRows]) -> Transaction {
    let mut transaction = Transaction::new();
    remove(&mut transaction, ports);
    transaction
}

/// Removes QoS rows that no port uses. If a port has come to use one, the error is
/// [`is_dangling_reference`](crate::transact::TransactError::is_dangling_reference), and nothing is
/// removed.
pub fn del_qos(transaction: &mut Transaction, rows: &[Uuid]) {
    for &qos in rows {
        transaction.delete("QoS", Condition::uuid(qos));
    }
}

/// Creates a bridge with its local port in one transaction. `root` is the row of `Open_vSwitch`.
pub fn add_bridge(root: Uuid, spec: &BridgeSpec) -> AddBridge {
    let mut transaction = Transaction::new();
    let columns = Columns::new()
        .set("name", &spec.name)
        .set("type", "internal")
        .set_some("mtu_request", spec.mtu_request);
    let interface = transaction.insert("Interface", columns);
    let port = transaction.insert(
        "Port",
        Columns::new()
            .set("name", &spec.name)
            .set("interfaces", interface),
    );
    let columns = Columns::new()
        .set("name", &spec.name)
        .set("ports", port)
        .set_some("datapath_type", spec.datapath_type.as_ref())
        .set_some("fail_mode", spec.fail_mode.as_ref())
        .set_some("other_config", filled(&spec.other_config))
        .set_some("external_ids", filled(&spec.external_ids));
    let bridge = transaction.insert("Bridge", columns);
    transaction
        .mutate(
            "Open_vSwitch",
            Condition::uuid(root),
            Mutation::insert("bridges", bridge),
        )
        .expect_count(1);
    AddBridge {
        transaction,
        bridge,
        interface,
    }
}

/// Sets keys of a map column of one row and keeps all others. For a missing row, the error is
/// `TransactError::Count`.
pub fn set_keys<'t>(
    transaction: &'t mut Transaction,
    table: impl Into<Name>,
    row: Uuid,
    column: impl Into<Name>,
    entries: &StringMap,
) -> Added<'t> {
    let column = column.into();
    // `insert` alone keeps the value of an existing key (RFC 7047 §5.1).
    let mutations = [
        Mutation::delete(column.clone(), Value::set(entries.keys())),
        Mutation::insert(column, Value::map(entries)),
    ];
    transaction
        .mutate(table, Condition::uuid(row), mutations)
        .expect_count(1)
}

/// Removes keys of a map column of one row and keeps all others. It requires nothing: a missing row
/// has no keys.
pub fn unset_keys<'t>(
    transaction: &'t mut Transaction,
    table: impl Into<Name>,
    row: Uuid,
    column: impl Into<Name>,
    keys: &[&str],
) -> Added<'t> {
    transaction.mutate(
        table,
        Condition::uuid(row),
        Mutation::delete(column, Value::set(keys.iter().copied())),
    )
}

/// Removes ports from their bridges. Port and interface are removed at commit, because nothing
/// refers to them any more; QoS and Queue rows are roots and stay until deleted.
fn remove(transaction: &mut Transaction, ports: &[PortRows]) {
    let mut by_bridge: BTreeMap<Uuid, Vec<Uuid>> = BTreeMap::new();
    for port in ports {
        by_bridge.entry(port.bridge).or_default().push(port.port);
    }
    for (bridge, ports) in by_bridge {
        transaction.mutate(
            "Bridge",
            Condition::uuid(bridge),
            Mutation::delete("ports", Value::set(ports)),
        );
    }
    for (port, qos) in ports.iter().filter_map(|port| Some((port.port, port.qos?))) {
        // ovsdb-server counts a deleted row's references before it collects the port as garbage,
        // and would refuse the commit.
        transaction.update(
            "Port",
            Condition::uuid(port),
            Columns::new().set("qos", Value::empty()),
        );
        transaction.delete("QoS", Condition::uuid(qos));
    }
    for &queue in ports.iter().flat_map(|port| &port.queues) {
        transaction.delete("Queue", Condition::uuid(queue));
    }
}

fn insert_qos(transaction: &mut Transaction, spec: &QosSpec) -> RowName {
    let queues: Vec<_> = spec
        .queues
        .iter()
        .map(|(&number, queue)| {
            let columns = Columns::new()
                .set_some("other_config", filled(&queue.other_config))
                .set_some("external_ids", filled(&queue.external_ids));
            (number, transaction.insert("Queue", columns))
        })
        .collect();
    let columns = Columns::new()
        .set("type", &spec.qos_type)
        .set_some("other_config", filled(&spec.other_config))
        .set_some("external_ids", filled(&spec.external_ids))
        .set_some("queues", (!queues.is_empty()).then(|| Value::map(queues)));
    transaction.insert("QoS", columns)
}

fn some_vlans(vlans: &[u16]) -> Option<Value> {
    (!vlans.is_empty()).then(|| Value::set(vlans.iter().map(|vlan| i64::from(*vlan))))
}

fn filled(map: &StringMap) -> Option<Value> {
    (!map.is_empty()).then(|| Value::map(map))
}
