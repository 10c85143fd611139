//! Three namespaces with three pods each, a machine outside, and what they send.

use std::net::IpAddr;

use serde_json::{Value, json};

pub(crate) struct World {
    /// Each with its labels.
    pub(crate) namespaces: Vec<(String, Value)>,
    pub(crate) pods: Vec<WorldPod>,
    /// NetworkPolicies and others, as the API server has them.
    pub(crate) policies: Value,
    /// Whether OVN has tiers of ACLs.
    pub(crate) has_tiers: bool,
}

#[derive(Clone)]
pub(crate) struct WorldPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) object: Value,
}

/// A first packet of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
}

/// Neither a pod nor a node.
pub(crate) const OUTSIDE: [&str; 2] = ["192.0.2.10", "2001:db8::10"];

impl World {
    pub(crate) fn new(policies: Value) -> Self {
        let mut world = Self {
            namespaces: Vec::new(),
            pods: Vec::new(),
            policies,
            has_tiers: false,
        };
        for (of, namespace) in ["x", "y", "z"].iter().enumerate() {
            let team = if *namespace == "z" { "blue" } else { "red" };
            let labels = json!({
                "ns": namespace, "kubernetes.io/metadata.name": namespace, "team": team,
            });
            world.namespaces.push(((*namespace).to_owned(), labels));
            for (number, name) in ["a", "b", "c"].iter().enumerate() {
                let (of, number) = (of + 1, number + 1);
                // One name with another number in each, and none in the last.
                let named = |protocol: &str, number: u16| {
                    let name = format!("on-{}", protocol.to_lowercase());
                    json!({ "name": name, "protocol": protocol, "containerPort": number })
                };
                let number_of_it = 79 + number as u16;
                let ports = match *name {
                    "c" => json!([]),
                    _ => json!([named("TCP", number_of_it), named("UDP", 82 - number as u16)]),
                };
                let sctp = json!([named("SCTP", 80)]);
                let addresses = [
                    format!("10.0.{of}.{number}"),
                    format!("fd00::{of}:{number}"),
                ];
                world.pods.push(WorldPod {
                    namespace: (*namespace).to_owned(),
                    name: (*name).to_owned(),
                    addresses: addresses.map(|it| it.parse().unwrap()),
                    object: json!({
                        "metadata": {
                            "namespace": namespace, "name": name,
                            "uid": format!("{namespace}{name}"),
                            "labels": { "pod": name },
                        },
                        "spec": { "nodeName": "n", "containers": [
                            { "ports": ports }, { "ports": sctp },
                        ] },
                    }),
                });
            }
        }
        world
    }

    /// With policies of the whole cluster.
    pub(crate) fn tiered(policies: Value) -> Self {
        Self {
            has_tiers: true,
            ..Self::new(policies)
        }
    }

    /// One of some changes that are not of policies.
    pub(crate) fn relabel(&mut self, step: usize) {
        match step {
            0 => self.pods[0].object["metadata"]["labels"] = json!({ "pod": "b" }),
            1 => self.namespaces[1].1["team"] = "blue".into(),
            2 => {
                let ports = &mut self.pods[3].object["spec"]["containers"][0]["ports"];
                ports[0]["containerPort"] = 81.into();
            }
            3 => drop(self.pods.remove(4)),
            4 => drop(self.namespaces.remove(2)),
            _ => self.pods[1].object["metadata"]["labels"] = json!({}),
        }
    }

    pub(crate) fn pod_with(&self, address: IpAddr) -> Option<&WorldPod> {
        self.pods
            .iter()
            .find(|pod| pod.addresses.contains(&address))
    }
}

impl WorldPod {
    /// One more of its kind.
    pub(crate) fn again(&self) -> Self {
        let mut other = self.clone();
        other.name = "again".to_owned();
        other.object["metadata"]["name"] = "again".into();
        other.addresses = ["10.0.9.9", "fd00::9:9"].map(|it| it.parse().unwrap());
        other
    }
}

impl Packet {
    /// `x/a` to `y/b:80/TCP`, by IPv4 unless the protocol ends in 6.
    pub(crate) fn parse(world: &World, from: &str, to: &str) -> Self {
        let (to, port) = to.split_once(':').unwrap();
        let (port, protocol) = port.split_once('/').unwrap();
        let family = usize::from(protocol.ends_with('6'));
        let address = |text: &str| match text {
            "outside" => OUTSIDE[family].parse().unwrap(),
            _ => {
                let mut pods = world.pods.iter();
                let pod = pods.find(|pod| format!("{}/{}", pod.namespace, pod.name) == text);
                pod.unwrap().addresses[family]
            }
        };
        let name = protocol.trim_end_matches('6');
        Self {
            from: address(from),
            to: address(to),
            protocol: PROTOCOLS.into_iter().find(|it| *it == name).unwrap(),
            port: port.parse().unwrap(),
        }
    }
}

const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// From everybody to everybody else, by each protocol and some ports.
pub(crate) fn probes(world: &World) -> impl Iterator<Item = Packet> {
    let mut found = Vec::new();
    for (family, outside) in OUTSIDE.iter().enumerate() {
        let pods = world.pods.iter().map(|pod| pod.addresses[family]);
        let all: Vec<IpAddr> = pods.chain([outside.parse().unwrap()]).collect();
        for from in &all {
            for to in all.iter().filter(|to| *to != from) {
                for protocol in PROTOCOLS {
                    for port in [80, 81, 8080] {
                        found.push(Packet {
                            from: *from,
                            to: *to,
                            protocol,
                            port,
                        });
                    }
                }
            }
        }
    }
    found.into_iter()
}
