//! The plan of plain mode, without OVN and without a controller. Each node's subnets are its
//! podCIDRs; pods on other nodes are reached by routes if the nodes share a network, otherwise
//! through tunnels of Open vSwitch.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cluster::address::mac;

use super::{Plan, Uplink, gateway, guarded, overhead, sysctl, uplink};

use crate::TUNNEL;
use crate::firewall::{self, Table};
use crate::items::{Actual, Bridge, File, Item, LinkUp, Neighbour, Route, Tunnel};
use crate::settings::{Peer, Settings};

/// The file in which the agent finds its node role's settings.
pub(crate) const AGENT_FILE: &str = "/run/podwire/node/agent.toml";

impl Plan {
    /// The plan of plain mode. The pods' bridge and its gateway addresses belong to the agent.
    ///
    /// # Errors
    /// What is missing, as text.
    pub(super) fn plain(settings: &Settings, actual: &Actual) -> Result<Self, String> {
        let uplink = uplink(settings, actual)?;
        let mut routes = Vec::new();
        let mut links = BTreeSet::from([settings.bridge.as_str(), uplink.link.as_str()]);
        let mut tunnels = Vec::new();
        let mut verdict = Vec::new();
        for peer in &settings.peers {
            let mut tunnelled = Vec::new();
            for subnet in &peer.subnets {
                match near(settings, actual, peer, subnet) {
                    Some((link, via)) => {
                        links.insert(link);
                        routes.push(Item::Route(Route {
                            destination: *subnet,
                            via,
                            link: link.to_owned(),
                            source: None,
                        }));
                    }
                    None => tunnelled.push(subnet),
                }
            }
            if tunnelled.is_empty() {
                continue;
            }
            match remote(actual, &uplink, peer) {
                Some(remote) => tunnels.push((peer, remote, tunnelled)),
                None => verdict.push(format!(
                    "no way to the pods of node {}: it has no InternalIP of a family that {} has",
                    peer.name, uplink.link
                )),
            }
        }
        let mut own = Vec::new();
        let mut neighbours = Vec::new();
        let mut too_small = None;
        for (peer, remote, subnets) in &tunnels {
            if own.is_empty() {
                let mtu;
                (mtu, too_small) = super::mtu(settings, &uplink, overhead(&[*remote]));
                own.push(bridge(settings, actual, mtu));
            }
            own.push(Item::Tunnel(Tunnel {
                name: tunnel_name(&peer.name),
                node: peer.name.clone(),
                remote: remote.to_string(),
            }));
            for subnet in subnets {
                let (neighbour, route) = by_tunnel(settings, peer, subnet);
                neighbours.push(neighbour);
                routes.push(route);
            }
        }
        let mut plan = Self {
            conflicts: too_small
                .into_iter()
                .chain(uplink.missing.clone())
                .collect(),
            ..Self::default()
        };
        plan.items.push(agent_file(settings));
        plan.items.extend(own);
        if !tunnels.is_empty() {
            links.insert(TUNNEL);
            plan.ipv6_on(settings, TUNNEL);
            // The kernel's own messages on a new link would go to every node.
            let path = format!("net/ipv6/conf/{TUNNEL}/addr_gen_mode");
            plan.items.push(sysctl(path, "1"));
        }
        let own = [settings.bridge.as_str(), TUNNEL].into_iter();
        // Somebody has made the pods' bridge the machine's own way, too.
        for link in own.filter(|link| links.contains(link) && *link != uplink.link) {
            plan.learn_nothing(link, actual);
        }
        let links: Vec<&str> = links.into_iter().collect();
        plan.forward(settings, &uplink, &links, actual);
        if !tunnels.is_empty() {
            plan.items.push(LinkUp(TUNNEL.to_owned()).into());
        }
        plan.items.extend(neighbours);
        let count = routes.len();
        plan.items.extend(routes);
        let guarded = guarded::without_ovn(!tunnels.is_empty());
        let table = Table::plain(settings, &guarded);
        plan.items.push(Item::Table(table));
        plan.verdict = vec![
            format!(
                "plain mode, without OVN: {} is not touched, services are kube-proxy's",
                uplink.link
            ),
            format!(
                "{count} subnets of {} other nodes, {} of them behind tunnels",
                settings.peers.len(),
                tunnels.len()
            ),
        ];
        plan.verdict.extend(verdict);
        plan.uplink = Some(uplink.link);
        Ok(plan)
    }
}

/// The subnets for the agent, in the format of its configuration.
fn agent_file(settings: &Settings) -> Item {
    let nets = settings.node_subnets.iter();
    let nets = nets.map(|net| format!("\"{net}\"")).join(", ");
    Item::File(File {
        path: AGENT_FILE.to_owned(),
        text: format!(
            "# Written by `podwire node`, and removed by its cleanup.\nsubnets = [{nets}]\n"
        ),
    })
}

/// The route to a subnet at the other end of a tunnel: the next hop is that node's gateway, whose
/// MAC address is known, so that no request for it goes through all tunnels.
fn by_tunnel(settings: &Settings, peer: &Peer, subnet: &IpNet) -> (Item, Item) {
    let via = gateway(subnet);
    let same = |net: &&IpNet| net.addr().is_ipv4() == subnet.addr().is_ipv4();
    let neighbour = Item::Neighbour(Neighbour {
        link: TUNNEL.to_owned(),
        ip: via,
        mac: mac(gateway(&peer.subnets[0])).to_string(),
    });
    let route = Item::Route(Route {
        destination: *subnet,
        via,
        link: TUNNEL.to_owned(),
        // The node at the other end replies through the tunnel only to addresses of the pod
        // network.
        source: settings.node_subnets.iter().find(same).map(gateway),
    });
    (neighbour, route)
}

/// The tunnel bridge.
fn bridge(settings: &Settings, actual: &Actual, mtu: u32) -> Item {
    let seen = actual.switch.bridges.get(&settings.bridge);
    Item::Bridge(Bridge {
        name: TUNNEL.to_owned(),
        datapath: seen.map(|seen| seen.datapath.clone()).unwrap_or_default(),
        mac: mac(gateway(&settings.node_subnets[0])).to_string(),
        mtu,
        nic: None,
    })
}

/// The link and the address by which a node is reached without a router.
fn near<'a>(
    settings: &Settings,
    actual: &'a Actual,
    peer: &Peer,
    subnet: &IpNet,
) -> Option<(&'a str, IpAddr)> {
    if settings.always_tunnel {
        return None;
    }
    let own = actual
        .addresses
        .iter()
        .filter(|seen| seen.universe && ![TUNNEL, "lo", &settings.bridge].contains(&&*seen.link));
    let same = peer
        .addresses
        .iter()
        .filter(|ip| ip.is_ipv4() == subnet.addr().is_ipv4());
    own.flat_map(|seen| same.clone().map(move |ip| (seen, ip)))
        .find(|(seen, ip)| seen.address.contains(*ip) && seen.address.addr() != **ip)
        .map(|(seen, ip)| (seen.link.as_str(), *ip))
}

/// The first address of a node in a family that the uplink has.
fn remote(actual: &Actual, uplink: &Uplink, peer: &Peer) -> Option<IpAddr> {
    let mut addresses = peer.addresses.iter();
    let has = |v4: bool| {
        let mut own = actual.addresses.iter();
        own.any(|seen| {
            seen.link == uplink.link && seen.global && seen.address.addr().is_ipv4() == v4
        })
    };
    addresses.find(|ip| has(ip.is_ipv4())).copied()
}

/// A unique link name for each node: at most 15 bytes.
fn tunnel_name(node: &str) -> String {
    let digest = firewall::mark(node).replace("podwire ", "");
    format!("pwt{}", &digest[..12])
}
