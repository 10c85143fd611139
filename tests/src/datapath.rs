//! Which of Open vSwitch's datapaths the machine has for tests: the kernel's, which is what people run, or the userspace one, which
//! can be had everywhere.

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

/// The one that bridges get here: the kernel's with `PODWIRE_TEST_DATAPATH=system`, as `make test-kernel` has it.
pub fn datapath() -> Datapath {
    match std::env::var("PODWIRE_TEST_DATAPATH").as_deref() {
        Ok("system") => Datapath::System,
        _ => Datapath::Netdev,
    }
}
