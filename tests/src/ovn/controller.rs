//! The part of ovn-kubernetes' master that a node depends on: a router, a switch for each node, a
//! logical port for each pod, and the annotation that tells the node of it.

use serde_json::{Value, json};

use super::{Central, NORTHBOUND, OvnNode, SOUTHBOUND};
use crate::failure::OrFail;
use crate::words::Words;
use crate::{Agent, Pod, conf};

const ROUTER: &str = "cluster";

/// The logical port of pod number `number` of a node's subnets.
#[derive(Debug, Clone)]
pub struct LogicalPort {
    /// Its name: the pod's iface-id.
    pub name: String,
    /// The node, whose switch it is on.
    pub node: String,
    /// The node's number.
    pub subnet: u8,
    /// The pod's number.
    pub number: u8,
    /// `options:iface-id-ver`, the uid of the pod that may be bound to it.
    pub uid: Option<String>,
    /// `options:requested-chassis`, the only one that may claim it.
    pub chassis: Option<String>,
}

impl LogicalPort {
    /// As ovn-kubernetes makes it for a pod on a node.
    pub fn of(pod: &Pod<'_>, node: &OvnNode, number: u8) -> LogicalPort {
        LogicalPort {
            name: format!("{}_{}", pod.namespace, pod.name),
            node: node.name.clone(),
            subnet: node.number,
            number,
            uid: Some(pod.uid.clone()),
            chassis: Some(node.name.clone()),
        }
    }

    /// The pod's IPv4 address.
    pub fn ipv4(&self) -> String {
        format!("10.128.{}.{}", self.subnet, self.number)
    }

    /// The pod's IPv6 address.
    pub fn ipv6(&self) -> String {
        format!("fd00:10:128:{:x}::{:x}", self.subnet, self.number)
    }

    /// The pod's MAC address: `0a:58` and its IPv4 address.
    pub fn mac(&self) -> String {
        format!("0a:58:0a:80:{:02x}:{:02x}", self.subnet, self.number)
    }

    /// The entry of the pod's `k8s.ovn.org/pod-networks` annotation.
    pub fn entry(&self) -> Value {
        json!({
            "ip_addresses": [format!("{}/24", self.ipv4()), format!("{}/64", self.ipv6())],
            "mac_address": self.mac(),
            "gateway_ips": [gateway_v4(self.subnet), gateway_v6(self.subnet)],
        })
    }
}

fn gateway_v4(subnet: u8) -> String {
    format!("10.128.{subnet}.1")
}

fn gateway_v6(subnet: u8) -> String {
    format!("fd00:10:128:{subnet:x}::1")
}

impl Central {
    /// Runs ovn-nbctl.
    #[track_caller]
    pub fn nbctl(&self, arguments: impl Words) -> String {
        self.ctl("ovn-nbctl", NORTHBOUND, arguments)
    }

    /// Runs ovn-sbctl.
    #[track_caller]
    pub fn sbctl(&self, arguments: impl Words) -> String {
        self.ctl("ovn-sbctl", SOUTHBOUND, arguments)
    }

    #[track_caller]
    fn ctl(&self, tool: &str, socket: &str, arguments: impl Words) -> String {
        let arguments = arguments.after(&format!("--timeout=15 --db=unix:{socket}"));
        self.machine().run(tool, arguments)
    }

    /// Makes the switch of a node, behind the cluster's router.
    #[track_caller]
    pub fn add_switch(&self, node: &OvnNode) {
        let (name, number) = (node.name.as_str(), node.number);
        let (to_switch, to_router) = (format!("rtos-{name}"), format!("stor-{name}"));
        let mac = format!("0a:58:0a:80:{number:02x}:01");
        let (v4, v6) = (gateway_v4(number), gateway_v6(number));
        self.nbctl(format!(
            "--may-exist lr-add {ROUTER} -- ls-add {name} \
             -- lrp-add {ROUTER} {to_switch} {mac} {v4}/24 {v6}/64 \
             -- lsp-add {name} {to_router} \
             -- lsp-set-type {to_router} router \
             -- lsp-set-options {to_router} router-port={to_switch} \
             -- lsp-set-addresses {to_router} router"
        ));
    }

    /// Makes a pod's logical port; ovn-northd and the controllers follow in their time.
    #[track_caller]
    pub fn add_port(&self, port: &LogicalPort) {
        let addresses = format!("{} {} {}", port.mac(), port.ipv4(), port.ipv6());
        let (name, node) = (&port.name, &port.node);
        let mut options = String::new();
        for (key, value) in [
            ("iface-id-ver", &port.uid),
            ("requested-chassis", &port.chassis),
        ] {
            let pair = value.iter().map(|value| format!(" {key}={value}"));
            options.extend(pair);
        }
        self.nbctl(format!(
            "lsp-add {node} {name} -- lsp-set-addresses {name} '{addresses}' \
             -- lsp-set-options {name}{options}"
        ));
    }

    /// A pod on a node, annotated and with its logical port made.
    #[track_caller]
    pub fn schedule<'node>(
        &self,
        node: &'node OvnNode,
        name: &str,
        number: u8,
    ) -> (Pod<'node>, LogicalPort) {
        let (pod, port) = self.announce(node, name, number);
        self.add_port(&port);
        (pod, port)
    }

    /// An agent on each node, and on each a pod that was added: web, then db.
    #[track_caller]
    pub fn pod_on_each<'node>(
        &self,
        nodes: &'node [OvnNode; 2],
    ) -> ([Agent<'node>; 2], [(Pod<'node>, LogicalPort); 2]) {
        let agents = nodes
            .each_ref()
            .map(|node| node.start_agent(&OvnNode::agent_options()));
        let pods = [
            self.schedule(&nodes[0], "web", 11),
            self.schedule(&nodes[1], "db", 12),
        ];
        for (pod, _) in &pods {
            pod.add().success();
        }
        (agents, pods)
    }

    /// A pod on a node, annotated; its logical port is yet to be made.
    #[track_caller]
    pub fn announce<'node>(
        &self,
        node: &'node OvnNode,
        name: &str,
        number: u8,
    ) -> (Pod<'node>, LogicalPort) {
        let pod = node.pod(name);
        let port = LogicalPort::of(&pod, node, number);
        (pod.on_default_network(&port.entry()), port)
    }

    /// A pod on VLAN 100 of a physical network, with address 192.0.2.11/24; with its network
    /// configuration.
    #[track_caller]
    pub fn on_physical_network<'node>(
        &self,
        node: &'node OvnNode,
        name: &str,
        network: &str,
    ) -> (Pod<'node>, Value) {
        self.nbctl(format!(
            "ls-add lan -- lsp-add lan lan-physical '' 100 -- lsp-set-type lan-physical localnet \
             -- lsp-set-addresses lan-physical unknown \
             -- lsp-set-options lan-physical network_name={network}"
        ));
        let mut pod = node.pod(name);
        let mut port = LogicalPort::of(&pod, node, 11);
        port.node = "lan".to_owned();
        port.name = format!("blue.lan_{}_{name}", pod.namespace);
        self.add_port(&port);
        pod.interface = "net1".to_owned();
        let entry = json!({"ip_addresses": ["192.0.2.11/24"], "mac_address": port.mac()});
        let mut lan = conf();
        for (field, value) in [
            ("name", "lan"),
            ("topology", "localnet"),
            ("netAttachDefName", "blue/lan"),
            ("physicalNetworkName", network),
        ] {
            lan[field] = value.into();
        }
        let pod = pod.annotate("k8s.ovn.org/pod-networks", &json!({"blue/lan": entry}));
        (pod, lan)
    }

    /// Removes a logical port.
    #[track_caller]
    pub fn remove_port(&self, name: &str) {
        self.nbctl(format!("lsp-del {name}"));
    }

    /// Waits until OVN says of a logical port that it is up, or down.
    #[track_caller]
    pub fn await_up(&self, name: &str, up: bool) {
        self.northbound()
            .wait(
                "Logical_Switch_Port",
                json!([["name", "==", name]]),
                "==",
                &["up"],
                json!([{ "up": up }]),
            )
            .or_fail();
    }

    /// Waits until every chassis has taken up what the northbound database says now.
    #[track_caller]
    pub fn sync(&self) {
        self.nbctl("--wait=hv sync");
    }
}
