//! How much power the agent keeps.

use clap::Args;
use podwire_daemon::lockdown::Seccomp;

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
