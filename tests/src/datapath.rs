//! The Open vSwitch datapath that tests use: the kernel's, which production nodes run, or the
//! userspace one, which works everywhere.

use crate::TestNode;

/// A datapath of Open vSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// The kernel's.
    System,
    /// ovs-vswitchd's own.
    Netdev,
}

impl Datapath {
    /// As `datapath_type` names it.
    pub fn name(self) -> &'static str {
        match self {
            Datapath::System => "system",
            Datapath::Netdev => "netdev",
        }
    }
}

/// The one that bridges get here: the kernel's with `PODWIRE_TEST_DATAPATH=system`, as `make
/// test-kernel` has it.
pub fn datapath() -> Datapath {
    match std::env::var("PODWIRE_TEST_DATAPATH").as_deref() {
        Ok("system") => Datapath::System,
        _ => Datapath::Netdev,
    }
}

impl TestNode {
    /// Makes a bridge as somebody else than podwire would, on the [`datapath`] of the machine.
    #[track_caller]
    pub fn add_bridge(&self, name: &str) {
        let kind = format!("datapath_type={}", datapath().name());
        self.vsctl(format!("add-br {name} -- set bridge {name} {kind}"));
    }

    /// Has br-int track the connections of both families, in zone 5, and switch as before.
    #[track_caller]
    pub fn track_connections(&self) {
        self.run("ovs-ofctl", "del-flows br-int");
        for flow in [
            "priority=1,ip,actions=ct(commit,zone=5),NORMAL",
            "priority=1,ipv6,actions=ct(commit,zone=5),NORMAL",
            "priority=0,actions=NORMAL",
        ] {
            self.run("ovs-ofctl", format!("add-flow br-int '{flow}'"));
        }
    }
}
