//! The plan of plain mode: no OVN and no controller. Each node's subnets are its podCIDRs; pods of
//! other nodes are reached by routes where the nodes share a network, else by tunnels of Open
//! vSwitch's own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{Bridge, Item, Plan, Route, Tunnel, Uplink, gateway, overhead, uplink};
use crate::actual::Actual;
use crate::firewall::{self, Table};
use crate::settings::{Peer, Settings};
use crate::{TUNNEL, mac};

/// Where the agent looks for what its node role has found out.
pub(crate) const AGENT_FILE: &str = "/run/podwire/node/agent.toml";

impl Plan {
    /// The plan of plain mode. The pods' bridge and the gateway addresses on it are the agent's.
    ///
    /// # Errors
    /// What is missing, or which subnets overlap, in words.
    pub(super) fn plain(settings: &Settings, actual: &Actual) -> Result<Self, String> {
        let uplink = uplink(settings, actual)?;
        refuse_overlaps(settings, actual)?;
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
        for (peer, remote, subnets) in &tunnels {
            if own.is_empty() {
                own.push(bridge(settings, actual, &uplink, *remote));
            }
            own.push(Item::Tunnel(Tunnel {
                name: tunnel_name(&peer.name),
                node: peer.name.clone(),
                remote: *remote,
            }));
            for subnet in subnets {
                let (neighbour, route) = by_tunnel(settings, peer, subnet);
                neighbours.push(neighbour);
                routes.push(route);
            }
        }
        let mut plan = Self::default();
        plan.items.push(agent_file(settings));
        plan.items.extend(own);
        if !tunnels.is_empty() {
            links.insert(TUNNEL);
            plan.ipv6_on(settings, TUNNEL);
            // What the kernel says by itself on a new link would go to every node.
            plan.items.push(Item::Sysctl {
                path: format!("net/ipv6/conf/{TUNNEL}/addr_gen_mode"),
                value: "1".to_owned(),
            });
        }
        let links: Vec<&str> = links.into_iter().collect();
        plan.forward(settings, &uplink, &links, actual);
        if !tunnels.is_empty() {
            plan.items.push(Item::LinkUp(TUNNEL.to_owned()));
        }
        plan.items.extend(neighbours);
        let count = routes.len();
        plan.items.extend(routes);
        plan.items.push(Item::Table(Table::plain(settings)));
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

/// The subnets for the agent, in its own configuration's form.
fn agent_file(settings: &Settings) -> Item {
    let nets = settings.node_subnets.iter();
    let nets: Vec<String> = nets.map(|net| format!("\"{net}\"")).collect();
    Item::File {
        path: AGENT_FILE.to_owned(),
        text: format!(
            "# Written by `podwire node`, and removed by its cleanup.\nsubnets = [{}]\n",
            nets.join(", ")
        ),
    }
}

/// The way to a subnet at the other end of a tunnel: the next hop is that node's own gateway, whose
/// MAC is known beforehand, so that nobody has to be asked for it by all tunnels.
fn by_tunnel(settings: &Settings, peer: &Peer, subnet: &IpNet) -> (Item, Item) {
    let via = gateway(subnet);
    let same = |net: &&IpNet| net.addr().is_ipv4() == subnet.addr().is_ipv4();
    let neighbour = Item::Neighbour {
        link: TUNNEL.to_owned(),
        ip: via,
        mac: mac::of_ip(gateway(&peer.subnets[0])),
    };
    let route = Item::Route(Route {
        destination: *subnet,
        via,
        link: TUNNEL.to_owned(),
        // The node at the other end answers by the tunnel only what came from a pod's network.
        source: settings.node_subnets.iter().find(same).map(gateway),
    });
    (neighbour, route)
}

/// The bridge of the tunnels, whose ends are of this address's family.
fn bridge(settings: &Settings, actual: &Actual, uplink: &Uplink, remote: IpAddr) -> Item {
    let seen = actual.switch.bridges.get(&settings.bridge);
    Item::Bridge(Bridge {
        name: TUNNEL.to_owned(),
        datapath: seen.map(|seen| seen.datapath.clone()).unwrap_or_default(),
        mac: mac::of_ip(gateway(&settings.node_subnets[0])),
        mtu: settings
            .mtu
            .unwrap_or(uplink.mtu.saturating_sub(overhead(&[remote]))),
    })
}

/// The link and the address by which a node is reached without a router between.
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

/// The first address of a node of a family that the uplink has.
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

/// A link's name of its own for each node: 15 bytes at most.
fn tunnel_name(node: &str) -> String {
    let digest = firewall::mark(node).replace("podwire ", "");
    format!("pwt{}", &digest[..12])
}

/// Two nodes with one subnet give two pods one address; a subnet that is also the network's hides
/// machines from pods.
fn refuse_overlaps(settings: &Settings, actual: &Actual) -> Result<(), String> {
    let overlap = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
    let peers = &settings.peers;
    let own = std::iter::once((settings.node_name.as_str(), &settings.node_subnets));
    let all = own.chain(peers.iter().map(|peer| (peer.name.as_str(), &peer.subnets)));
    let mut all: Vec<(&IpNet, &str)> = all
        .flat_map(|(name, nets)| nets.iter().map(move |net| (net, name)))
        .collect();
    // A net sorts right behind one that contains it, or behind another of those.
    all.sort_by_key(|(net, _)| (net.network(), net.prefix_len()));
    let mut widest: Option<(&IpNet, &str)> = None;
    for (net, name) in &all {
        match widest {
            Some((wide, of)) if overlap(wide, net) => {
                return Err(format!(
                    "subnet {net} of node {name} overlaps {wide} of node {of}: give each node \
                     podCIDRs of its own"
                ));
            }
            _ => widest = Some((net, name)),
        }
    }
    let networks = actual
        .addresses
        .iter()
        .filter(|seen| seen.universe && ![TUNNEL, &settings.bridge].contains(&&*seen.link));
    for seen in networks {
        if let Some((net, name)) = all.iter().find(|(net, _)| overlap(net, &seen.address)) {
            return Err(format!(
                "subnet {net} of node {name} overlaps {} of link {}: give the cluster other \
                 podCIDRs",
                seen.address, seen.link
            ));
        }
    }
    Ok(())
}
