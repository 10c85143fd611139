//! How much power the agent keeps.

use clap::{Args, ValueEnum};

/// What becomes of a system call that is not on the agent's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Seccomp {
    /// It fails with ENOSYS; one that only an intruder would make ends the agent
    Enforce,
    /// It passes, and the kernel logs it as an audit record of type 1326
    Log,
    /// There is no filter
    Off,
}

/// The flags about power.
#[derive(Debug, Clone, Args)]
pub struct PowerArgs {
    /// Keep CAP_SYS_PTRACE, for runtimes that name a pod's namespace by process (/proc/PID/ns/net),
    /// as cri-dockerd does
    #[arg(long)]
    pub proc_netns: bool,
    /// Create links at normal priority instead of the lowest real-time priority, which keeps
    /// ovs-vswitchd from running between the steps
    #[arg(long)]
    pub no_realtime: bool,
    /// What to do with system calls that are not on the agent's list: enforce, log or off
    #[arg(long, value_name = "ACTION", default_value = "enforce")]
    pub seccomp: Seccomp,
}
