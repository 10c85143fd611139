//! Fixtures that run the real thing: namespaces, ovsdb-server, ovs-vswitchd, the podwire agent and
//! the podwire-cni plugin, as a runtime would start them.
//!
//! A [`TestNode`] is a machine of its own as far as its programs can tell: a network namespace, and
//! a mount namespace with an empty `/run` and `/var/lib`, so that each program finds its usual
//! paths (`/run/openvswitch/db.sock`, `/run/podwire/agent.sock`, `/run/netns/cni-…`) and no two
//! tests meet. Nothing of it has a name outside: when the test process ends, however it ends, the
//! kernel takes the namespaces, the mounts and (by PR_SET_PDEATHSIG) the daemons with it.
//!
//! A test makes a node, starts what it wants on it, makes [`Pod`]s and execs the plugin for them:
//!
//! ```no_run
//! use podwire_tests::{AgentOptions, TestNode};
//!
//! let node = TestNode::with_ovs();
//! let agent = node.start_agent(&AgentOptions::default());
//! let pod = node.pod("web");
//! let result = pod.add().success();
//! assert_eq!(result["cniVersion"], "1.1.0");
//! pod.del().success();
//! agent.stop();
//! node.leftovers().assert_none();
//! ```
//!
//! What a test does to its node, agent and pods panics at the test's line when it fails. What it
//! measures or expects to fail (traffic, links, [`Agent::start`]) returns a [`Failure`].

mod agent;
pub mod annotation;
pub mod apiserver;
mod binaries;
pub mod conformance;
pub mod controller;
pub mod cri;
mod datapath;
pub mod dhcp;
mod failure;
pub mod frames;
pub mod gap;
pub mod http;
pub mod kubernetes;
pub mod lan;
mod leftovers;
pub mod links;
pub mod machine;
pub mod managers;
mod neighbour;
mod node;
mod node_run;
pub mod ovn;
mod ovsdb;
pub mod physical;
mod place;
mod plugin;
mod pod;
pub mod probes;
pub mod process;
mod random;
pub mod runtime;
pub mod schema;
pub mod scrape;
pub mod source;
pub mod systemd;
pub mod tool;
pub mod traffic;
pub mod vm;
pub mod walkthrough;
mod watch;
mod words;

pub use agent::{Agent, AgentOptions, CONFIG};
pub use binaries::{
    agent_binary, conformance_binary, controller_binary, faulty_agent_binary, plugin_binary,
    stripped, without_own_variables,
};
pub use datapath::{Datapath, datapath};
pub use failure::{Failure, OrFail, Step, tail};
pub use leftovers::Leftovers;
pub use neighbour::Neighbour;
pub use node::{TestNode, run_in};
pub use node_run::NodeRun;
pub use ovsdb::{Ovsdb, Row};
pub use place::Place;
pub use plugin::{CniError, PluginRun, addresses, conf, conf_of_version};
pub use pod::Pod;
pub use process::child_of;
pub use random::{container_id, hex, uuid};
pub use words::Words;

/// How many DELs the plugin's spool holds at the most; as `podwire_cni::spool` has it.
pub const SPOOL_ENTRIES: usize = 1024;
