//! Keeps leases of addresses from the physical network, and gives them back.
//!
//! The intent log has each lease, so that the next agent keeps it. An address whose lease has ended
//! is somebody else's: it is taken from the pod, and the same one is asked for again.

use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use podwire_cni::spool::boottime;
use podwire_netns::{Observed, Route};
use tokio::time::{Instant, sleep};

use super::links::namespace_of;
use super::{Error, Handles};
use crate::ipam::Place;
use crate::ipam::claims::Claims;
use crate::ipam::dhcp::{DhcpError, Lease, Leased, Stage};
use crate::ipam::dhcp6::Lease6;
use crate::journal::{self, Entry, State};
use crate::plan::{AttachmentKey, mac_text};

/// How long one attempt to extend a lease waits for an answer.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(4);
/// How long an attempt to get a lost address back asks for it.
const REGAIN_DEADLINE: Duration = Duration::from_secs(10);
/// The times between such attempts: the first, twice as long after each, and the longest.
const FIRST_REGAIN_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REGAIN_PAUSE: Duration = Duration::from_secs(30);

/// A lease of a family, as an attachment's entry in the intent log has it.
pub(super) trait Noted: Leased {
    /// Its place there.
    fn of(entry: &mut Entry) -> &mut Option<Self>;
}

impl Noted for Lease {
    fn of(entry: &mut Entry) -> &mut Option<Self> {
        &mut entry.lease
    }
}

impl Noted for Lease6 {
    fn of(entry: &mut Entry) -> &mut Option<Self> {
        &mut entry.lease6
    }
}

/// Gives a lease back. Without the pod's interface, it runs out at the server.
pub(super) async fn release_lease(
    node: &Handles,
    key: &AttachmentKey,
    place: &Place,
    lease: &impl Leased,
) {
    if lease.term().is_lost() {
        return;
    }
    if let Err(error) = lease.release(&node.netlink, place).await {
        tracing::warn!(
            attachment = %key,
            address = %lease.net(),
            %error,
            "the lease is not given back, and runs out at the server"
        );
    }
}

/// Sets address and routes of a lease in the pod; returns the routes.
pub(super) async fn assign(
    node: &Handles,
    place: &Place,
    lease: &impl Leased,
) -> Result<Vec<Route>, Error> {
    let (netlink, ifname) = (&node.netlink, &place.ifname);
    let netns = || Arc::clone(&place.netns);
    let seen = netlink.observe(netns(), ifname).await?;
    let default = IpNet::V4(Ipv4Net::default());
    let has_default = |seen: Observed| seen.defaults_elsewhere.contains(&default);
    let routes = lease.routes(seen.is_some_and(has_default));
    let addresses = vec![lease.net()];
    netlink
        .assign(netns(), ifname, addresses, routes.clone())
        .await?;
    Ok(routes)
}

/// Leases that are kept, until their attachment is gone.
pub(super) struct Keeping {
    pub(super) node: Arc<Handles>,
    pub(super) key: AttachmentKey,
}

impl Keeping {
    /// Keeps the lease of a family, if there is one.
    pub(super) async fn run<L: Noted>(&self) {
        let mut pause = None;
        let mut regain_pause = FIRST_REGAIN_PAUSE;
        while let Some((entry, lease)) = self.find::<L>() {
            let term = *lease.term();
            let Some(until_renewal) = term.until_renewal(boottime()) else {
                return;
            };
            sleep(pause.take().unwrap_or(until_renewal)).await;
            // Opened for each step: an open one would keep the namespace of a pod that is gone.
            let Some(netns) = namespace_of(&entry) else {
                return;
            };
            let place = lease.place(netns);
            match term.stage(boottime()) {
                Stage::Bound => {}
                Stage::Renewing => pause = self.extend(&place, &lease, false).await,
                Stage::Rebinding => pause = self.extend(&place, &lease, true).await,
                Stage::Ended if !term.is_lost() => {
                    pause = self
                        .lose(&place, &lease, "it was not renewed in time")
                        .await;
                }
                Stage::Ended => match self.regain::<L>(&place, &lease).await {
                    Ok(noted) => {
                        pause = noted;
                        regain_pause = FIRST_REGAIN_PAUSE;
                    }
                    Err(error) => {
                        let (key, address) = (&self.key, lease.net());
                        tracing::warn!(
                            attachment = %key, %address, error,
                            "the pod is still without its address"
                        );
                        pause = Some(regain_pause);
                        regain_pause = LONGEST_REGAIN_PAUSE.min(regain_pause * 2);
                    }
                },
            }
        }
    }

    /// The attachment and its lease, while it lives.
    fn find<L: Noted>(&self) -> Option<(Entry, L)> {
        let mut entry = self.node.journal.live(&self.key)?;
        let lease = L::of(&mut entry).take()?;
        Some((entry, lease))
    }

    /// Asks the lease's server or, if `any` is set, all of them for more time. Like the following
    /// ones, it returns after which pause to go on if the lease's times don't say it.
    async fn extend(&self, place: &Place, lease: &impl Noted, any: bool) -> Option<Duration> {
        let deadline = Instant::now() + RENEWAL_DEADLINE.min(lease.term().left(boottime()));
        match lease.renew(&self.node.netlink, place, any, deadline).await {
            Ok(extended) => self.note(extended),
            Err(error @ DhcpError::Refused { .. }) => {
                self.lose(place, lease, &error.to_string()).await
            }
            Err(error) => {
                let (key, address) = (&self.key, lease.net());
                tracing::warn!(
                    attachment = %key, %address, any, %error,
                    "the lease is not renewed yet"
                );
                Some(lease.term().pause(boottime()))
            }
        }
    }

    /// Takes the address from the pod.
    async fn lose(&self, place: &Place, lease: &impl Noted, reason: &str) -> Option<Duration> {
        let (key, address) = (&self.key, lease.net());
        let netns = Arc::clone(&place.netns);
        let withdrawing = self
            .node
            .netlink
            .withdraw(netns, &place.ifname, lease.net());
        match withdrawing.await {
            Ok(()) => tracing::error!(
                attachment = %key, %address, reason,
                "the lease has ended: its address was taken from the pod, and is asked for again"
            ),
            Err(error) => tracing::error!(
                attachment = %key, %address, reason, %error,
                "the lease has ended, but its address stays in the pod"
            ),
        }
        self.note(lease.lost())
    }

    /// Asks for a lost address, and for no other one: it is the one that the runtime knows.
    async fn regain<L: Noted>(&self, place: &Place, lost: &L) -> Result<Option<Duration>, String> {
        let netlink = &self.node.netlink;
        let deadline = Instant::now() + REGAIN_DEADLINE;
        let acquired = L::acquire(netlink, place, lost.provided(), Some(lost), deadline).await;
        let lease = acquired.map_err(text)?;
        if lease.net() != lost.net() {
            let (server, other) = (lease.server(), lease.net());
            release_lease(&self.node, &self.key, place, &lease).await;
            return Err(format!("server {server} gives {other} instead"));
        }
        let wanted = lost.net().addr();
        let claims = Claims::open(netlink, place, &[wanted])
            .await
            .map_err(text)?;
        if let Some(claim) = claims.holder().await.map_err(text)? {
            lease.decline(netlink, place).await.map_err(text)?;
            return Err(format!("the host {} has it", mac_text(claim.holder)));
        }
        assign(&self.node, place, &lease).await.map_err(text)?;
        claims.announce(wanted).map_err(text)?;
        let (key, address) = (&self.key, lease.net());
        tracing::info!(attachment = %key, %address, "the pod has its address again");
        Ok(self.note(lease))
    }

    fn note<L: Noted>(&self, lease: L) -> Option<Duration> {
        let noted = change(&self.node, &self.key, State::Live, |entry| {
            *L::of(entry) = Some(lease);
        });
        // What is not recorded would be done again at once.
        noted.err().map(|error| {
            tracing::error!(attachment = %self.key, %error, "intent log");
            LONGEST_REGAIN_PAUSE
        })
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Changes an attachment's entry in the intent log, if it is in this state.
pub(super) fn change(
    node: &Handles,
    key: &AttachmentKey,
    state: State,
    change: impl FnOnce(&mut Entry),
) -> Result<(), journal::Error> {
    let Some((found, mut entry)) = node.journal.find(key)? else {
        return Ok(());
    };
    if found == state {
        change(&mut entry);
        node.journal.write(&entry, state)?;
    }
    Ok(())
}
