//! The door: a link to the other nodes, by which a node passes on what comes from outside for
//! their pods, with its source.

use podwire_cluster::address::mac;

use super::{Plan, sysctl};
use crate::DOOR;
use crate::firewall::Table;
use crate::items::{Actual, ByDoor, Item, LinkUp, Neighbour, Port};
use crate::settings::{Door, Settings};

/// Whether this machine can have one, and somebody tells of others.
pub(super) fn is_possible(settings: &Settings, actual: &Actual) -> bool {
    settings.doors.is_some() && actual.has_egress
}

impl Plan {
    pub(super) fn has_door(&self) -> bool {
        let mut items = self.items.iter();
        items.any(|item| matches!(item, Item::ByDoor(_)))
    }

    /// Its port and its link's settings. It is in another network than the management port, and
    /// has its MAC address.
    pub(super) fn door_link(
        &mut self,
        settings: &Settings,
        actual: &Actual,
        mac: String,
        mtu: u32,
    ) {
        self.items.push(Item::Port(Port {
            link: DOOR.to_owned(),
            bridge: settings.bridge.clone(),
            iface_id: format!("{DOOR}-{}", settings.node_name),
            mac,
            mtu,
        }));
        self.ipv6_on(settings, DOOR);
        self.learn_nothing(DOOR, actual);
        let mut set = |family: &str, name: &str, value: &str| {
            let path = format!("net/{family}/conf/{DOOR}/{name}");
            self.items.push(sysctl(path, value));
        };
        // What comes by it has sources that are reached by other links. The larger of two settings
        // counts, and 2 accepts whatever any link leads to.
        set("ipv4", "rp_filter", "2");
        if actual.has_ipv6 {
            // The kernel's own messages on a new link would go to every node.
            set("ipv6", "addr_gen_mode", "1");
        }
    }

    /// What leads packets there, and the doors of other nodes, as soon as OVN has this one.
    pub(super) fn doors<'a>(&mut self, settings: &'a Settings, actual: &Actual) -> &'a [Door] {
        let port = actual.switch.ports.get(DOOR);
        let is_there = port.is_some_and(|port| port.is_installed);
        let doors = settings.doors.as_deref().filter(|_| is_there);
        let doors = doors.unwrap_or_default();
        self.items.push(LinkUp(DOOR.to_owned()).into());
        self.items.push(Item::Table(Table::door(doors)));
        for v4 in [true, false] {
            let mut subnets = settings.node_subnets.iter();
            if subnets.any(|subnet| subnet.addr().is_ipv4() == v4) {
                let way = ByDoor { v4 };
                self.items.push(Item::Neighbour(Neighbour {
                    link: DOOR.to_owned(),
                    ip: way.via(),
                    mac: mac(way.via()).to_string(),
                }));
                self.items.push(Item::ByDoor(way));
            }
        }
        doors
    }
}
