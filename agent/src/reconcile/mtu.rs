//! The MTU of pods without one of their own: the uplink's, minus the tunnel's overhead in OVN mode,
//! unless a setting overrides it. If ovn-kubernetes' management port exists, pods get its MTU: it
//! is the cluster's, which may be smaller than what fits, and the larger packets of a pod would not
//! reach its peers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use podwire_netns::{self as netns, LinkState, Netlink};

use crate::attach::Handles;
use crate::config::usual::MANAGEMENT_PORT;
use crate::config::{Config, Mode};
use crate::ports::{Encapsulation, Ports};

/// How long `--print-config` waits for Open vSwitch's database.
const DATABASE_DEADLINE: Duration = Duration::from_secs(1);

/// The link by which pods' packets leave the node, and its MTU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uplink {
    /// The link.
    pub link: LinkState,
    /// The tunnel's overhead in bytes; 0 without a tunnel.
    pub overhead: u32,
}

impl Uplink {
    /// The largest MTU in bytes of a pod whose packets fit.
    pub fn fits(&self) -> u32 {
        self.link.mtu.saturating_sub(self.overhead)
    }

    /// Finds it without a running agent: on the current tokio runtime, in the calling thread's
    /// network namespace.
    pub async fn find(config: &Config) -> Option<Self> {
        let netlink = Netlink::start(None).ok()?;
        let tunnel = match config.ovn.mode {
            Mode::Plain => None,
            Mode::Ovn => {
                let ports = Ports::connect(config);
                ports.synced(DATABASE_DEADLINE).await.ok()?;
                Some(ports.tunnel())
            }
        };
        find(&netlink, tunnel.as_ref()).await.ok()?
    }
}

/// `eth0's 1500 less 58 for the tunnel`.
impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'s {}", self.link.name, self.link.mtu)?;
        match self.overhead {
            0 => Ok(()),
            overhead => write!(f, " less {overhead} for the tunnel"),
        }
    }
}

/// Finds the uplink and records its MTU.
pub(super) async fn find_uplink(node: &Handles) {
    note(node, tunnel(node).as_ref()).await;
}

/// Finds the uplink and records its MTU. Returns it, to be watched.
async fn note(node: &Handles, tunnel: Option<&Encapsulation>) -> Option<Uplink> {
    let uplink = match find(&node.netlink, tunnel).await {
        Ok(uplink) => uplink,
        Err(error) => {
            tracing::warn!(
                %error,
                "the node's uplink can't be found; using the default MTU"
            );
            None
        }
    };
    let fits = uplink.as_ref().map(Uplink::fits);
    if node.uplink_mtu.send_replace(fits) != fits {
        say(node, uplink.as_ref());
    }
    uplink
}

/// Follows the uplink's MTU as it changes, or as another link becomes the uplink. Never returns.
pub async fn keep_uplink_mtu(node: Arc<Handles>) {
    let mut changes = match netns::uplink_changes() {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(%error, "changes of the node's uplink are not noticed");
            return;
        }
    };
    node.settled().await;
    let mut versions = node.ports.subscribe();
    let mut live = node.live.subscribe();
    let mut in_force = node.default_mtu();
    loop {
        versions.mark_unchanged();
        live.mark_unchanged();
        let tunnel = tunnel(&node);
        let uplink = note(&node, tunnel.as_ref()).await;
        if node.default_mtu() != in_force {
            in_force = node.default_mtu();
            tracing::info!(mtu = in_force, "new pods get another MTU");
            if node.config.ovn.mode == Mode::Plain {
                super::make_bridge(&node).await;
            }
        }
        let other_link = async {
            let Some(link) = uplink else {
                return std::future::pending().await;
            };
            let link = link.link;
            let mut states = node.netlink.watch_link(&link.name);
            if states
                .wait_for(|now| now.as_ref() != Some(&link))
                .await
                .is_err()
            {
                std::future::pending().await
            }
        };
        let other_tunnel = async {
            // The replica changes with every port; its tunnel hardly ever.
            while self::tunnel(&node) == tunnel {
                if versions.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let mut management_port = node.netlink.watch_link(MANAGEMENT_PORT);
        tokio::select! {
            () = other_link => {}
            Ok(()) = management_port.changed(), if tunnel.is_some() => {}
            () = other_tunnel => {}
            _ = live.changed() => {}
            change = changes.next() => if change.is_none() {
                tracing::warn!("changes of the node's uplink are not noticed any more");
                return;
            }
        }
        // One look serves all that has been reported: many links get addresses together, and each
        // look reads all routes.
        while changes.next().now_or_never().flatten().is_some() {}
    }
}

/// The tunnel, in OVN mode.
fn tunnel(node: &Handles) -> Option<Encapsulation> {
    (node.config.ovn.mode == Mode::Ovn).then(|| node.ports.tunnel())
}

/// The link that carries pods' packets off the node: that of the tunnel's local address, or of the
/// default route. Of several, the one with the smallest MTU.
async fn find(
    netlink: &Netlink,
    tunnel: Option<&Encapsulation>,
) -> Result<Option<Uplink>, netns::Error> {
    let mut links = Vec::new();
    let ends = tunnel.map(|tunnel| tunnel.ends.as_slice());
    for end in ends.unwrap_or_default() {
        links.extend(netlink.link_of_address(*end).await?);
    }
    if links.is_empty() {
        links = netlink.default_route_links().await?;
    }
    let link = links.into_iter().min_by_key(|link| link.mtu);
    let overhead = tunnel.map_or(0, Encapsulation::overhead);
    let uplink = link.map(|link| Uplink { link, overhead });
    if tunnel.is_some()
        && let Some(link) = netlink.host_link(MANAGEMENT_PORT).await?
        && uplink
            .as_ref()
            .is_none_or(|uplink| link.mtu <= uplink.fits())
    {
        return Ok(Some(Uplink { link, overhead: 0 }));
    }
    Ok(uplink)
}

fn say(node: &Handles, uplink: Option<&Uplink>) {
    let Some(uplink) = uplink else { return };
    let fits = uplink.fits();
    tracing::info!(%uplink, fits, "the MTU that fits the node's uplink");
    let given = node.live.borrow().mtu;
    if let Some(mtu) = given.filter(|mtu| *mtu > fits) {
        tracing::warn!(
            mtu,
            %uplink,
            fits,
            "--mtu is more than the uplink carries, or the cluster's pods have: large packets are \
             lost or cut"
        );
    }
}
