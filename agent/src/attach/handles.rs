//! The handles that the verbs work with.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use podwire_netns::Netlink;
use tokio::sync::watch;

use super::{Connections, Error, Kept, LastHolders, Lines};
use crate::config::{Config, Live, Mode};
use crate::flows::Flows;
use crate::ipam::Addresses;
use crate::ipam::spawner::Spawner;
use crate::journal::Journal;
use crate::observe::Metrics;
use crate::plan::{AttachmentKey, MAX_MTU};
use crate::pods::sources::Sources;
use crate::ports::Ports;

/// MTU in bytes of pods on a node without an uplink: Ethernet's.
const UNKNOWN_UPLINK_MTU: u32 = 1500;
/// The same if packets go through a tunnel: ovn-kubernetes' default.
const UNKNOWN_TUNNEL_MTU: u32 = 1400;

/// One node: its kernel, its switch, and the records of its attachments; one per process.
#[derive(Debug)]
pub struct Handles {
    /// The settings that are fixed at start.
    pub(crate) config: Config,
    /// The settings that may change.
    pub(crate) live: watch::Sender<Live>,
    /// The largest MTU in bytes that fits the node's uplink, minus the tunnel's overhead in OVN
    /// mode; None without an uplink.
    pub(crate) uplink_mtu: watch::Sender<Option<u32>>,
    /// The kernel.
    pub(crate) netlink: Netlink,
    /// Open vSwitch.
    pub(crate) ports: Ports,
    /// The flows of the bridge.
    pub(crate) flows: Flows,
    /// The intent log.
    pub(crate) journal: Journal,
    /// The holders of addresses.
    pub(crate) addresses: Addresses,
    /// The addresses whose tracked connections are still to be removed.
    pub(crate) connections: Connections,
    /// The last MAC address of each address.
    pub(crate) last_holders: LastHolders,
    /// Starts delegated IPAM plugins.
    pub(crate) spawner: Spawner,
    /// The sources of annotations.
    pub(crate) sources: Sources,
    /// Counters and histograms.
    pub(crate) metrics: Arc<Metrics>,
    /// The addresses of physical networks that are kept.
    pub(crate) kept: Kept,
    /// The order of operations.
    pub(crate) lines: Lines,
    /// Whether the last STATUS passed over ovn-controller's missing connection.
    pub(crate) lacks_southbound: AtomicBool,
    /// True once the cleanup at start has finished.
    pub(crate) settled: watch::Sender<bool>,
}

impl Handles {
    /// MTU in bytes of interfaces without one of their own.
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

    /// Whether the cleanup at start has finished.
    pub(crate) fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Waits until the cleanup at start has finished.
    pub(crate) async fn settled(&self) {
        // `self` holds the sender.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// Like [`Self::settled`], at most for `patience`: before that, it is unknown which addresses
    /// are taken.
    ///
    /// # Errors
    /// What did not finish; usually the database is missing.
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

    /// Every attachment in a row or in the intent log.
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
