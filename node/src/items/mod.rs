//! The items of a plan, one file for each kind: its identity, its state on the machine, how it is
//! made and removed, its mark, and how it is shown.
//!
//! A kind does nothing itself: it returns changes, which `apply` executes. So what a step will do
//! is known before the first change.

mod actual;
mod address;
mod adopted;
mod bridge;
mod bridge_flows;
mod by_door;
mod file;
mod firewalld;
mod former;
mod key;
mod link;
mod neighbour;
mod nic_port;
mod port;
mod route;
mod rows;
mod services;
mod ssl;
mod sysctl;
mod table;
mod tunnel;
mod tunnel_port;
mod uplink;

use std::fmt;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use podwire_ovs::openflow::Flow;
use podwire_ovs::transact::Transaction;
use serde::{Deserialize, Serialize};

pub(crate) use actual::{Actual, ObservedSwitch, Tables};
pub(crate) use address::{Address, ObservedAddress};
pub(crate) use adopted::Adopted;
pub(crate) use bridge::{Bridge, ObservedBridge};
pub(crate) use bridge_flows::{ALL as ALL_FLOWS, BridgeFlows, BridgePorts, Led, ObservedFlows};
pub(crate) use by_door::{ByDoor, ObservedByDoor, is_by_door, is_to_door};
pub(crate) use file::File;
pub(crate) use former::Former;
pub(crate) use key::{
    Claim, ENCAP_IP, Key, KeyChange, Own, Owned, PROBE, SOON, seen as keys_seen,
    transaction as keys_transaction,
};
pub(crate) use link::{LinkUp, ObservedLink};
pub(crate) use neighbour::{Neighbour, ObservedNeighbour};
pub(crate) use nic_port::{NicPort, ObservedNic};
pub(crate) use port::{ObservedPort, Port};
pub(crate) use route::{ObservedRoute, Route, destination, ip};
pub(crate) use services::Services;
pub(crate) use ssl::{ObservedSsl, Ssl};
pub(crate) use sysctl::{CONNTRACK_BUCKETS, Sysctl, read_sysctl};
pub(crate) use table::ObservedTable;
pub(crate) use tunnel::{ObservedTunnel, Tunnel};
pub(crate) use tunnel_port::TunnelPort;
pub(crate) use uplink::{BOOT_FILE, ManagedConfig, ObservedUplink, Uplink, stand_ins};

use crate::DOOR;
use crate::firewall::Table;
use crate::firewalld::Rule;
use crate::moved::Moved;
use crate::network_manager::Deed;

/// A kind of items.
pub(crate) trait Kind {
    /// Kind and name of the item: a machine can't have two with the same identity.
    fn identity(&self) -> String;

    /// What `plan` and `show` append to the identity.
    fn details(&self) -> String {
        String::new()
    }

    /// Its removal in the past tense.
    fn removed(&self) -> String {
        format!("removed {}", self.identity())
    }

    /// Its state, compared with what is planned.
    fn state(&self, view: &View<'_>) -> State;

    /// What else the journal has to record before it is made.
    fn undos(&self, _: &Actual, _: &[Undo]) -> Vec<Undo> {
        Vec::new()
    }

    /// For a change that must not stay half made, as that cuts off the machine: what is recorded
    /// before it, of which a process of its own makes the inverse at a deadline.
    fn guarded(&self, _: &Actual) -> Option<Moved> {
        None
    }

    /// What makes it, or changes it into what is planned.
    fn make(&self, actual: &Actual) -> Vec<Change>;

    /// What removes it, and restores what it has replaced.
    fn remove(&self, actual: &Actual) -> Vec<Change>;

    /// podwire's items of this kind on the machine, by their mark or by the journal, in order of
    /// creation.
    fn marked(view: &View<'_>) -> Vec<Item>
    where
        Self: Sized;
}

/// Declares the kinds, in the order of creation that their removal reverses: each with its name in
/// metrics, by which way others change it, and how podwire's are found.
macro_rules! kinds {
    ($($kind:ident($type:ty): $name:literal, $writer:ident, $mark:ident;)*) => {
        /// One item.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) enum Item {
            $($kind($type)),*
        }

        impl Item {
            pub(crate) fn kind(&self) -> &dyn Kind {
                match self {
                    $(Self::$kind(item) => item),*
                }
            }

            /// The name of its kind in metrics.
            pub(crate) fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $name),*
                }
            }

            pub(crate) fn writer(&self) -> Writer {
                match self {
                    $(Self::$kind(_) => Writer::$writer),*
                }
            }

            pub(crate) fn mark(&self) -> Mark {
                match self {
                    $(Self::$kind(_) => Mark::$mark),*
                }
            }

            /// podwire's items on the machine, in order of creation.
            pub(crate) fn marked(view: &View<'_>) -> Vec<Self> {
                [$(<$type>::marked(view)),*].concat()
            }
        }

        $(impl From<$type> for Item {
            fn from(item: $type) -> Self {
                Self::$kind(item)
            }
        })*
    };
}

kinds! {
    Firewalld(Rule): "firewalld", Firewalld, Journal;
    Key(Key): "key", Switch, Journal;
    TunnelPort(TunnelPort): "tunnel-port", Southbound, Own;
    Ssl(Ssl): "ssl", Switch, Own;
    Port(Port): "port", Switch, Journal;
    Bridge(Bridge): "bridge", Switch, Journal;
    NicPort(NicPort): "nic-port", Switch, Journal;
    Adopted(Adopted): "adopted-bridge", Switch, Own;
    Tunnel(Tunnel): "tunnel", Switch, Own;
    File(File): "file", Kernel, Journal;
    Sysctl(Sysctl): "sysctl", Kernel, Own;
    LinkUp(LinkUp): "link", Kernel, Journal;
    Uplink(Uplink): "uplink", Switch, Own;
    BridgeFlows(BridgeFlows): "flows", OpenFlow, Own;
    Address(Address): "address", Kernel, Journal;
    Neighbour(Neighbour): "neighbour", Kernel, Journal;
    Former(Former): "route", Kernel, Own;
    Route(Route): "route", Kernel, Journal;
    ByDoor(ByDoor): "by-door", Kernel, Own;
    Services(Services): "services", Firewall, Own;
    Table(Table): "table", Firewall, Journal;
}

impl Item {
    pub(crate) fn identity(&self) -> String {
        self.kind().identity()
    }

    /// Whether packets by the door need it.
    pub(crate) fn is_of_door(&self) -> bool {
        match self {
            Self::Port(Port { link, .. })
            | Self::LinkUp(LinkUp(link))
            | Self::Neighbour(Neighbour { link, .. }) => link == DOOR,
            Self::ByDoor(_) | Self::Table(_) => true,
            _ => false,
        }
    }
}

/// In the form of `plan` and `show`.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.identity(), self.kind().details())
    }
}

/// The state of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// As planned; `ours` if it has podwire's mark.
    Well { ours: bool },
    /// Not there.
    Missing,
    /// It exists, but differs in the described way.
    Differs(String),
    /// Somebody else's item, as described, has its place.
    Foreign(String),
    /// It has podwire's mark but is no longer planned.
    Surplus,
    /// It can't be created before something else exists, as described.
    Waits(String),
    /// It is not made, because of a conflict of this setting.
    Refused(String),
}

impl State {
    /// The state of an item that has differences from what is planned, or none.
    fn of(differences: &[String]) -> Self {
        match differences.is_empty() {
            true => Self::Well { ours: true },
            false => Self::Differs(differences.join(", ")),
        }
    }
}

/// By which way others change an item, which is how they are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Open vSwitch's database.
    Switch,
    /// ovs-vswitchd.
    OpenFlow,
    /// The southbound database.
    Southbound,
    Firewalld,
    /// nftables.
    Firewall,
    Kernel,
}

/// Where it is recorded that podwire made an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// In the journal, before it is made; some have a mark of their own, too.
    Journal,
    /// In the item itself, or by an entry of its own.
    Own,
}

/// What the state of an item depends on.
pub(crate) struct View<'a> {
    /// The plan's items.
    pub(crate) items: &'a [Item],
    pub(crate) actual: &'a Actual,
    pub(crate) journal: &'a [Undo],
    pub(crate) take_over: bool,
}

impl View<'_> {
    /// Whether podwire created it, since the machine was booted.
    fn made(&self, item: impl Into<Item>) -> bool {
        self.journal.contains(&Undo::Made(item.into()))
    }

    /// The state of an item in the switch's database, which can't be changed while that does not
    /// answer.
    fn of_switch(&self, state: State) -> State {
        match state {
            State::Missing | State::Differs(_) if !self.actual.switch.answers => {
                State::Waits("Open vSwitch's database, which does not answer".to_owned())
            }
            state => state,
        }
    }
}

/// The inverse of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Undo {
    /// The item did not exist: it is removed.
    Made(Item),
    /// Somebody else's item was replaced: it is re-created.
    Replaced(Former),
    /// The value is restored, unless somebody has changed it since.
    Sysctl {
        path: String,
        was: String,
        set: String,
        /// Of a link's forwarding: the value for all links then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        all: Option<String>,
    },
}

/// One change of the machine.
#[derive(Debug)]
pub(crate) enum Change {
    /// Of the switch's own columns: those that follow each other are one transaction.
    Key(KeyChange),
    Switch(Transaction),
    /// None: it waits until ovs-vswitchd has attached this link to its bridge.
    Attached(String),
    /// A request to the kernel, with its flags.
    Kernel(RouteNetlinkMessage, u16),
    /// The flows of the gateway bridge, in place of podwire's that it has.
    Flows(Vec<Flow>),
    /// A script for nft, and what it is about.
    Nft(&'static str, String),
    /// A file with this text, or its removal.
    File(String, Option<String>),
    /// A value below /proc/sys.
    Sysctl(String, String),
    /// Whether firewalld has this rule.
    Firewalld(Rule, bool),
    /// The UDP port of this chassis' rows in the southbound database.
    TunnelPort(TunnelPort),
    /// None: it has systemd-networkd read its files.
    Networkd,
    /// None: it waits until systemd-networkd has begun to configure the link with this index.
    Managed(u32),
    /// Tells NetworkManager.
    NetworkManager(Deed),
    /// None: it waits until a network manager has renewed all of this.
    Renewed(ManagedConfig),
    /// The same, for a while; then NetworkManager drops what has stood in for it.
    RenewedBack(ManagedConfig),
}

/// Flags of a request: for what does not exist yet, for what may exist, and for any other.
const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;
const REPLACE: u16 = NLM_F_CREATE | NLM_F_REPLACE;
const CHANGE: u16 = 0;

/// A request, if the link that it is about exists.
fn request(message: Option<RouteNetlinkMessage>, flags: u16) -> Vec<Change> {
    let change = message.map(|message| Change::Kernel(message, flags));
    change.into_iter().collect()
}

/// A transaction, if what it would change exists.
fn transaction(change: Option<Transaction>) -> Vec<Change> {
    change.map(Change::Switch).into_iter().collect()
}
