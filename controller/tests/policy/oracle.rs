//! Who may reach whom by the text of the API (networking/v1, NetworkPolicySpec), from the objects.

mod tiers;

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::world::{Packet, World, WorldPod};

pub(crate) struct Oracle<'w> {
    world: &'w World,
}

impl<'w> Oracle<'w> {
    pub(crate) fn new(world: &'w World) -> Self {
        Self { world }
    }

    pub(crate) fn passes(&self, packet: &Packet) -> bool {
        let out = self.world.pod_with(packet.from);
        let into = self.world.pod_with(packet.to);
        out.is_none_or(|pod| self.allowed(pod, packet, "Egress"))
            && into.is_none_or(|pod| self.allowed(pod, packet, "Ingress"))
    }

    fn allowed(&self, pod: &WorldPod, packet: &Packet, direction: &str) -> bool {
        let first = self.tier(true, pod, packet, direction);
        let first = first.or_else(|| self.by_network_policies(pod, packet, direction));
        let all = first.or_else(|| self.tier(false, pod, packet, direction));
        all.unwrap_or(true)
    }

    /// `None` if none of them selects the pod.
    fn by_network_policies(
        &self,
        pod: &WorldPod,
        packet: &Packet,
        direction: &str,
    ) -> Option<bool> {
        let all = self.world.policies.as_array().unwrap().iter();
        let isolating: Vec<&Value> = all
            .filter(|policy| policy["kind"] == "NetworkPolicy")
            .filter(|policy| policy["metadata"]["namespace"] == pod.namespace.as_str())
            .filter(|policy| has_type(&policy["spec"], direction))
            .filter(|policy| selects(&policy["spec"]["podSelector"], &labels(pod)))
            .collect();
        let mut allowing = isolating.iter();
        (!isolating.is_empty())
            .then(|| allowing.any(|policy| self.allows(policy, packet, direction)))
    }

    fn allows(&self, policy: &Value, packet: &Packet, direction: &str) -> bool {
        let (rules, peers, other) = match direction {
            "Ingress" => ("ingress", "from", packet.from),
            _ => ("egress", "to", packet.to),
        };
        let own = policy["metadata"]["namespace"].as_str().unwrap();
        elements(&policy["spec"][rules]).any(|rule| {
            let mut ports = elements(&rule["ports"]).peekable();
            let by_port = ports.peek().is_none() || ports.any(|it| self.has_port(it, packet));
            let mut peers = elements(&rule[peers]).peekable();
            by_port && (peers.peek().is_none() || peers.any(|it| self.is_peer(it, other, own)))
        })
    }

    fn is_peer(&self, peer: &Value, address: IpAddr, own: &str) -> bool {
        if let Some(cidr) = peer["ipBlock"]["cidr"].as_str() {
            let within = |cidr: &str| {
                cidr.parse::<IpNet>()
                    .is_ok_and(|net| net.contains(&address))
            };
            let mut except = elements(&peer["ipBlock"]["except"]);
            return within(cidr) && !except.any(|it| within(it.as_str().unwrap()));
        }
        let Some(pod) = self.world.pod_with(address) else {
            return false;
        };
        let (of_pods, of_namespaces) = (&peer["podSelector"], &peer["namespaceSelector"]);
        let in_namespace = match of_namespaces.is_null() {
            true => pod.namespace == own && !of_pods.is_null(),
            false => {
                let mut known = self.world.namespaces.iter();
                let known = known.find(|(name, _)| *name == pod.namespace);
                known.is_some_and(|(_, it)| selects(of_namespaces, it.as_object().unwrap()))
            }
        };
        in_namespace && (of_pods.is_null() || selects(of_pods, &labels(pod)))
    }

    fn has_port(&self, wanted: &Value, packet: &Packet) -> bool {
        if wanted["protocol"].as_str().unwrap_or("TCP") != packet.protocol {
            return false;
        }
        match &wanted["port"] {
            Value::Null => true,
            Value::String(name) => self.world.pod_with(packet.to).is_some_and(|pod| {
                let containers = elements(&pod.object["spec"]["containers"]);
                let mut ports = containers.flat_map(|it| elements(&it["ports"]));
                ports.any(|port| {
                    port["name"] == name.as_str()
                        && port["protocol"] == packet.protocol
                        && port["containerPort"] == packet.port
                })
            }),
            first => {
                let first = first.as_u64().unwrap();
                let last = wanted["endPort"].as_u64().unwrap_or(first);
                (first..=last).contains(&packet.port.into())
            }
        }
    }
}

fn has_type(spec: &Value, direction: &str) -> bool {
    match spec["policyTypes"]
        .as_array()
        .filter(|types| !types.is_empty())
    {
        Some(types) => types.iter().any(|it| it == direction),
        None => direction == "Ingress" || elements(&spec["egress"]).next().is_some(),
    }
}

fn labels(pod: &WorldPod) -> Map<String, Value> {
    pod.object["metadata"]["labels"]
        .as_object()
        .unwrap()
        .clone()
}

fn selects(selector: &Value, labels: &Map<String, Value>) -> bool {
    let equal = selector["matchLabels"].as_object();
    let equal = equal
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let met = |expression: &Value| {
        let value = labels.get(expression["key"].as_str().unwrap());
        let is_one = || elements(&expression["values"]).any(|it| Some(it) == value);
        match expression["operator"].as_str().unwrap() {
            "In" => is_one(),
            "NotIn" => !is_one(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => panic!("{other}"),
        }
    };
    equal && elements(&selector["matchExpressions"]).all(met)
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
