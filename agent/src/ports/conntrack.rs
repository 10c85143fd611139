//! The connections that the userspace datapath tracks for a pod, which end with it.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::future::try_join_all;
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use tokio::time::Instant;

use super::Ports;

/// How long ovs-vswitchd may take to forget a pod's connections; a dead one must not hold up a DEL.
const FLUSH_DEADLINE: Duration = Duration::from_millis(500);

impl Ports {
    /// Removes the IPv4 connections to and from these addresses that the userspace datapath tracks; the kernel's are the netns
    /// room's. On a bridge with the kernel's datapath there is nothing to do.
    ///
    /// IPv6 connections are left to their timeouts: ovs-vswitchd 3.1.0 dies of being told to flush an ICMPv6 one
    /// (docs/decisions/0008).
    ///
    /// # Errors
    /// ovs-vswitchd did not answer, or refused.
    pub async fn flush_conntrack(&self, addresses: &[IpAddr]) -> Result<(), UnixctlError> {
        let is_userspace = self.node_facts(0).is_ok_and(|node| node.netdev_datapath);
        let tuples: Vec<String> = addresses
            .iter()
            .filter(|address| address.is_ipv4())
            .map(|address| format!("ct_nw_src={address}"))
            .collect();
        if !is_userspace || tuples.is_empty() {
            return Ok(());
        }
        let daemon = Unixctl::for_daemon(&self.rundir, "ovs-vswitchd")?;
        let deadline = Instant::now() + FLUSH_DEADLINE;
        // A connection is the pod's when the pod sends in either direction, whatever is translated in between: the first
        // argument selects by the original direction, the second by the reply's (ovs-vswitchd(8), dpctl/flush-conntrack). All
        // at once, for a question put after a port's removal waits until ovs-vswitchd has taken the port apart, 15 ms or more.
        let either = tuples
            .iter()
            .flat_map(|tuple| [vec![tuple.as_str()], vec!["", tuple.as_str()]]);
        let daemon = &daemon;
        let flushes = either.map(|arguments| async move {
            daemon
                .call("dpctl/flush-conntrack", &arguments, deadline)
                .await
        });
        try_join_all(flushes).await.map(drop)
    }
}
