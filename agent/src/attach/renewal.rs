//! Keeps leases of addresses from the physical network, and gives them back.
//!
//! The intent log has each lease, so that the next agent keeps it. An address whose lease has ended
//! is somebody else's: it is taken from the pod, and the same one is asked for again.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use podwire_cni::spool::boottime;
use podwire_netns::Route;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep};

use super::links::namespace_of;
use super::{Error, Handles};
use crate::ipam::dhcp::{self, DhcpError, Lease, Place, Probe, Stage};
use crate::journal::{self, Entry, State};
use crate::plan::{AttachmentKey, mac_text};

/// How long one attempt to extend a lease waits for an answer.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(4);
/// How long an attempt to get a lost address back asks for it.
const REGAIN_DEADLINE: Duration = Duration::from_secs(10);
/// The times between such attempts: the first, twice as long after each, and the longest.
const FIRST_REGAIN_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REGAIN_PAUSE: Duration = Duration::from_secs(30);

/// Keeps the leases of the previous agent, and those that ADDs take, as long as the agent runs.
pub(crate) async fn keep_leases(node: Arc<Handles>, mut to_keep: UnboundedReceiver<AttachmentKey>) {
    node.settled().await;
    for (state, entry) in node.journal.entries().0 {
        if state == State::Live && entry.lease.is_some() {
            node.leases.keep(&entry.key);
        }
    }
    while let Some(key) = to_keep.recv().await {
        let keeping = Keeping {
            node: Arc::clone(&node),
            key: key.clone(),
        };
        let task = tokio::spawn(keeping.run()).abort_handle();
        node.leases.kept_by(key, task);
    }
}

/// Gives a lease back. Without the pod's interface, it runs out at the server.
pub(super) async fn release_lease(
    node: &Handles,
    key: &AttachmentKey,
    place: &Place,
    lease: &Lease,
) {
    if lease.is_lost() {
        return;
    }
    if let Err(error) = dhcp::release(&node.netlink, place, lease).await {
        tracing::warn!(
            attachment = %key,
            address = %lease.address,
            %error,
            "the lease is not given back, and runs out at the server"
        );
    }
}

/// Sets address and routes of a lease in the pod; returns the routes.
pub(super) async fn assign(
    node: &Handles,
    place: &Place,
    lease: &Lease,
) -> Result<Vec<Route>, Error> {
    let (netlink, ifname) = (&node.netlink, &place.ifname);
    let netns = || Arc::clone(&place.netns);
    let seen = netlink.observe(netns(), ifname).await?;
    let has_default = seen.is_some_and(|seen| seen.default_elsewhere);
    let routes = routes(lease, has_default);
    let addresses = vec![lease.net()];
    netlink
        .assign(netns(), ifname, addresses, routes.clone())
        .await?;
    Ok(routes)
}

/// The routes that come with a lease. If there are classless ones, the routers are not for use (RFC
/// 3442). The pod's first interface keeps its default route.
fn routes(lease: &Lease, has_default: bool) -> Vec<Route> {
    let default = (Ipv4Net::default(), lease.routers.first().copied());
    let mut all = match (&*lease.routes, default) {
        ([], (_, None)) => Vec::new(),
        ([], (dst, Some(router))) => vec![(dst, router)],
        (some, _) => some.to_vec(),
    };
    all.retain(|(dst, _)| !has_default || dst.prefix_len() > 0);
    // A route to a next hop's network must exist before the routes through it.
    all.sort_by_key(|(_, next_hop)| !next_hop.is_unspecified());
    let route = |(dst, next_hop): (Ipv4Net, Ipv4Addr)| {
        let gateway = (!next_hop.is_unspecified()).then_some(IpAddr::V4(next_hop));
        Route {
            onlink: gateway.is_some() && !lease.address.contains(&next_hop),
            ..Route::new(IpNet::V4(dst.trunc()), gateway)
        }
    };
    all.into_iter().map(route).collect()
}

/// One lease that is kept, until its attachment is gone.
struct Keeping {
    node: Arc<Handles>,
    key: AttachmentKey,
}

impl Keeping {
    async fn run(self) {
        let mut pause = None;
        let mut regain_pause = FIRST_REGAIN_PAUSE;
        while let Some((entry, lease)) = self.find() {
            let Some(until_renewal) = lease.until_renewal(boottime()) else {
                return;
            };
            sleep(pause.take().unwrap_or(until_renewal)).await;
            // Opened for each step: an open one would keep the namespace of a pod that is gone.
            let Some(netns) = namespace_of(&entry) else {
                return;
            };
            let place = lease.place(netns);
            match lease.stage(boottime()) {
                Stage::Bound => {}
                Stage::Renewing => pause = self.extend(&place, &lease, false).await,
                Stage::Rebinding => pause = self.extend(&place, &lease, true).await,
                Stage::Ended if !lease.is_lost() => {
                    pause = self
                        .lose(&place, &lease, "it was not renewed in time")
                        .await;
                }
                Stage::Ended => match self.regain(&place, &lease).await {
                    Ok(noted) => {
                        pause = noted;
                        regain_pause = FIRST_REGAIN_PAUSE;
                    }
                    Err(error) => {
                        let (key, address) = (&self.key, lease.address);
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
    fn find(&self) -> Option<(Entry, Lease)> {
        match self.node.journal.find(&self.key) {
            Ok(Some((State::Live, mut entry))) => {
                let lease = entry.lease.take()?;
                Some((entry, lease))
            }
            _ => None,
        }
    }

    /// Asks the lease's server or, if `any` is set, all of them for more time. Like the following
    /// ones, it returns after which pause to go on if the lease's times don't say it.
    async fn extend(&self, place: &Place, lease: &Lease, any: bool) -> Option<Duration> {
        let deadline = Instant::now() + RENEWAL_DEADLINE.min(lease.left(boottime()));
        match dhcp::renew(&self.node.netlink, place, lease, any, deadline).await {
            Ok(extended) => self.note(extended),
            Err(error @ DhcpError::Refused { .. }) => {
                self.lose(place, lease, &error.to_string()).await
            }
            Err(error) => {
                let (key, address) = (&self.key, lease.address);
                tracing::warn!(
                    attachment = %key, %address, any, %error,
                    "the lease is not renewed yet"
                );
                Some(lease.pause(boottime()))
            }
        }
    }

    /// Takes the address from the pod.
    async fn lose(&self, place: &Place, lease: &Lease, reason: &str) -> Option<Duration> {
        let (key, address) = (&self.key, lease.address);
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
    async fn regain(&self, place: &Place, lost: &Lease) -> Result<Option<Duration>, String> {
        let netlink = &self.node.netlink;
        let wanted = lost.address.addr();
        let deadline = Instant::now() + REGAIN_DEADLINE;
        let acquired = dhcp::acquire(netlink, place, Some(wanted), deadline).await;
        let lease = acquired.map_err(text)?;
        if lease.address != lost.address {
            let (server, other) = (lease.server, lease.address);
            release_lease(&self.node, &self.key, place, &lease).await;
            return Err(format!("server {server} gives {other} instead"));
        }
        let probe = Probe::open(netlink, place).await.map_err(text)?;
        if let Some(holder) = probe.holder(wanted).await.map_err(text)? {
            dhcp::decline(netlink, place, &lease).await.map_err(text)?;
            return Err(format!("the host {} has it", mac_text(holder)));
        }
        assign(&self.node, place, &lease).await.map_err(text)?;
        probe.announce(wanted).map_err(text)?;
        let (key, address) = (&self.key, lease.address);
        tracing::info!(attachment = %key, %address, "the pod has its address again");
        Ok(self.note(lease))
    }

    fn note(&self, lease: Lease) -> Option<Duration> {
        let noted = change(&self.node, &self.key, State::Live, |entry| {
            entry.lease = Some(lease);
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
