//! The handles that the verbs work with.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Connections, Error, LastHolders, Lines};
use crate::config::{Config, Live, Mode};
use crate::flows::Flows;
use crate::ipam::Addresses;
use crate::ipam::spawner::Spawner;
use crate::journal::Journal;
use crate::netns::Netlink;
use crate::observe::Metrics;
use crate::plan::{AttachmentKey, MAX_MTU};
use crate::pods::sources::Sources;
use crate::ports::Ports;

/// MTU of a pod on a node without an uplink, in bytes: Ethernet's.
const UNKNOWN_UPLINK_MTU: u32 = 1500;
/// The same where packets go through a tunnel: what ovn-kubernetes takes when nobody says.
const UNKNOWN_TUNNEL_MTU: u32 = 1400;

/// One node: its kernel, its switch, and what is recorded of its attachments; one for the process.
#[derive(Debug)]
pub struct Node {
    /// The settings that stay what they were at the start.
    pub(crate) config: Config,
    /// Those that may change.
    pub(crate) live: watch::Sender<Live>,
    /// The largest MTU that fits the node's uplink, in bytes, less the tunnel's overhead in OVN
    /// mode; None while there is no uplink.
    pub(crate) uplink_mtu: watch::Sender<Option<u32>>,
    /// The kernel.
    pub(crate) netlink: Netlink,
    /// Open vSwitch.
    pub(crate) ports: Ports,
    /// The flows of the bridge; None in OVN mode.
    pub(crate) flows: Option<Flows>,
    /// The intent log.
    pub(crate) journal: Journal,
    /// Who has which address.
    pub(crate) addresses: Addresses,
    /// What connection tracking is still to forget.
    pub(crate) connections: Connections,
    /// Which MAC an address had last.
    pub(crate) last_holders: LastHolders,
    /// Starts delegated IPAM plugins.
    pub(crate) spawner: Spawner,
    /// Where annotations come from.
    pub(crate) sources: Sources,
    /// What is counted and timed.
    pub(crate) metrics: Arc<Metrics>,
    /// Which verb goes when.
    pub(crate) lines: Lines,
    /// True once what was found at start has been looked through.
    pub(crate) settled: watch::Sender<bool>,
}

impl Node {
    /// MTU of an interface to which nobody gave one, in bytes.
    pub(crate) fn default_mtu(&self) -> u32 {
        let live = self.live.borrow();
        let uplink = match (*self.uplink_mtu.borrow(), self.config.ovn.mode) {
            (Some(uplink), _) => uplink,
            (None, Mode::Plain) => UNKNOWN_UPLINK_MTU,
            (None, Mode::Ovn) => UNKNOWN_TUNNEL_MTU,
        };
        let most = live.max_mtu.unwrap_or(MAX_MTU);
        live.mtu.unwrap_or(uplink).min(most)
    }

    /// Whether what was found at start has been looked through.
    pub(crate) fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Waits until what was found at start has been looked through.
    pub(crate) async fn settled(&self) {
        // Its sender is ours.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// As [`Self::settled`], for so long at most: before that, nobody knows which addresses are
    /// taken.
    ///
    /// # Errors
    /// What was awaited in vain; the usual reason is the database.
    pub(crate) async fn settled_within(&self, patience: Duration) -> Result<(), Error> {
        let in_time = tokio::time::timeout(patience, self.settled()).await;
        if in_time.is_ok() {
            return Ok(());
        }
        self.ports.ready(Duration::ZERO).await?;
        Err(Error::Starting {
            awaited: "the ports that are already there",
            waited: patience,
        })
    }

    /// Every attachment that a row or the intent log knows of.
    pub(crate) fn attachments(&self) -> BTreeSet<AttachmentKey> {
        let rows = self.ports.all().into_iter().filter_map(|record| record.key);
        let (entries, errors) = self.journal.entries();
        for error in errors {
            tracing::warn!(%error, "intent log");
        }
        rows.chain(entries.into_iter().map(|(_, entry)| entry.key))
            .collect()
    }
}
