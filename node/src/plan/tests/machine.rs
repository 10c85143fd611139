//! A machine in memory, on which steps are taken as the real one takes them.

use crate::actual::{
    Actual, AddressSeen, BridgeSeen, LinkSeen, NeighbourSeen, PortSeen, RouteSeen, SslSeen,
    SwitchSeen, TableSeen, TunnelSeen,
};
use crate::diff::{self, Step};
use crate::journal::Undo;
use crate::overlap::{By, InUse};
use crate::plan::{Item, Plan};
use crate::settings::{Mode, Peer, Settings};
use crate::{LINK, TUNNEL};

pub(super) fn settings(subnets: &[&str]) -> Settings {
    Settings {
        mode: Mode::Ovn,
        node_name: "node-a".to_owned(),
        subnets_by_flag: true,
        origins: Default::default(),
        peers: Vec::new(),
        always_tunnel: false,
        node_subnets: subnets.iter().map(|net| net.parse().unwrap()).collect(),
        cluster_subnets: vec!["10.244.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        interface: None,
        mtu: None,
        encap_ips: Vec::new(),
        encap_port: None,
        bridge_mappings: Default::default(),
        ovn_options: Default::default(),
        tuning: Default::default(),
        firewalld: crate::settings::Firewalld::Runtime,
        tls: Some(podwire_ovs::client::TlsKeys {
            private_key: "/k".into(),
            certificate: "/c".into(),
            ca_certificate: "/a".into(),
        }),
        ovn_remote: Some("tcp:192.0.2.9:6642".to_owned()),
        bridge: "br-int".to_owned(),
    }
}

pub(super) fn machine() -> Actual {
    let link = LinkSeen {
        index: 2,
        up: true,
        mtu: 1500,
        mac: "02:00:00:00:00:01".to_owned(),
    };
    Actual {
        switch: SwitchSeen {
            answers: true,
            root: Some(uuid(1)),
            bridges: [("br-int".to_owned(), bridge(2, false))].into(),
            ..SwitchSeen::default()
        },
        links: [("eth0".to_owned(), link)].into(),
        addresses: vec![AddressSeen {
            link: "eth0".to_owned(),
            address: "192.0.2.11/24".parse().unwrap(),
            ours: false,
            universe: true,
            global: true,
        }],
        default_link: Some("eth0".to_owned()),
        has_ipv6: true,
        in_use: vec![
            in_use("192.0.2.0/24", By::Link("eth0".to_owned())),
            in_use("192.0.2.1/32", By::Gateway),
            in_use("203.0.113.5/32", By::Server("API server".to_owned())),
        ],
        ..Actual::default()
    }
}

pub(super) fn in_use(net: &str, by: By) -> InUse {
    let net = net.parse().unwrap();
    InUse { net, by }
}

pub(super) fn bridge(number: u8, ours: bool) -> BridgeSeen {
    BridgeSeen {
        uuid: uuid(number),
        datapath: "netdev".to_owned(),
        mac: None,
        local: None,
        mtu_request: None,
        ours,
    }
}

pub(super) fn uuid(number: u8) -> podwire_ovs::value::Uuid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}")
        .parse()
        .unwrap()
}

/// What a machine looks like once a step is taken.
pub(super) fn take(actual: &mut Actual, step: &Step) {
    let (item, made) = match step {
        Step::Make(item) => (item, true),
        Step::Remove(item) => (item, false),
    };
    match item {
        Item::Key { key, value, .. } if made => {
            let was = actual.switch.keys.insert(key.clone(), value.clone());
            actual.switch.owned.entry(key.clone()).or_insert(was);
        }
        Item::Key { key, .. } => match actual.switch.owned.remove(key).flatten() {
            Some(was) => drop(actual.switch.keys.insert(key.clone(), was)),
            None => drop(actual.switch.keys.remove(key)),
        },
        Item::Port(port) if made => {
            let link = LinkSeen {
                index: 7,
                up: false,
                mtu: port.mtu,
                mac: port.mac.clone(),
            };
            actual.links.insert(LINK.to_owned(), link);
            actual.switch.port = Some(PortSeen {
                uuid: uuid(3),
                interface: Some(uuid(4)),
                bridge: Some((port.bridge.clone(), uuid(2))),
                kind: "internal".to_owned(),
                iface_id: Some(port.iface_id.clone()),
                mac: Some(port.mac.clone()),
                mtu_request: Some(port.mtu),
                mark: Some(crate::MADE.to_owned()),
                error: None,
            });
        }
        Item::Port(_) => {
            actual.switch.port = None;
            actual.links.remove(LINK);
        }
        Item::Ssl(keys) => {
            actual.switch.ssl = made.then(|| SslSeen {
                uuid: uuid(9),
                keys: keys.clone(),
                ours: true,
            });
        }
        Item::Bridge(bridge) if made => {
            let link = LinkSeen {
                index: 8,
                up: false,
                mtu: bridge.mtu,
                mac: bridge.mac.clone(),
            };
            actual.links.insert(TUNNEL.to_owned(), link);
            let seen = BridgeSeen {
                mac: Some(bridge.mac.clone()),
                mtu_request: Some(bridge.mtu),
                ..self::bridge(5, true)
            };
            actual.switch.bridges.insert(bridge.name.clone(), seen);
        }
        Item::Bridge(bridge) => {
            actual.switch.bridges.remove(&bridge.name);
            actual.switch.tunnels.clear();
            actual.links.remove(TUNNEL);
        }
        Item::Tunnel(tunnel) if made => {
            let seen = TunnelSeen {
                port: uuid(6),
                interface: uuid(7),
                remote: Some(tunnel.remote.to_string()),
                node: tunnel.node.clone(),
                protected: true,
            };
            actual.switch.tunnels.insert(tunnel.name.clone(), seen);
        }
        Item::Tunnel(tunnel) => drop(actual.switch.tunnels.remove(&tunnel.name)),
        Item::File { path, text } if made => {
            actual.files.insert(path.clone(), text.clone());
        }
        Item::File { path, .. } => drop(actual.files.remove(path)),
        Item::LinkUp(name) => {
            if let Some(link) = actual.links.get_mut(name) {
                link.up = made;
            }
        }
        Item::Address(net) => {
            actual.addresses.retain(|seen| seen.address != *net);
            if made {
                actual.addresses.push(AddressSeen {
                    link: LINK.to_owned(),
                    address: *net,
                    ours: true,
                    universe: true,
                    global: true,
                });
            }
        }
        Item::Neighbour { link, ip, mac } => {
            actual.neighbours.retain(|seen| seen.ip != *ip);
            if made {
                actual.neighbours.push(NeighbourSeen {
                    link: link.clone(),
                    ip: *ip,
                    mac: Some(mac.clone()),
                    permanent: true,
                    ours: true,
                });
            }
        }
        Item::Route(route) => {
            actual
                .routes
                .retain(|seen| seen.destination != route.destination);
            if made {
                actual.routes.push(RouteSeen {
                    destination: route.destination,
                    via: Some(route.via),
                    link: Some(route.link.clone()),
                    source: route.source,
                    ours: true,
                    protocol: crate::PROTOCOL,
                    table: 254,
                    metric: 0,
                });
            }
        }
        Item::Sysctl { path, value } => {
            actual.sysctls.insert(path.clone(), value.clone());
        }
        Item::TunnelPort { chassis, port } => {
            let ends = actual.switch.ends.iter_mut().flatten();
            for end in ends.filter(|end| end.chassis == *chassis) {
                end.port = Some(port.to_string());
            }
        }
        Item::Firewalld(rule) => {
            let seen = actual.firewalld.as_mut().unwrap();
            if made {
                seen.rules.insert(rule.clone(), rule.zone.clone());
                if rule.permanent {
                    actual.switch.owned.insert(rule.mark(), None);
                }
            } else {
                seen.rules.remove(rule);
                actual.switch.owned.remove(&rule.mark());
            }
        }
        Item::Services | Item::Former(_) => {}
        Item::Table(table) => {
            actual.table = made.then(|| TableSeen {
                chains: table.chains.iter().map(|(name, _)| name.clone()).collect(),
                rules: table.marks(),
            });
        }
    }
}

/// Takes all steps that there are, and those that follow from them.
pub(super) fn converge(plan: &Plan, actual: &mut Actual, journal: &[Undo]) -> Vec<Step> {
    let mut done = Vec::new();
    for _ in 0..5 {
        for item in &plan.items {
            if let Item::Sysctl { path, .. } = item
                && path
                    .split('/')
                    .nth(3)
                    .is_some_and(|link| link == "all" || actual.links.contains_key(link))
            {
                actual
                    .sysctls
                    .entry(path.clone())
                    .or_insert_with(|| "0".to_owned());
            }
        }
        let steps = diff::steps(&diff::findings(plan, actual, journal, false));
        steps.iter().for_each(|step| take(actual, step));
        done.extend(steps);
    }
    done
}

/// Another node of plain mode.
pub(super) fn peer(name: &str, subnets: &[&str], addresses: &[&str]) -> Peer {
    Peer {
        name: name.to_owned(),
        subnets: subnets.iter().map(|net| net.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

pub(super) fn plain(peers: Vec<Peer>) -> Settings {
    Settings {
        mode: Mode::Plain,
        peers,
        cluster_subnets: Vec::new(),
        service_cidrs: Vec::new(),
        ovn_remote: None,
        tls: None,
        ..settings(&["10.244.1.0/24", "fd00:10:244:1::/64"])
    }
}
