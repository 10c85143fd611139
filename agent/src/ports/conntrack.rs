//! The connections that the userspace datapath tracks for a pod, which end with it.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::{self, TryStreamExt as _};
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use tokio::time::Instant;

use super::Ports;

/// How long ovs-vswitchd may take to forget connections; a dead one must not hold up an ADD that
/// waits for it.
const FLUSH_DEADLINE: Duration = Duration::from_millis(500);
/// How many questions are open at once, each on a connection of its own.
const AT_ONCE: usize = 32;

impl Ports {
    /// Removes the IPv4 connections to and from these addresses that the userspace datapath tracks;
    /// the kernel's are the netns room's. On a bridge with the kernel's datapath there is nothing
    /// to do.
    ///
    /// IPv6 connections are left to their timeouts: ovs-vswitchd 3.1.0 dies of being told to flush
    /// an ICMPv6 one (docs/decisions/0008).
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
        let counted = daemon.call("dpctl/ct-get-nconns", &[], deadline).await?;
        if counted.trim() == "0" {
            return Ok(());
        }
        // A connection is the pod's when the pod sends in either direction, whatever is translated
        // in between: the first argument selects by the original direction, the second by the
        // reply's (ovs-vswitchd(8), dpctl/flush-conntrack). Many at once, for ovs-vswitchd answers
        // all that wait in one turn of its main loop, and one turn may take 15 ms.
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
