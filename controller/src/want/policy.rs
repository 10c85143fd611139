//! The rows of NetworkPolicies. What a pod costs is members of groups and sets, never an ACL.
//!
//! A namespace has a port group for each direction in which a policy isolates: what is not allowed
//! to or from its members is dropped. A policy has a port group with an ACL that allows for each
//! rule. The pods that a rule names are an address set, shared by all rules that name the
//! same ones.
//!
//! Another network has sets and groups of its own, with the ports and addresses that pods have
//! there: two networks may have the same addresses. There a policy's own group isolates.
//!
//! Names, priorities and external_ids are those of ovn-kubernetes.

mod boundary;
mod compile;
mod index;
mod isolation;
mod logging;
mod matching;
mod members;
mod tiers;
mod unspecified;
mod verdict;

use std::collections::BTreeSet;

use ipnet::IpNet;
use podwire_cluster::address::digest;
use podwire_ovs::nb::Table;
use podwire_ovs::value::Value;

use super::Row;
use crate::cluster::Name;
use crate::cluster::policy::Direction;
use crate::ipam::nth;
use crate::key::{Key, Network};
use crate::members::Member;
use index::member;
use logging::unlogged;
pub(super) use matching::Family;
use members::set_name;

pub use boundary::{boundary, gateway_members, inside, inside_member};
pub use compile::Compiled;
pub use index::{Namespaces, Policies, Subject, candidate};
pub use isolation::{Open, isolated, isolation, open_member, open_sets};
pub use logging::{METER, logged};
pub use members::{Candidate, PeerSet};
pub use tiers::Decision;
pub use unspecified::{asking, asking_member};
pub use verdict::{Connection, Deciding, Outcome, Verdict};

/// What OVN gives a pod that reaches itself through a service as its source.
const HAIRPIN: [&str; 2] = ["ip4.src == 169.254.169.5", "ip6.src == fd69::5"];
/// The priority of drops; what allows has one more.
const DROP: u16 = 1000;
/// That of drops of whole networks, before all policies: after everything else of OVN without
/// tiers, where policies have 1000 and 1001.
const FIRST_DROP: u16 = 1010;
/// The most bytes of an ACL's name.
const NAME: usize = 63;

/// Identifies a row as ovn-kubernetes does: by the type of its owner, and by parts of it.
struct Ids {
    network: Network,
    all: Vec<(&'static str, String)>,
}

impl Ids {
    fn new(owner_type: &str, name: String) -> Self {
        Self {
            network: Network::DEFAULT,
            all: vec![
                (
                    "k8s.ovn.org/owner-controller",
                    controller(&Network::DEFAULT),
                ),
                ("k8s.ovn.org/owner-type", owner_type.to_owned()),
                ("k8s.ovn.org/name", name),
            ],
        }
    }

    fn on(mut self, network: &Network) -> Self {
        self.network = network.clone();
        self.all[0].1 = controller(network);
        self
    }

    fn and(mut self, key: &'static str, value: impl ToString) -> Self {
        self.all.push((key, value.to_string()));
        self
    }

    fn id(&self) -> String {
        let parts: Vec<&str> = self.all.iter().map(|(_, value)| value.as_str()).collect();
        parts.join(":")
    }

    /// What matches call it.
    fn hashed(&self) -> String {
        match self.network == Network::DEFAULT {
            true => hashed(&self.id()),
            false => unchosen(&self.id()),
        }
    }

    fn external_ids(self) -> Vec<(&'static str, String)> {
        let id = self.id();
        self.and("k8s.ovn.org/id", id).all
    }
}

fn controller(of: &Network) -> String {
    format!("{}-network-controller", of.name())
}

/// Whoever makes definitions chooses a network's name, and must not get the name of another row by
/// it, as FNV would let him.
fn unchosen(id: &str) -> String {
    format!("udn_{:032x}", u128::from_be_bytes(digest(id)))
}

/// FNV-1a, 64 bits, as a name that OVN's matches can have.
fn hashed(id: &str) -> String {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("a{hash}")
}

fn isolated_ids(namespace: &str, direction: Direction) -> Ids {
    Ids::new("NetpolNamespace", namespace.to_owned()).and("direction", direction)
}

fn policy_ids(namespace: &str, name: &str) -> Ids {
    Ids::new("NetworkPolicy", format!("{namespace}:{name}"))
}

fn tiered_ids(key: &Key) -> Ids {
    let kind = key.of.kind().map_or("", |(_, kind)| kind);
    Ids::new(kind, key.name.to_string())
}

fn nodes_ids() -> Ids {
    Ids::new("Cluster", "clusterPortGroup".to_owned())
}

fn nodes_set_ids(family: Family) -> Ids {
    Ids::new("Cluster", "managementPorts".to_owned()).and("ip-family", family.name())
}

/// The port group of the pods of a namespace that are isolated in a direction.
pub fn isolated_group(namespace: &str, direction: Direction) -> Name {
    hashed(&isolated_ids(namespace, direction).id()).into()
}

/// The group of a policy that is made again has another name: ovn-northd 26.03 loses a group that
/// is deleted and made again before it looks.
fn of_uid(policy: Ids, uid: &str) -> Ids {
    policy.and("uid", uid)
}

/// The port group of the pods that the policy with this uid selects.
pub fn policy_group(namespace: &str, name: &str, uid: &str) -> Name {
    hashed(&of_uid(policy_ids(namespace, name), uid).id()).into()
}

/// The port group of the pods that a policy of the whole cluster selects.
pub fn tiered_group(key: &Key, uid: &str) -> Name {
    hashed(&of_uid(tiered_ids(key), uid).id()).into()
}

fn tiered_pods() -> Ids {
    Ids::new("Cluster", "tieredPolicies".to_owned())
}

/// The port group of the pods that any policy of the whole cluster selects.
pub fn tiered_pods_group() -> Name {
    hashed(&tiered_pods().id()).into()
}

fn nodes_group() -> Name {
    hashed(&nodes_ids().id()).into()
}

/// The places of the management port of a node with these subnets.
pub fn node_members(node: &str, subnets: &[IpNet]) -> BTreeSet<Member> {
    let addresses = subnets.iter().map(|subnet| nth(*subnet, 2).addr());
    let addresses = addresses.map(|address| {
        let set = hashed(&nodes_set_ids(Family::of(address)).id());
        member(Table::AddressSet, set.into(), address.to_string().into())
    });
    let port = member(
        Table::PortGroup,
        nodes_group(),
        format!("k8s-{node}").into(),
    );
    let is_there = !subnets.is_empty();
    addresses.chain(is_there.then_some(port)).collect()
}

/// Shared by all policies: the nodes' management ports, from which kubelets reach their pods.
pub fn nodes() -> Vec<Row> {
    let sets = Family::BOTH.map(|family| row(Table::AddressSet, nodes_set_ids(family)));
    [row(Table::PortGroup, nodes_ids())]
        .into_iter()
        .chain(sets)
        .collect()
}

/// What every policy of the whole cluster lets pass, before all of their rules: neighbours, and a
/// pod's own node. Being `allow-related`, these also have the switches of all of their pods follow
/// connections: without that, a rule would drop the replies of what is accepted.
pub fn tiered_door() -> Vec<Row> {
    let group = tiered_pods_group();
    let mut rows = vec![row(Table::PortGroup, tiered_pods())];
    for direction in Direction::BOTH {
        let mut add = |kind: &str, clauses: &[String]| {
            let ids = tiered_pods().and("direction", direction).and("type", kind);
            let name = format!("tiered:{direction}");
            let allow = ("allow-related", tiers::DOOR);
            let more = matching::any(clauses);
            rows.push(acl((&group, &group, direction), allow, &more, &name, ids));
        };
        // Two, for some of these pods are on other networks.
        add("alwaysAllow", &neighbours());
        if direction == Direction::Ingress {
            add("ownNode", &from_node());
        }
    }
    at_tier(&mut rows, tiers::ADMIN);
    rows
}

/// What passes in any case, in one ACL beside what else does, because ovn-northd computes each for
/// each switch with one of its pods.
fn neighbours() -> Vec<String> {
    vec!["arp".to_owned(), "nd".to_owned()]
}

/// Matches for a pod's own node: what comes from others enters by the router. They are for switches
/// with a node's port alone: on another one there is no such group, and ovn-controller leaves out
/// all of an ACL that names it.
fn from_node() -> [String; 2] {
    Family::BOTH.map(|family| {
        let set = hashed(&nodes_set_ids(family).id());
        format!(
            "inport == @{} && {}.src == ${set}",
            nodes_group(),
            family.field()
        )
    })
}

/// A match for what comes from the nodes' management ports.
pub(super) fn from_nodes(family: Family) -> String {
    let set = nodes_set_ids(family).hashed();
    format!("{}.src == ${set}", family.field())
}

/// Has the ACLs of whole networks asked before the policies of the cluster, where those have tiers.
fn before_policies(rows: &mut [Row], has_tiers: bool) {
    if has_tiers {
        at_tier(rows, 0);
    }
}

/// Gives ACLs a tier.
fn at_tier(rows: &mut [Row], tier: i64) {
    for row in rows.iter_mut().filter(|row| row.table == Table::Acl) {
        row.columns
            .push(("tier", super::Column::Value(tier.into())));
    }
}

/// The groups of a namespace's isolated pods. They stay as long as the namespace, with policies and
/// without: ovn-northd 26.03 loses a group that is deleted and made again before it looks, and with
/// it the drop (docs/upstream/ovn-port-groups.md).
pub fn namespace_groups(namespace: &str) -> Vec<Row> {
    let groups = Direction::BOTH.map(|it| row(Table::PortGroup, isolated_ids(namespace, it)));
    groups.into()
}

/// What a namespace's policies do that isolate in these directions.
pub fn namespace(namespace: &str, directions: &BTreeSet<Direction>) -> Vec<Row> {
    let mut rows = Vec::new();
    for &direction in directions {
        let group = isolated_group(namespace, direction);
        let name = format!("NP:{namespace}:{direction}");
        let ids = || isolated_ids(namespace, direction);
        let of = (&*group, &Network::DEFAULT);
        rows.extend(isolating(of, direction, &name, ids));
    }
    rows
}

/// What isolates the pods of a group, whose ports are on this network.
fn isolating(
    (group, network): (&str, &Network),
    direction: Direction,
    name: &str,
    ids: impl Fn() -> Ids,
) -> [Row; 2] {
    let row = |kind: &str, action: (&str, u16), more: &str| {
        let ids = ids().and("type", kind);
        acl((group, group, direction), action, more, name, ids)
    };
    let mut passes = neighbours();
    if direction == Direction::Ingress {
        passes.extend(HAIRPIN.map(str::to_owned));
        passes.extend(
            from_node()
                .into_iter()
                .filter(|_| *network == Network::DEFAULT),
        );
    }
    let more = matching::any(&passes);
    [
        row("defaultDeny", ("drop", DROP), ""),
        // Without any rule that is `allow-related` and any load balancer, a switch follows no
        // connections, and a drop of what its pods send takes their answers, too.
        row("alwaysAllow", ("allow-related", DROP + 1), &more),
    ]
}

/// The rows of a set of peers.
fn peers(id: &str, set: &PeerSet, network: &Network) -> Vec<Row> {
    let rows = Family::BOTH.map(|family| {
        let mut row = row(Table::AddressSet, set.ids(family).on(network));
        row.name = set_name(id, family).to_string();
        row
    });
    rows.into()
}

/// A row with the name that ovn-kubernetes gives it.
fn row(table: Table, ids: Ids) -> Row {
    let mut row = Row::new(table, ids.hashed());
    row.external_ids = ids.external_ids();
    row
}

/// An ACL of a port group, for what leads to its members, or what comes from them.
fn acl(
    (holder, group, direction): (&str, &str, Direction),
    (action, priority): (&str, u16),
    more: &str,
    name: &str,
    ids: Ids,
) -> Row {
    let (port, lport) = match direction {
        Direction::Ingress => ("outport", "to-lport"),
        Direction::Egress => ("inport", "from-lport"),
    };
    let joined = if more.is_empty() { "" } else { " && " };
    let options: &[(&str, &str)] = match direction {
        // It sees a service's endpoint.
        Direction::Egress => &[("apply-after-lb", "true")],
        Direction::Ingress => &[],
    };
    let end = name.len().min(NAME);
    let mut row = unlogged(Row::new(Table::Acl, ""))
        .set("name", &name[..end])
        .set("direction", lport)
        .set("priority", i64::from(priority))
        .set("match", format!("{port} == @{group}{joined}{more}"))
        .set("action", action)
        .set("options", Value::map(options.iter().copied()))
        .under(Table::PortGroup, holder, "acls");
    row.external_ids = ids.external_ids();
    row
}
