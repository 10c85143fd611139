//! Addresses of physical networks that a pod has: whether another host claims one (RFC 5227,
//! section 2.4).
//!
//! The pod's kernel answers whoever asks for its addresses. It does not notice one that says that
//! an address is its own, and neighbours then send to that one. So the agent hears such claims on
//! the pod's interface, announces the address again, and says so.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use nix::errno::Errno;
use podwire_daemon::files::FileEvents;
use tokio::sync::watch;
use tokio::time::sleep;

use super::links::namespace_of;
use super::{Handles, notice};
use crate::ipam::claims::{Claim, Claims};
use crate::ipam::dhcp::Leased;
use crate::ipam::{LinkError, Place};
use crate::journal::Entry;
use crate::observe::events::Events;
use crate::plan::{AttachmentKey, ids, is_physical, mac_text};
use crate::ports;

/// The time between two answers to claims, as long as RFC 5227 has it (DEFEND_INTERVAL, section
/// 1.1). Whatever is claimed meanwhile waits in the kernel, or is dropped there.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Whether an attachment has a port on a physical network.
pub(super) fn is_on_physical_network(entry: &Entry) -> bool {
    let mut ports = entry.ports.iter();
    ports.any(|port| is_physical(&port.external_ids))
}

/// The interface of an attachment on a physical network, and the addresses that it has there now;
/// if wanted, with those that are lost, which it may get back.
fn held(entry: &Entry, with_lost: bool) -> Option<(&str, Vec<IpAddr>)> {
    let mut ports = entry.ports.iter().map(|port| &port.external_ids);
    let ids = ports.find(|ids| is_physical(ids))?;
    let autonomous = entry.autonomous.iter().copied().map(IpNet::V6);
    let lease = entry.lease.as_ref().and_then(|it| net_of(it, with_lost));
    let lease6 = entry.lease6.as_ref().and_then(|it| net_of(it, with_lost));
    let all = ports::addresses(ids)
        .chain(lease)
        .chain(lease6)
        .chain(autonomous);
    let all: Vec<IpAddr> = all.map(|net| net.addr()).collect();
    Some((ids.get(ids::POD_IF_NAME)?, all))
}

/// The address of a lease, if that has not ended or a lost one is wanted, too.
fn net_of(lease: &impl Leased, with_lost: bool) -> Option<IpNet> {
    (with_lost || !lease.term().is_lost()).then(|| lease.net())
}

/// One attachment's defence, until it is gone.
pub(super) struct Defence {
    pub(super) node: Arc<Handles>,
    pub(super) key: AttachmentKey,
    /// Tells the pod's owner.
    pub(super) events: Option<Events>,
    /// Changes when the namespace's path may be gone.
    pub(super) removals: Option<watch::Receiver<()>>,
}

impl Defence {
    pub(super) async fn run(self) {
        let Some(entry) = self.node.journal.live(&self.key) else {
            return;
        };
        // It may get back one that it has lost before this agent began.
        let known = held(&entry, true);
        let (Some((ifname, addresses)), Some(removals)) = (known, &self.removals) else {
            return;
        };
        if addresses.is_empty() {
            return;
        }
        let attachment = &self.key;
        let watching = async {
            let claims = self.listen(&entry, ifname, &addresses).await?;
            tracing::debug!(%attachment, ?addresses, "its addresses are defended");
            self.answer(&claims).await
        };
        tokio::select! {
            // A socket keeps the namespace of a pod that is gone.
            () = path_gone(Path::new(&entry.netns), removals.clone()) => {}
            Err(error) = watching => {
                tracing::warn!(%attachment, %error, "its addresses are not defended any more");
            }
        }
    }

    async fn listen(
        &self,
        entry: &Entry,
        ifname: &str,
        addresses: &[IpAddr],
    ) -> Result<Claims, LinkError> {
        let Some(netns) = namespace_of(entry) else {
            return std::future::pending().await;
        };
        let ifname = ifname.to_owned();
        let place = Place { netns, ifname };
        Claims::watch(&self.node.netlink, &place, addresses).await
    }

    /// Answers claims. Returns an error if none can be heard any more.
    async fn answer(&self, claims: &Claims) -> Result<(), LinkError> {
        loop {
            let first = match claims.next().await {
                Err(LinkError::Socket { source, .. }) if is_down(&source) => continue,
                claim => claim?,
            };
            let arrived = std::iter::from_fn(|| claims.arrived());
            let all = std::iter::once(first).chain(arrived);
            let all: BTreeMap<IpAddr, Claim> = all.map(|claim| (claim.address, claim)).collect();
            let Some(entry) = self.node.journal.live(&self.key) else {
                return Ok(());
            };
            let held = held(&entry, false)
                .map(|(_, held)| held)
                .unwrap_or_default();
            for claim in all.into_values() {
                // The lease of a lost address is another host's.
                if held.contains(&claim.address) {
                    self.defend(&entry, claims, claim);
                }
            }
            sleep(DEFEND_INTERVAL).await;
        }
    }

    fn defend(&self, entry: &Entry, claims: &Claims, claim: Claim) {
        let Claim { address, holder } = claim;
        let (attachment, holder) = (&self.key, mac_text(holder));
        self.node.metrics.address_claimed();
        match claims.announce(address) {
            Ok(()) => tracing::warn!(
                %attachment, %address, holder,
                "another host says that the pod's address is its own; it was announced again"
            ),
            Err(error) => tracing::warn!(
                %attachment, %address, holder, %error,
                "another host says that the pod's address is its own"
            ),
        }
        if let Some(events) = &self.events {
            let (network, ifname) = (&attachment.network, &attachment.ifname);
            let message = format!(
                "the host {holder} says that address {address} of {ifname} on network {network} \
                 is its own: give one of the two another address"
            );
            notice::address_claimed(events, entry, message);
        }
    }
}

/// Whether a link was down: it may come up again.
fn is_down(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENETDOWN as i32)
}

/// Waits until there is nothing at the path. `removals` changes when that may be so.
async fn path_gone(path: &Path, mut removals: watch::Receiver<()>) {
    while path.exists() {
        if removals.changed().await.is_err() {
            return;
        }
    }
}

/// What is removed from the directories of namespaces; usually, it is one directory.
#[derive(Default)]
pub(super) struct Removals(HashMap<PathBuf, watch::Receiver<()>>);

impl Removals {
    /// Changes when something in the path's directory is removed. None for a namespace that is
    /// named by a process: nothing tells its end, and a socket would keep it.
    pub(super) fn beside(&mut self, path: &str) -> Option<watch::Receiver<()>> {
        let path = Path::new(path);
        let directory = path.parent().filter(|_| !path.starts_with("/proc"))?;
        if let Some(known) = self.0.get(directory)
            && known.has_changed().is_ok()
        {
            return Some(known.clone());
        }
        let (sender, receiver) = watch::channel(());
        tokio::spawn(tell(directory.to_owned(), sender));
        self.0.insert(directory.to_owned(), receiver.clone());
        Some(receiver)
    }
}

/// Tells of removals in a directory, until it can't be watched.
async fn tell(directory: PathBuf, sender: watch::Sender<()>) {
    let told = async {
        loop {
            // Anew each time: the directory may be another one.
            let events = FileEvents::of_removals(&directory)?;
            sender.send_replace(());
            events.next().await?;
        }
    };
    let told: io::Result<()> = told.await;
    if let Err(error) = told {
        let directory = directory.display();
        tracing::warn!(%directory, %error, "addresses of pods there are not defended");
    }
}
