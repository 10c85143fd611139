//! A physical network beside a bridge of a node, with hosts on it.

use serde_json::{Value, json};

use crate::agent::AgentOptions;
use crate::datapath;
use crate::dhcp::{self, Dhcp};
use crate::failure::{OrFail, Step};
use crate::links;
use crate::node::{TestNode, run_in};
use crate::place::Place;
use crate::pod::Pod;

/// The first host's address.
pub const HOST: &str = "198.51.100.1";

/// Its IPv6 address.
pub const HOST6: &str = "2001:db8:1::1";

/// The node's end of the link to the first host; that of another one begins with it.
const WIRE: &str = "wire";

/// A host on VLAN 100 of a bridge br1, for a DHCP server.
#[derive(Debug)]
pub struct Outside<'node> {
    node: &'node TestNode,
    place: Place,
}

impl<'node> Outside<'node> {
    /// Makes br1 and the host.
    #[track_caller]
    pub fn of(node: &'node TestNode) -> Self {
        let datapath = datapath().name();
        node.vsctl(format!(
            "add-br br1 -- set bridge br1 datapath_type={datapath} fail_mode=standalone"
        ));
        let place = host(node, WIRE, HOST);
        Self { node, place }
    }

    /// Where the host's programs run.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A pod whose interface on the network is net1.
    pub fn pod(&self, name: &str) -> Pod<'node> {
        let mut pod = self.node.pod(name);
        pod.interface = "net1".into();
        pod
    }

    /// An agent that is killed with a lease which no ADD has answered leaves it to the next one,
    /// which gives it back.
    #[track_caller]
    pub fn kill_with_a_lease(&self, server: &Dhcp, conf: &Value) {
        let options = AgentOptions::default();
        let agent = self.node.start_agent(&options.killed_at("add-leased"));
        let pod = self.pod("web");
        assert_eq!(pod.exec("ADD", conf).error().code, 11);
        agent.await_end();
        assert_eq!(server.clients().len(), 1);
        let _agent = self.node.start_agent(&AgentOptions::default());
        server.await_count("DHCPRELEASE", 1);
        assert_eq!(server.clients(), [""; 0]);
        self.assert_no_leftovers();
    }

    /// Another host with this address, which is there until it is dropped.
    #[track_caller]
    pub fn neighbour(&self, address: &str) -> Place {
        host(self.node, &format!("{WIRE}-2"), address)
    }

    /// Starts dnsmasq(8), which gives the addresses between these two, and has further arguments.
    #[track_caller]
    pub fn serve(&self, first: u8, last: u8, more: &[&str]) -> Dhcp {
        let range = format!("--dhcp-range=198.51.100.{first},198.51.100.{last},120");
        let mut arguments = vec![
            &*range,
            "--no-ping",
            "--dhcp-option=3,198.51.100.1",
            "--dhcp-option=6,198.51.100.53",
            "--domain=example.org",
        ];
        arguments.extend(more);
        Dhcp::dnsmasq(self.node, &self.place, &arguments)
    }

    /// Starts Kea with leases of so many seconds, a quarter of which is T1 and a half T2.
    #[track_caller]
    pub fn serve_for(&self, seconds: u32) -> Dhcp {
        let dhcp4: Value = json!({
            "authoritative": true,
            "valid-lifetime": seconds, "renew-timer": seconds / 4, "rebind-timer": seconds / 2,
            "subnet4": [{
                "id": 1, "subnet": "198.51.100.0/24",
                "pools": [{ "pool": "198.51.100.50 - 198.51.100.99" }],
                "option-data": [{ "name": "routers", "data": HOST }],
            }],
        });
        Dhcp::kea(self.node, &self.place, &dhcp4)
    }

    /// Gives the host an IPv6 address too, and has radvd(8) say these lines of its network.
    #[track_caller]
    pub fn advertise(&self, lines: &str) -> Dhcp {
        self.has_ipv6();
        Dhcp::radvd(self.node, &self.place, lines)
    }

    /// The same by dnsmasq(8) with these arguments.
    #[track_caller]
    pub fn serve_ipv6(&self, arguments: &[&str]) -> Dhcp {
        self.has_ipv6();
        let mut all = vec!["--enable-ra", "--log-dhcp"];
        all.extend(arguments);
        Dhcp::dnsmasq(self.node, &self.place, &all)
    }

    /// Starts Kea with leases of IPv6 addresses of so many seconds, a quarter of which is T1 and a
    /// half T2. Servers of different numbers have different identifiers.
    #[track_caller]
    pub fn serve_ipv6_for(&self, seconds: u32, number: u8) -> Dhcp {
        self.has_ipv6();
        let dhcp6: Value = json!({
            "server-id": {
                "type": "EN", "enterprise-id": 9, "identifier": format!("0{number}"),
                "persist": false,
            },
            "valid-lifetime": seconds, "preferred-lifetime": seconds,
            "renew-timer": seconds / 4, "rebind-timer": seconds / 2,
            "subnet6": [{
                "id": 1, "subnet": "2001:db8:1::/64", "interface": "eth0",
                "pools": [{ "pool": "2001:db8:1::50 - 2001:db8:1::99" }],
            }],
        });
        Dhcp::kea6(self.node, &self.place, &dhcp6)
    }

    #[track_caller]
    fn has_ipv6(&self) {
        // A neighbour that says that it is no router is nobody's default router any more.
        let forward = || std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        self.place.run(forward).step(|| "set forwarding").or_fail();
        let add = format!("address replace {HOST6}/64 dev eth0 nodad");
        run_in(&self.place, "ip", add).or_fail();
        links::await_link_local(&self.place, "eth0");
    }

    /// Panics if pods have left something on the node.
    #[track_caller]
    pub fn assert_no_leftovers(&self) {
        let mut left = self.node.leftovers();
        left.links.retain(|link| !link.starts_with(WIRE));
        left.rows.retain(|row| !row.contains(WIRE));
        left.assert_none();
    }

    /// Has the host hear of DHCP only what is for every server, or all again.
    #[track_caller]
    pub fn hear_only_broadcasts(&self, so: bool) {
        dhcp::hear_only_broadcasts(&self.place, so);
    }
}

/// A host behind a new link of the node, which is a port of br1.
#[track_caller]
fn host(node: &TestNode, link: &str, address: &str) -> Place {
    let place = node.place().with_new_network();
    let namespace = place.network_path();
    let peer = format!("type veth peer name eth0 netns {namespace}");
    node.run("ip", format!("link add {link} {peer}"));
    node.run("ip", format!("link set {link} up"));
    let length = if address.contains(':') { "64" } else { "24" };
    let add = format!("address add {address}/{length} dev eth0 nodad");
    for line in ["link set eth0 up", &*add] {
        run_in(&place, "ip", line).or_fail();
    }
    // The userspace datapath takes packets as they are, without checksums that hardware adds.
    for (place, link) in [(node.place(), link), (&place, "eth0")] {
        run_in(place, "ethtool", format!("-K {link} tx off")).or_fail();
    }
    node.vsctl(format!("add-port br1 {link} tag=100"));
    place
}
