//! Connections that the userspace datapath tracks for a pod, removed when the pod ends.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, TryStreamExt as _};
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use tokio::time::Instant;

use super::Ports;

/// Time limit for removing connections. A dead ovs-vswitchd must not hold up the ADD that waits for
/// it.
const FLUSH_DEADLINE: Duration = Duration::from_millis(500);
/// Number of concurrent requests, each on its own connection.
const AT_ONCE: usize = 32;

impl Ports {
    /// Removes the IPv4 connections from and to these addresses from the userspace datapath; for
    /// the kernel's, see `netns`. Does nothing on a bridge with the kernel's datapath.
    ///
    /// IPv6 connections expire by timeout: ovs-vswitchd 3.1.0 crashes when told to flush an ICMPv6
    /// connection (docs/decisions/0008).
    ///
    /// # Errors
    /// ovs-vswitchd did not answer, or refused.
    pub async fn flush_conntrack(&self, addresses: &[IpAddr]) -> Result<(), UnixctlError> {
        let is_userspace = self.is_netdev(&self.bridge) == Some(true);
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
        let counted = daemon.call("dpctl/ct-get-nconns", &[], deadline).await?;
        if counted.trim() == "0" {
            return Ok(());
        }
        // A connection belongs to the pod if the pod sends in either direction, whatever NAT does
        // in between. The first argument matches the original direction, the second the reply
        // (ovs-vswitchd(8), dpctl/flush-conntrack). The requests run concurrently: ovs-vswitchd
        // answers all that are waiting in one turn of its main loop, and a turn can take 15 ms.
        let either = tuples
            .iter()
            .flat_map(|tuple| [vec![tuple.as_str()], vec!["", tuple.as_str()]]);
        let daemon = &daemon;
        stream::iter(either.map(Ok))
            .try_for_each_concurrent(AT_ONCE, |arguments| async move {
                let flush = daemon.call("dpctl/flush-conntrack", &arguments, deadline);
                flush.await.map(drop)
            })
            .await
    }
}
