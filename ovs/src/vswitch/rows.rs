//! Typed views of rows: each borrows from the replica and reads a column on demand.

use crate::replica::Row;
use crate::value::{Map, Uuid};

macro_rules! row {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a>(pub(super) Row<'a>);

        impl<'a> $name<'a> {
            /// The row's `_uuid`.
            pub fn uuid(&self) -> Uuid {
                self.0.uuid()
            }

            /// The row with all its watched columns.
            pub fn row(&self) -> Row<'a> {
                self.0
            }

            /// `external_ids`: keys of podwire, OVN and others.
            pub fn external_ids(&self) -> &'a Map {
                self.0.map("external_ids")
            }

            /// One key of `external_ids`.
            pub fn external_id(&self, key: &str) -> Option<&'a str> {
                self.external_ids().str(key)
            }

            /// `other_config`.
            pub fn other_config(&self) -> &'a Map {
                self.0.map("other_config")
            }
        }
    };
}

row! {
    /// The switch itself, the only row of its table.
    OpenVSwitch
}
row! {
    /// A bridge.
    Bridge
}
row! {
    /// A port of a bridge.
    Port
}
row! {
    /// An interface of a port.
    Interface
}
row! {
    /// How a port shapes its output.
    Qos
}
row! {
    /// A queue of a QoS row.
    Queue
}

impl<'a> OpenVSwitch<'a> {
    /// The bridges.
    pub fn bridges(&self) -> impl Iterator<Item = Uuid> + use<'a> {
        self.0.references("bridges")
    }
}

impl<'a> Bridge<'a> {
    /// The bridge's name, which is also that of its local port.
    pub fn name(&self) -> &'a str {
        self.0.str("name").unwrap_or_default()
    }

    /// The ports.
    pub fn ports(&self) -> impl Iterator<Item = Uuid> + use<'a> {
        self.0.references("ports")
    }

    /// `netdev`, or `system` for the kernel's; an empty one means `system`.
    pub fn datapath_type(&self) -> &'a str {
        self.0
            .str("datapath_type")
            .filter(|name| !name.is_empty())
            .unwrap_or("system")
    }

    /// `secure` or `standalone`, if set.
    pub fn fail_mode(&self) -> Option<&'a str> {
        self.0.str("fail_mode")
    }
}

impl<'a> Port<'a> {
    /// The port's name; also its interface's, unless it is a bond.
    pub fn name(&self) -> &'a str {
        self.0.str("name").unwrap_or_default()
    }

    /// The interfaces: one, unless it is a bond.
    pub fn interfaces(&self) -> impl Iterator<Item = Uuid> + use<'a> {
        self.0.references("interfaces")
    }

    /// The QoS row.
    pub fn qos(&self) -> Option<Uuid> {
        self.0.column("qos")?.as_uuid()
    }

    /// The VLAN of an access port.
    pub fn tag(&self) -> Option<i64> {
        self.0.integer("tag")
    }

    /// The VLANs that a trunk port carries; none means all.
    pub fn trunks(&self) -> impl Iterator<Item = i64> + use<'a> {
        let trunks = self.0.column("trunks").into_iter();
        trunks.flat_map(|vlans| vlans.atoms().filter_map(|vlan| vlan.as_integer()))
    }

    /// `access`, `trunk`, …, if set.
    pub fn vlan_mode(&self) -> Option<&'a str> {
        self.0.str("vlan_mode")
    }
}

impl<'a> Interface<'a> {
    /// The interface's name: for most types, that of the network device.
    pub fn name(&self) -> &'a str {
        self.0.str("name").unwrap_or_default()
    }

    /// `system`, `internal`, …; an empty one means `system`.
    pub fn interface_type(&self) -> &'a str {
        self.0
            .str("type")
            .filter(|name| !name.is_empty())
            .unwrap_or("system")
    }

    /// The OpenFlow port: absent until ovs-vswitchd has tried, -1 if it failed (see
    /// [`Self::error`]).
    pub fn ofport(&self) -> Option<i64> {
        self.0.integer("ofport")
    }

    /// Why ovs-vswitchd could not open the device.
    pub fn error(&self) -> Option<&'a str> {
        self.0.str("error")
    }

    /// The device's MAC address.
    pub fn mac_in_use(&self) -> Option<&'a str> {
        self.0.str("mac_in_use")
    }

    /// The device's MTU, in bytes.
    pub fn mtu(&self) -> Option<i64> {
        self.0.integer("mtu")
    }

    /// The MTU that ovs-vswitchd should set on the device, in bytes.
    pub fn mtu_request(&self) -> Option<i64> {
        self.0.integer("mtu_request")
    }

    /// Limit for what the interface receives, that is what a pod sends, in kbit/s; 0 means none.
    pub fn ingress_policing_rate(&self) -> i64 {
        self.0.integer("ingress_policing_rate").unwrap_or_default()
    }

    /// Options of the interface's type.
    pub fn options(&self) -> &'a Map {
        self.0.map("options")
    }
}

impl<'a> Qos<'a> {
    /// The queues, by number.
    pub fn queues(&self) -> impl Iterator<Item = (i64, Uuid)> + use<'a> {
        let entry = |(number, queue): (&crate::value::Atom, &crate::value::Atom)| {
            Some((number.as_integer()?, queue.as_uuid()?))
        };
        self.0.map("queues").iter().filter_map(entry)
    }
}
