//! Nodes that `podwire node run` makes a part of the network, and what a controller does for them.

use serde_json::{Value, json};

use super::{CENTRAL_ADDRESS, Central, OvnNode};
use crate::apiserver::{self, ApiServer};
use crate::failure::OrFail;
use crate::node::run_in;
use crate::place::Place;
use crate::words::Words as _;
use crate::{Datapath, datapath};

/// The central machine's IPv6 address on the underlay; the nodes' follow it.
const CENTRAL_IPV6: &str = "fd00:31::1";

/// A router between underlay subnets: a namespace that forwards.
#[derive(Debug)]
pub struct Router(Place);

impl Router {
    /// Its namespace.
    pub fn place(&self) -> &Place {
        &self.0
    }
}

impl Central {
    /// A machine with Open vSwitch and an empty br-int on the underlay that knows of no OVN yet. It
    /// reaches the outside, which is the central machine, by a default route of each family.
    #[track_caller]
    pub fn bare_node(&self, name: &str, number: u8) -> OvnNode {
        let node = self.node_without_controller(name, number);
        self.bare(node, CENTRAL_ADDRESS, CENTRAL_IPV6)
    }

    /// The same, with all addresses on the end of the underlay itself, as on a machine of which
    /// nobody has moved the NIC.
    #[track_caller]
    pub fn bare_node_by_nic(&self, name: &str, number: u8) -> OvnNode {
        let node = self.bare_node(name, number);
        // The machine's own units stay out of it.
        node.run("mount", ["-t", "tmpfs", "none", "/etc/systemd/system"]);
        if node.uplink() != "eth0" {
            node.vsctl(format!("del-br {}", node.uplink()));
            // The userspace datapath is to take packets as they are.
            node.run("ethtool", "-K eth0 tx off");
            node.configure("eth0");
        }
        node
    }

    /// The same, with the end of the underlay in an operator's br-ex, which has its addresses.
    #[track_caller]
    pub fn bare_node_by_bridge(&self, name: &str, number: u8) -> OvnNode {
        let node = self.bare_node(name, number);
        let former = node.uplink();
        let mac = node.run("cat", "/sys/class/net/eth0/address");
        if former == "eth0" {
            node.run("ip", "address flush dev eth0 scope global");
        } else {
            node.vsctl(format!("del-br {former}"));
        }
        let (kind, mac) = (datapath().name(), mac.trim());
        node.vsctl(format!(
            "add-br br-ex -- set bridge br-ex datapath_type={kind} fail_mode=standalone \
             other_config:hwaddr={mac} -- add-port br-ex eth0"
        ));
        node.configure_gateway();
        node.deafen();
        node
    }

    /// The same, on an underlay subnet of its own: all others are reached by the router.
    #[track_caller]
    pub fn bare_node_behind(&self, router: &Router, name: &str, number: u8) -> OvnNode {
        let node = self.plugged(name, number, Some(router.0.clone()));
        let (v4, v6) = (
            format!("172.31.{number}.1"),
            format!("fd00:31:0:{number}::1"),
        );
        let link = format!("to-{name}");
        for address in [format!("{v4}/24"), format!("{v6}/64")] {
            // An option of IPv6 alone.
            let nodad = if address.contains(':') { "nodad" } else { "" };
            let add = format!("address add {address} dev {link} {nodad}");
            run_in(&router.0, "ip", add).or_fail();
        }
        // What the kernel makes by itself comes at a time of its own.
        for link in ["eth0", node.uplink()] {
            node.run("ip", format!("link set {link} addrgenmode none"));
            node.run("ip", format!("-6 address flush dev {link} scope link"));
        }
        self.bare(node, &v4, &v6)
    }

    /// A router between the outside and the underlay subnets of nodes.
    #[track_caller]
    pub fn router(&self) -> Router {
        let place = self.machine().place().with_new_network();
        let target = place.network_path();
        let central = |arguments: &str| self.machine().run("ip", arguments);
        central(&format!(
            "link add to-router type veth peer name outside netns {target}"
        ));
        central("link set to-router master underlay up");
        self.machine().run("ethtool", "-K to-router tx off");
        let router = |arguments: &str| run_in(&place, "ip", arguments);
        router("link set outside up").or_fail();
        let (v4, v6) = ("172.31.0.254", "fd00:31::fe");
        router(&format!("address add {v4}/24 dev outside")).or_fail();
        router(&format!("address add {v6}/64 dev outside nodad")).or_fail();
        let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward; \
                       echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
        run_in(&place, "sh", format!("-c '{forward}'")).or_fail();
        central(&format!("route add 172.31.0.0/16 via {v4}"));
        let outside = format!("{CENTRAL_IPV6}/64");
        central(&format!("address replace {outside} dev underlay nodad"));
        central(&format!("-6 route add fd00:31::/48 via {v6}"));
        Router(place)
    }

    #[track_caller]
    fn bare(&self, node: OvnNode, v4: &str, v6: &str) -> OvnNode {
        let outside = format!("{CENTRAL_IPV6}/64");
        let replace = format!("address replace {outside} dev underlay nodad");
        self.machine().run("ip", replace);
        let (address, uplink) = (node.underlay_ipv6(), node.uplink());
        node.run("ip", format!("address add {address}/64 dev {uplink} nodad"));
        for (family, by) in [("-4", v4), ("-6", v6)] {
            node.run("ip", format!("{family} route add default via {by}"));
        }
        // A userspace datapath's links answer ARP for addresses of the host, which are not theirs.
        let quiet = "echo 8 >/proc/sys/net/ipv4/conf/default/arp_ignore";
        node.run("sh", format!("-c '{quiet}'"));
        node.make_bridge();
        node
    }

    /// The controller's part for a node's host: its switch and the logical port of its management
    /// port, the way out by it, and the way of its own pods to its own addresses.
    #[track_caller]
    pub fn add_host(&self, node: &OvnNode) {
        let (number, name) = (node.number, node.name.as_str());
        self.add_switch(node);
        let (v4, v6) = (
            format!("10.128.{number}.2"),
            format!("fd00:10:128:{number}::2"),
        );
        let port = format!("k8s-{name}");
        let addresses = format!("0a:58:0a:80:{number:02x}:02 {v4} {v6}");
        self.nbctl(format!(
            "lsp-add {name} {port} -- lsp-set-addresses {port} '{addresses}'"
        ));
        for (net, by, ip, own) in [
            (
                format!("10.128.{number}.0/24"),
                &v4,
                "ip4",
                node.tunnel_address(),
            ),
            (
                format!("fd00:10:128:{number}::/64"),
                &v6,
                "ip6",
                node.underlay_ipv6(),
            ),
        ] {
            self.nbctl(format!("--policy=src-ip lr-route-add cluster {net} {by}"));
            let matching = format!("inport == \"rtos-{name}\" && {ip}.dst == {own}");
            self.nbctl(format!(
                "lr-policy-add cluster 1004 '{matching}' reroute {by}"
            ));
        }
    }
}

impl OvnNode {
    /// What the operator has on br-ex: link, addresses and default routes.
    #[track_caller]
    pub fn configure_gateway(&self) {
        self.configure("br-ex");
    }

    #[track_caller]
    fn configure(&self, link: &str) {
        let (v4, v6) = (self.tunnel_address(), self.underlay_ipv6());
        for line in [
            format!("address replace {v4}/24 dev {link}"),
            format!("address replace {v6}/64 dev {link} nodad"),
            format!("link set {link} up"),
            format!("route replace default via {CENTRAL_ADDRESS}"),
            format!("-6 route replace default via {CENTRAL_IPV6}"),
        ] {
            self.run("ip", line);
        }
    }

    /// Has the host hear nothing by its NIC while that is in br-ex: it hears what the userspace
    /// datapath hears, and would refuse what is for pods.
    #[track_caller]
    pub fn deafen(&self) {
        if datapath() == Datapath::Netdev {
            let table = "table netdev deaf { chain in { type filter hook ingress device eth0 \
                         priority 0; policy drop; }; }";
            self.run("nft", [table]);
        }
    }

    /// The node's IPv6 address on the underlay, where it has one.
    pub fn underlay_ipv6(&self) -> String {
        let host = 1 + u16::from(self.number);
        match self.router {
            Some(_) => format!("fd00:31:0:{}::{host}", self.number),
            None => format!("fd00:31::{host}"),
        }
    }

    /// The Node in the API, with the subnets that a controller has given it.
    pub fn api_object(&self) -> Value {
        let number = self.number;
        let subnets = [
            format!("10.128.{number}.0/24"),
            format!("fd00:10:128:{number}::/64"),
        ];
        let mut object = apiserver::node(&self.name, &self.tunnel_address());
        object["metadata"]["annotations"] = json!({
            "k8s.ovn.org/node-subnets": json!({"default": subnets}).to_string(),
        });
        object
    }

    /// The Node in the API of a cluster in plain mode, as kube-controller-manager and kubelet leave
    /// it.
    pub fn plain_object(&self) -> Value {
        let number = self.number;
        let mut object = apiserver::node(&self.name, &self.tunnel_address());
        object["spec"]["podCIDRs"] = json!([
            format!("10.244.{number}.0/24"),
            format!("fd00:10:244:{number}::/64"),
        ]);
        let addresses = object["status"]["addresses"].as_array_mut();
        addresses.into_iter().for_each(|addresses| {
            addresses.push(json!({"type": "InternalIP", "address": self.underlay_ipv6()}));
            addresses.push(json!({"type": "Hostname", "address": self.name}));
        });
        object
    }

    /// As an operator gets it for plain mode, where the agent makes the pods' bridge.
    #[track_caller]
    pub fn without_bridge(&self) {
        self.vsctl("--if-exists del-br br-int");
        let usual = "echo 0 >/proc/sys/net/ipv4/conf/default/arp_ignore";
        self.run("sh", ["-c", usual]);
        if self.uplink() != "eth0" {
            // The userspace datapath's own port answers ARP for the bridge's address, as a tap
            // would not.
            let quiet = "echo 8 >/proc/sys/net/ipv4/conf/eth0/arp_ignore";
            self.run("sh", ["-c", quiet]);
        }
    }

    /// The command line of `podwire node VERB` here in plain mode.
    pub fn plain_arguments(&self, verb: &str, server: &ApiServer) -> String {
        let (name, uplink, url) = (&self.name, self.uplink(), server.url());
        format!(
            "node {verb} --mode plain --node-name {name} --interface {uplink} \
             --k8s-apiserver {url}"
        )
    }

    /// The command line of `podwire node VERB` here. It takes the node's subnets from `server`, or
    /// without one by flags.
    pub fn host_arguments(&self, verb: &str, server: Option<&ApiServer>) -> Vec<String> {
        let (name, uplink, number) = (&self.name, self.uplink(), self.number);
        let subnets = match server {
            Some(server) => format!("--k8s-apiserver {}", server.url()),
            None => format!(
                "--node-subnet 10.128.{number}.0/24 --node-subnet fd00:10:128:{number}::/64"
            ),
        };
        let line = format!(
            "node {verb} --mode ovn --node-name {name} --interface {uplink} {subnets} --mtu 1400 \
             --cluster-subnet 10.128.0.0/14 --cluster-subnet fd00:10:128::/48 \
             --service-cidr 10.96.0.0/16 --service-cidr fd00:10:96::/112 \
             --ovn-remote tcp:172.31.0.1:6642"
        );
        line.words()
    }
}
