//! `podwire node`: makes the machine a part of the pod network, and undoes it.
//!
//! What should be is one pure value, a `plan::Plan`; what is, is the `actual` state; the steps are
//! difference of the two. So a second run has nothing to do, and cleaning up is the difference to
//! an empty plan. Every item bears a mark by which it is known as ours, and the inverse of every
//! step is on disk before the step is taken.
//!
//! From the top: `command` is the command line, `run` keeps what `keep` has made, `apply` takes
//! steps, `journal` remembers their inverses, `diff` and `plan` are pure, `firewall` is the text of
//! the nftables table, `firewalld` the way to that firewall, `actual` looks at the machine and
//! `events` says when to look again; `kept` counts what was put back, and `http` serves that.
//! `cluster` follows the Kubernetes API, `services` are reachable on the host by it, `conntrack`
//! forgets connections to endpoints that are gone, and `announce` tells the control plane of the
//! node. `role` tells the agent's tools how it stands. `preflight` looks for what no item tells.
//! `nft` and `wire` are the ways to nft(8) and to netlink messages that rtnetlink does not know.

mod actual;
mod announce;
mod apply;
mod cluster;
mod command;
mod conntrack;
mod diff;
mod events;
mod firewall;
mod firewalld;
mod http;
mod journal;
mod keep;
mod kept;
mod look;
mod mac;
mod nft;
mod plan;
mod preflight;
mod role;
mod run;
mod services;
mod settings;
mod show;
mod southbound;
mod subnet;
mod watch;
mod wire;

pub use command::{NodeCommand, Surroundings, main};
pub use kept::PutBack;
pub use role::{DIRECTORY, Role, role};
pub use settings::{SettingsError, node_name};

/// The link by which the host reaches the pod network: its management port, under the name that
/// ovn-kubernetes and its tools know.
const LINK: &str = "ovn-k8s-mp0";

/// The bridge that ends the tunnels to other nodes in plain mode, and the link by which the host
/// reaches it.
const TUNNEL: &str = "podwire-tun";

/// The key in `external_ids` by which rows of Open vSwitch's database are known as ours.
const MARK: &str = "podwire.io/node";

/// What stands before a physical network's name in the key of its bridge: one entry of
/// `ovn-bridge-mappings`, which others have entries in too.
const MAPPING: &str = "ovn-bridge-mappings:";

/// What stands before the name of a key of the switch's `other_config`.
const CONFIG: &str = "other_config:";

/// What stands before the rules of firewalld's permanent configuration among the keys that are
/// ours: it keeps no maker of them.
const FIREWALLD: &str = "firewalld:";

/// The first line of a file that outlives a reboot, by which it is known as ours.
const FILE_MARK: &str = "# Made by podwire node; `podwire node cleanup` removes it.";

/// The mark of a row that we made. That of a management port that we took over tells how it was.
const MADE: &str = "made";

/// Who made a route, an address or a neighbour: the number that `ip` shows after `proto`
/// (rtnetlink(7), RTA_PROTOCOL; those from 0x70 on belong to nobody).
const PROTOCOL: u8 = 0x70;
