//! The text of policy.networking.k8s.io, v1alpha1 and v1alpha2: the first policy by priority, and
//! of it the first rule that matches.

use serde_json::Value;

use super::{Oracle, elements, labels, selects};
use crate::world::{Packet, WorldPod};

impl Oracle<'_> {
    /// Whether policies before NetworkPolicies, or after them, let it pass; `None` if they leave it
    /// to others.
    pub(super) fn tier(
        &self,
        is_first: bool,
        pod: &WorldPod,
        packet: &Packet,
        direction: &str,
    ) -> Option<bool> {
        let all = self.world.policies.as_array().unwrap().iter();
        let mut own: Vec<(u64, &Value)> = all
            .filter(|it| it["metadata"]["labels"]["refused"].is_null())
            .filter_map(|policy| {
                let spec = &policy["spec"];
                let (of_first, place) = match policy["kind"].as_str().unwrap() {
                    "ClusterNetworkPolicy" => (spec["tier"] == "Admin", spec["priority"].as_u64()?),
                    "AdminNetworkPolicy" => (true, spec["priority"].as_u64()?),
                    "BaselineAdminNetworkPolicy" => (false, u64::MAX),
                    _ => return None,
                };
                (of_first == is_first).then_some((place, policy))
            })
            .collect();
        own.sort_by_key(|(place, _)| *place);
        let (rules, side, other) = match direction {
            "Ingress" => ("ingress", "from", packet.from),
            _ => ("egress", "to", packet.to),
        };
        for (_, policy) in own {
            let spec = &policy["spec"];
            if !self.is_one(&spec["subject"], pod) {
                continue;
            }
            for rule in elements(&spec[rules]) {
                let action = rule["action"].as_str().unwrap();
                let accepts = matches!(action, "Accept" | "Allow");
                let is_known = matches!(action, "Accept" | "Allow" | "Deny" | "Pass");
                if !is_known || !is_readable(rule, side) {
                    if accepts {
                        continue;
                    }
                    return Some(false);
                }
                let mut peers = elements(&rule[side]);
                let by_peer = peers.any(|peer| {
                    let mut networks = elements(&peer["networks"]);
                    let net = |it: &Value| it.as_str().unwrap().parse::<ipnet::IpNet>().unwrap();
                    networks.any(|it| net(it).contains(&other))
                        || self
                            .world
                            .pod_with(other)
                            .is_some_and(|it| self.is_one(peer, it))
                });
                if by_peer && self.by_protocol(rule, packet) {
                    match action {
                        "Pass" => return None,
                        _ => return Some(accepts),
                    }
                }
            }
        }
        None
    }

    /// Whether a subject, or a peer, is this pod.
    fn is_one(&self, wanted: &Value, pod: &WorldPod) -> bool {
        let mut known = self.world.namespaces.iter();
        let Some((_, namespace)) = known.find(|(name, _)| *name == pod.namespace) else {
            return false;
        };
        let namespace = namespace.as_object().unwrap();
        let (namespaces, pods) = (&wanted["namespaces"], &wanted["pods"]);
        if !namespaces.is_null() {
            return selects(namespaces, namespace);
        }
        !pods.is_null()
            && selects(&pods["namespaceSelector"], namespace)
            && selects(&pods["podSelector"], &labels(pod))
    }

    fn by_protocol(&self, rule: &Value, packet: &Packet) -> bool {
        let mut all = elements(&rule["protocols"])
            .chain(elements(&rule["ports"]))
            .peekable();
        let name = packet.protocol;
        all.peek().is_none()
            || all.any(|it| {
                let of = &it[name.to_lowercase()]["destinationPort"];
                let (one, range) = (&it["portNumber"], &it["portRange"]);
                let is_named = |wanted: &Value| {
                    wanted.is_string()
                        && self.world.pod_with(packet.to).is_some_and(|pod| {
                            let containers = elements(&pod.object["spec"]["containers"]);
                            let mut ports = containers.flat_map(|it| elements(&it["ports"]));
                            ports.any(|port| {
                                port["name"] == *wanted
                                    && port["protocol"] == name
                                    && port["containerPort"] == packet.port
                            })
                        })
                };
                let within = |range: &Value| {
                    let end = |key: &str| range[key].as_u64();
                    end("start") <= Some(packet.port.into())
                        && Some(packet.port.into()) <= end("end")
                };
                of["number"] == packet.port
                    || of["range"].is_object() && within(&of["range"])
                    || one["protocol"] == name && one["port"] == packet.port
                    || range["protocol"] == name && within(range)
                    || is_named(&it["namedPort"])
                    || is_named(&it["destinationNamedPort"])
            })
    }
}

/// Whether everything in a rule is of a kind that is known.
fn is_readable(rule: &Value, side: &str) -> bool {
    let has = |of: &Value, keys: &[&str]| keys.iter().any(|key| !of[*key].is_null());
    let peers: Vec<&Value> = elements(&rule[side]).collect();
    let protocols: Vec<&Value> = elements(&rule["protocols"]).collect();
    let is_named = protocols
        .iter()
        .any(|it| has(it, &["destinationNamedPort"]));
    let is_network = peers.iter().any(|it| has(it, &["networks"]));
    let is_protocol = |it: &&Value| {
        let mut all = ["tcp", "udp", "sctp"].iter();
        has(it, &["destinationNamedPort"])
            || all.any(|name| has(&it[*name]["destinationPort"], &["number", "range"]))
    };
    !peers.is_empty()
        && peers
            .iter()
            .all(|it| has(it, &["namespaces", "pods", "networks"]))
        && protocols.iter().all(is_protocol)
        && !(is_named && is_network)
}
