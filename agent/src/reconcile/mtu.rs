//! The MTU of pods to which nobody gave one: the uplink's, less what the tunnel takes in OVN mode, for as long as no setting says
//! otherwise.

use std::sync::Arc;

use crate::attach::Agent;
use crate::config::Mode;
use crate::netns::{self, LinkState};
use crate::ports::Tunnel;

/// Looks for the uplink and notes what fits it. Returns it, to be watched.
pub(super) async fn note(agent: &Agent, tunnel: Option<&Tunnel>) -> Option<LinkState> {
    let uplink = match uplink(agent, tunnel).await {
        Ok(uplink) => uplink,
        Err(error) => {
            tracing::warn!(%error, "the node's uplink can't be found; its MTU is taken for the usual one");
            None
        }
    };
    let overhead = tunnel.map_or(0, Tunnel::overhead);
    let fits = uplink
        .as_ref()
        .map_or(0, |link| link.mtu.saturating_sub(overhead));
    if agent.uplink_mtu.send_replace(fits) != fits {
        say(agent, uplink.as_ref(), overhead, fits);
    }
    uplink
}

/// Keeps to the uplink's MTU as it changes, or as another link becomes the uplink. Never ends.
pub async fn keep_uplink_mtu(agent: Arc<Agent>) {
    let changes = match netns::UplinkChanges::subscribe() {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(%error, "changes of the node's uplink are not noticed");
            return;
        }
    };
    let mut settled = agent.settled.clone();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let mut versions = agent.ports.subscribe();
    let mut live = agent.live.subscribe();
    let mut in_force = agent.default_mtu();
    loop {
        versions.mark_unchanged();
        live.mark_unchanged();
        let tunnel = tunnel(&agent);
        let uplink = note(&agent, tunnel.as_ref()).await;
        if agent.default_mtu() != in_force {
            in_force = agent.default_mtu();
            tracing::info!(mtu = in_force, "new pods get another MTU");
            if agent.config.ovn.mode == Mode::Plain {
                super::make_bridge(&agent).await;
            }
        }
        let other_link = async {
            let Some(link) = uplink else {
                return std::future::pending().await;
            };
            let mut states = agent.netlink.watch_link(&link.name);
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
            while self::tunnel(&agent) == tunnel {
                if versions.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = other_link => {}
            () = other_tunnel => {}
            _ = live.changed() => {}
            changed = changes.next() => if let Err(error) = changed {
                tracing::warn!(%error, "changes of the node's uplink are not noticed any more");
                return;
            }
        }
    }
}

/// The tunnel, in OVN mode.
pub(super) fn tunnel(agent: &Agent) -> Option<Tunnel> {
    (agent.config.ovn.mode == Mode::Ovn).then(|| agent.ports.tunnel())
}

/// The link that carries pods' packets off the node: that of the tunnel's end, or of the default route. Of several the one with
/// the smallest MTU.
async fn uplink(agent: &Agent, tunnel: Option<&Tunnel>) -> Result<Option<LinkState>, netns::Error> {
    let mut links = Vec::new();
    for end in tunnel
        .map(|tunnel| tunnel.ends.as_slice())
        .unwrap_or_default()
    {
        links.extend(agent.netlink.link_of_address(*end).await?);
    }
    if links.is_empty() {
        links = agent.netlink.default_route_links().await?;
    }
    Ok(links.into_iter().min_by_key(|link| link.mtu))
}

fn say(agent: &Agent, uplink: Option<&LinkState>, overhead: u32, fits: u32) {
    let Some(uplink) = uplink else { return };
    let (link, link_mtu) = (&uplink.name, uplink.mtu);
    tracing::info!(link, link_mtu, overhead, fits, "the node's uplink");
    let given = agent.live.borrow().mtu;
    if let Some(mtu) = given.filter(|mtu| *mtu > fits) {
        tracing::warn!(
            mtu,
            link,
            link_mtu,
            overhead,
            fits,
            "--mtu is more than the uplink carries: large packets to other nodes will be lost or fragmented"
        );
    }
}
