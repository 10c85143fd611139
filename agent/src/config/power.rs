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
    /// Runtimes name pods' namespaces by process (/proc/PID/ns/net, as cri-dockerd does): keep
    /// CAP_SYS_PTRACE
    #[arg(long)]
    pub proc_netns: bool,
    /// Make links at ordinary priority, not at the lowest of real time, by which ovs-vswitchd does
    /// not run between the steps
    #[arg(long)]
    pub no_realtime: bool,
    /// System calls that the agent is not known to make: enforce, log, off
    #[arg(long, value_name = "ACTION", default_value = "enforce")]
    pub seccomp: Seccomp,
}
