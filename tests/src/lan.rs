//! The network around a machine, with all that a machine has to reach.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use crate::failure::OrFail;
use crate::machine::Machine;
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
        let namespace = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            place.network().as_raw_fd()
        );
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

    /// Where the neighbour's programs run.
    pub fn place(&self) -> &Place {
        &self.0
    }

    /// Panics unless the machine reaches all, and is reached.
    #[track_caller]
    pub fn assert_reached(&self, machine: &Machine) {
        let ping = |from: &Place, to: &str| {
            let ip: IpAddr = to.parse().expect("the addresses are written above");
            traffic::ping_until_answered(from, ip).or_fail()
        };
        for ip in REACHED {
            ping(machine.node().place(), ip);
        }
        for ip in MACHINE {
            ping(&self.0, ip);
        }
    }
}
