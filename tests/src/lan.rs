//! The network around a machine, with all that a machine has to reach.

use std::net::IpAddr;

use crate::dhcp;
pub use crate::dhcp::Dhcp;
use crate::failure::OrFail;
use crate::machine::Machine;
use crate::managers::Manager;
use crate::node::run_in;
use crate::place::Place;
use crate::traffic;

/// What the machine reaches: the gateway, a neighbour, and three servers behind the gateway.
pub const REACHED: [&str; 10] = [
    "192.0.2.1",
    "2001:db8::1",
    "192.0.2.20",
    "2001:db8::20",
    API_SERVER,
    "2001:db8:113::5",
    DATABASE,
    "2001:db8:113::6",
    "203.0.113.53",
    "2001:db8:113::53",
];
/// The API server's address.
pub const API_SERVER: &str = "203.0.113.5";
/// The southbound database's address.
pub const DATABASE: &str = "203.0.113.6";
/// The machine's addresses.
const MACHINE: [&str; 2] = ["192.0.2.11", "2001:db8::11"];

impl Dhcp {
    /// Starts dnsmasq(8) at the neighbour's end, which gives the machine its address for two
    /// minutes, and advertises a router.
    #[track_caller]
    pub fn start(machine: &Machine, lan: &Lan) -> Self {
        Self::start_with(machine, lan, &[])
    }

    /// The same, where clients are to renew their lease after five seconds, and to ask any server
    /// after ten (RFC 2132, sections 9.11 and 9.12).
    #[track_caller]
    pub fn start_hurried(machine: &Machine, lan: &Lan) -> Self {
        let times = ["--dhcp-option-force=58,5", "--dhcp-option-force=59,10"];
        Self::start_with(machine, lan, &times)
    }

    #[track_caller]
    fn start_with(machine: &Machine, lan: &Lan, more: &[&str]) -> Self {
        let mut arguments = vec![
            "--enable-ra",
            // The one address that the machine has.
            "--dhcp-range=192.0.2.11,192.0.2.11,120",
            "--dhcp-option=3,192.0.2.1",
            "--dhcp-range=2001:db8::,ra-only,64,600",
        ];
        arguments.extend(more);
        Self::dnsmasq(machine.node(), lan.place(), &arguments)
    }
}

/// A neighbour of a machine that is the gateway too, and has the servers' addresses.
#[derive(Debug)]
pub struct Lan(Place);

impl Lan {
    /// Connects a machine by a new eth0: both families, routes with metric 100 as network managers
    /// set them, and a name server.
    #[track_caller]
    pub fn around(machine: &Machine) -> Self {
        let node = machine.node();
        let place = node.place().with_new_network();
        let namespace = place.network_path();
        let here = |line: &str| drop(node.run("ip", line));
        let there = |line: &str| drop(run_in(&place, "ip", line).or_fail());
        here("link del eth0");
        here("route del unreachable 192.0.2.9/32");
        here(&format!(
            "link add eth0 type veth peer name eth0 netns {namespace}"
        ));
        there("link set lo up");
        for ip in [&here as &dyn Fn(&str), &there] {
            ip("link set eth0 addrgenmode none");
            ip("link set eth0 up");
        }
        Self::furnish(&there);
        here("address add fe80::11/64 dev eth0 nodad");
        here("address add 192.0.2.11/24 dev eth0 noprefixroute");
        here("address add 2001:db8::11/64 dev eth0 noprefixroute nodad");
        for net in ["192.0.2.0/24", "2001:db8::/64"] {
            here(&format!("route add {net} dev eth0 proto kernel metric 100"));
        }
        here("route add default via 192.0.2.1 dev eth0 metric 100");
        here("-6 route add default via 2001:db8::1 dev eth0 metric 100");
        node.name_server("203.0.113.53");
        Self(place)
    }

    /// The same around a virtual machine whose NIC leads to this place's eth0.
    #[track_caller]
    pub fn at_tap(place: &Place) -> Self {
        let there = |line: &str| drop(run_in(place, "ip", line).or_fail());
        there("link set eth0 addrgenmode none");
        there("link set eth0 up");
        Self::furnish(&there);
        Self(place.clone())
    }

    /// Sets the addresses of all that is reached.
    fn furnish(there: &dyn Fn(&str)) {
        for ip in REACHED {
            let bearer = match (ip.starts_with("203."), ip.starts_with("2001:db8:113:")) {
                (true, _) => "32 dev lo",
                (_, true) => "128 dev lo",
                _ if ip.contains(':') => "64 dev eth0",
                _ => "24 dev eth0",
            };
            there(&format!("address add {ip}/{bearer} nodad"));
        }
        // Without one, the kernel can't ask whether a neighbour is still there.
        there("address add fe80::1/64 dev eth0 nodad");
    }

    /// A new machine whose NIC can be moved, and what is around it.
    #[track_caller]
    pub fn with_machine() -> (Machine, Self) {
        let machine = Machine::new();
        let lan = Self::around(&machine);
        let node = machine.node();
        // The machine's own units stay out of it.
        node.run("mount", ["-t", "tmpfs", "none", "/etc/systemd/system"]);
        // The userspace datapath takes packets as they are, without checksums that hardware adds.
        for place in [node.place(), lan.place()] {
            run_in(place, "ethtool", "-K eth0 tx off").or_fail();
        }
        (machine, lan)
    }

    /// Has systemd-networkd configure the machine's NIC by this file; waits until it has made
    /// default routes by DHCP and by router advertisements.
    #[track_caller]
    pub fn networkd<'node>(machine: &'node Machine, own: &str) -> Manager<'node> {
        let node = machine.node();
        node.run("ip", "address flush dev eth0 scope global");
        node.run("ip", "-4 route flush dev eth0");
        // What nobody but this fixture has made is not networkd's to keep.
        for net in ["2001:db8::/64 metric 100", "default via 2001:db8::1"] {
            let del = format!("ip -6 route del {net} dev eth0 2>/dev/null; true");
            node.run("sh", ["-c", &del]);
        }
        let networkd = Manager::networkd(node, &[("10-eth0.network", own)]).or_fail();
        Self::await_renewed(machine, "eth0");
        networkd
    }

    /// Has NetworkManager configure the machine's NIC by a profile with these settings, which is
    /// active when this returns.
    #[track_caller]
    pub fn network_manager<'node>(machine: &'node Machine, own: &[&str]) -> Manager<'node> {
        let node = machine.node();
        node.run("ip", "address flush dev eth0");
        node.run("ip", "-4 route flush dev eth0");
        node.run("ip", "-6 route flush dev eth0");
        let manager = Manager::network_manager(node).or_fail();
        let add = "connection add save no type ethernet ifname eth0 con-name own autoconnect no";
        let add: Vec<&str> = add.split(' ').chain(own.iter().copied()).collect();
        node.run("nmcli", &add[..]);
        node.run("nmcli", "connection up own");
        manager
    }

    /// Takes the cable of the machine's NIC out, and puts it in again.
    #[track_caller]
    pub fn flap(&self) {
        self.unplug();
        self.plug();
    }

    /// Takes it out.
    #[track_caller]
    pub fn unplug(&self) {
        run_in(&self.0, "ip", "link set eth0 down").or_fail();
    }

    /// Puts it in.
    #[track_caller]
    pub fn plug(&self) {
        run_in(&self.0, "ip", "link set eth0 up").or_fail();
        // With the link, its IPv6 addresses have gone.
        for line in [
            "address replace 2001:db8::1/64 dev eth0 nodad",
            "address replace 2001:db8::20/64 dev eth0 nodad",
            "address replace fe80::1/64 dev eth0 nodad",
        ] {
            run_in(&self.0, "ip", line).or_fail();
        }
    }

    /// Waits until a link has both default routes by its network manager.
    #[track_caller]
    pub fn await_renewed(machine: &Machine, link: &str) {
        for (family, text) in [
            ("-4", format!("default via 192.0.2.1 dev {link} proto dhcp")),
            ("-6", format!("default via fe80::1 dev {link} proto ra")),
        ] {
            machine.await_network(&text, || machine.node().run("ip", [family, "route"]));
        }
    }

    /// Has the DHCP server hear only what is for every server, or all again.
    #[track_caller]
    pub fn hear_only_broadcasts(&self, so: bool) {
        dhcp::hear_only_broadcasts(&self.0, so);
    }

    /// Answers one question for its MAC address, and no other one.
    #[track_caller]
    pub fn answer_once(&self) {
        let rule = "add rule arp dead in arp operation request";
        for line in [
            "add table arp dead",
            "add chain arp dead in { type filter hook input priority 0 ; }",
            &format!("{rule} limit rate 1/day burst 1 packets accept"),
            &format!("{rule} drop"),
        ] {
            run_in(&self.0, "nft", line).or_fail();
        }
    }

    /// Answers all again.
    #[track_caller]
    pub fn answer_all(&self) {
        run_in(&self.0, "nft", "delete table arp dead").or_fail();
    }

    /// Where the neighbour's programs run.
    pub fn place(&self) -> &Place {
        &self.0
    }

    /// Panics unless the machine reaches all, and is reached.
    #[track_caller]
    pub fn assert_reached(&self, machine: &Machine) {
        for ip in REACHED {
            ping(machine.node().place(), ip);
        }
        self.assert_reaches();
    }

    /// Panics unless the machine's addresses answer.
    #[track_caller]
    pub fn assert_reaches(&self) {
        for ip in MACHINE {
            ping(&self.0, ip);
        }
    }
}

#[track_caller]
fn ping(from: &Place, to: &str) {
    let ip: IpAddr = to.parse().expect("the addresses are written above");
    traffic::ping_until_answered(from, ip).or_fail()
}
