//! `podwire node`: makes the machine a part of the pod network, and undoes it.
//!
//! The goal is one pure value, a `plan::Plan`; the machine is the `actual` state; the steps are the
//! difference of the two. So a second run has nothing to do, and cleaning up is the difference to
//! an empty plan. Every item has a mark that shows that it is podwire's, and the inverse of every
//! step is on disk before the step is executed.
//!
//! From the top: `command` is the command line, `run` maintains what `reconcile` has set up,
//! `apply` executes steps, `journal` records their inverses, `diff` and `plan` are pure, `items`
//! has a file for each kind of item with all that is said of it elsewhere, `firewall` has the text
//! of the nftables table, `firewalld` talks to that firewall, `actual` reads the machine's state,
//! `snapshot` compares it with the plan, and `events` tells when to do so again; `record` counts
//! what was restored. `overlap` compares networks with what the machine needs for itself, among it
//! `servers`. `cluster` follows the Kubernetes API, `services` makes its services reachable on the
//! host, and `announce` publishes the node to
//! the control plane. `role` reports its state to the agent's tools, and `alive` whether it works.
//! `moved` is the record of a NIC
//! that is moved into the gateway bridge, `guard` the process that moves it back, and `reach` asks
//! whether the gateways answer; `networkd` and `network_manager` have these programs configure the
//! bridge instead of the NIC, and `manager` finds which. `preflight` checks what no item shows.
//! `privileges` says what `run` keeps of root's. `flows` talks to ovs-vswitchd about the gateway
//! bridge, `nft` to nft(8), and `wire` encodes netlink messages that rtnetlink does not know.

#![forbid(unsafe_code)]

mod actual;
mod alive;
mod announce;
mod apply;
mod bus;
mod cluster;
mod command;
mod diff;
mod events;
mod files;
mod firewall;
mod firewalld;
mod flows;
mod guard;
mod items;
mod journal;
mod left_out;
mod mac;
mod manager;
mod moved;
mod network_manager;
mod networkd;
mod nft;
pub mod overlap;
mod plan;
mod preflight;
mod privileges;
mod reach;
mod reconcile;
mod record;
mod role;
mod run;
mod servers;
mod services;
mod settings;
mod show;
mod snapshot;
mod southbound;
mod watch;
mod wire;

pub use command::{NodeCommand, Surroundings, main};
pub use record::Restored;
pub use role::{DIRECTORY, Role, role};

/// The link by which the host reaches the pod network: its management port, with the name that
/// ovn-kubernetes and its tools use.
const LINK: &str = "ovn-k8s-mp0";

/// The link by which this node passes on what comes from outside for other nodes' pods, with its
/// source (docs/decisions/0147).
const DOOR: &str = "podwire-door";

/// The bridge with the tunnels to other nodes in plain mode, and the link by which the host reaches
/// it.
const TUNNEL: &str = "podwire-tun";

/// podwire's links to pods and to other nodes.
const LINKS: [&str; 3] = [LINK, DOOR, TUNNEL];

/// The gateway bridge, and the link that has the NIC's addresses then.
const GATEWAY: &str = "br-ex";
/// The second one, with a spare NIC.
const EXTRA_GATEWAY: &str = "br-ex1";

/// The key in `external_ids` that marks rows of Open vSwitch's database as podwire's.
const MARK: &str = "podwire.io/node";

/// The prefix of a physical network's name in the key of its bridge: one entry of
/// `ovn-bridge-mappings`, in which others have entries too.
const MAPPING: &str = "ovn-bridge-mappings:";

/// The prefix of a key of the switch's `other_config`.
const CONFIG: &str = "other_config:";

/// The prefix of rules in firewalld's permanent configuration among podwire's keys: firewalld does
/// not record who made them.
const FIREWALLD: &str = "firewalld:";

/// The first line of a file that survives a reboot; it marks the file as podwire's.
const FILE_MARK: &str = "# Made by podwire node; `podwire node cleanup` removes it.";

/// The mark of a row that podwire created. That of a management port that was taken over contains
/// its former state.
const MADE: &str = "made";

/// The origin of a route, an address or a neighbour: the number that `ip` shows after `proto`
/// (rtnetlink(7), RTA_PROTOCOL; those from 0x70 on are unassigned).
const PROTOCOL: u8 = 0x70;
