//! What plans are made of: settings, and the state of a machine.

use crate::items::{Actual, ObservedAddress, ObservedLink, ObservedSwitch};
use crate::overlap::{By, InUse};
use crate::settings::{Mode, Peer, Settings};

pub(super) fn settings(subnets: &[&str]) -> Settings {
    Settings {
        mode: Mode::Ovn,
        node_name: "node-a".to_owned(),
        subnets_by_flag: true,
        origins: Default::default(),
        peers: Vec::new(),
        doors: None,
        always_tunnel: false,
        node_subnets: subnets.iter().map(|net| net.parse().unwrap()).collect(),
        cluster_subnets: vec!["10.244.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        interface: None,
        mtu: None,
        encap_ips: Vec::new(),
        encap_port: None,
        bridge_mappings: Default::default(),
        data_bridges: Default::default(),
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
        profile: crate::settings::Profile::Routed,
        shares: false,
        answers_return: true,
        router_leads: false,
        hints: Default::default(),
        moves: false,
    }
}

pub(super) fn machine() -> Actual {
    let link = ObservedLink {
        index: 2,
        up: true,
        mtu: 1500,
        mac: "02:00:00:00:00:01".to_owned(),
        master: None,
        carrier: true,
        kind: String::new(),
        below: None,
    };
    Actual {
        switch: ObservedSwitch {
            answers: true,
            ..ObservedSwitch::default()
        },
        links: [("eth0".to_owned(), link)].into(),
        addresses: vec![ObservedAddress {
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
