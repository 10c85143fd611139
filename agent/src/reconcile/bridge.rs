//! The bridge of plain mode: made when it is missing, with a local port that stays the pods' gateway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attach::Agent;
use crate::config::Mode;
use crate::plan::{mac, mac_text};
use crate::ports::BridgeWanted;

/// How long after the bridge's row ovs-vswitchd may take to make its local port.
const LOCAL_PORT_DEADLINE: Duration = Duration::from_secs(10);

/// What the bridge should be like if it has to be made.
pub(super) async fn wanted(agent: &Agent) -> BridgeWanted {
    let kernel_datapath = match agent.netlink.kernel_datapath_available().await {
        Ok(available) => available,
        Err(error) => {
            tracing::warn!(%error, "can't tell whether the kernel has an Open vSwitch datapath; taking the userspace one");
            false
        }
    };
    BridgeWanted {
        datapath_type: if kernel_datapath { "system" } else { "netdev" },
        // Pods remember their gateway's address; left alone it is the lowest of the ports' and changes as they come and go.
        hwaddr: mac_text(mac::bridge_mac(&[&agent.config.bridge])),
        // Left alone the bridge's MTU follows its smallest port.
        mtu: agent.default_mtu(),
    }
}

/// Sees to it that the bridge's local port has the gateway addresses, also after ovs-vswitchd has made it anew. Never ends.
pub async fn keep_gateway(agent: Arc<Agent>) {
    if !agent.config.gateway || agent.config.ovn.mode == Mode::Ovn {
        return;
    }
    let name = agent.config.bridge.clone();
    let mut link = agent.netlink.watch_link(&name);
    let mut live = agent.live.subscribe();
    let mut announced = None;
    let mut known = Vec::new();
    loop {
        let addresses = agent.config.gateway_addresses(&live.borrow_and_update());
        if addresses != known {
            known.clone_from(&addresses);
            announced = None;
        }
        let seen = link.borrow_and_update().clone();
        // A port that somebody set down stays down; what was never up is new, and ours to set up.
        if seen.is_some_and(|state| state.up || announced != Some(state.ifindex)) {
            // Also when it is the one we know: ovs-vswitchd sets a tap down and up again to change its MAC, and on the way down
            // the kernel drops its IPv6 addresses (`addrconf_ifdown`).
            let deadline = Instant::now() + LOCAL_PORT_DEADLINE;
            // Its MAC is set before its ofport is told; until then addresses come and go.
            if let Err(error) = agent.ports.wait_local_port(LOCAL_PORT_DEADLINE).await {
                tracing::warn!(%error, "the bridge's local port is not in use yet");
            }
            let set = agent
                .netlink
                .ensure_addresses(&name, addresses.clone(), true, deadline);
            match set.await {
                Ok(state) if announced != Some(state.ifindex) => {
                    announced = Some(state.ifindex);
                    let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                    tracing::info!(
                        link = name,
                        addresses = list.join(","),
                        "the pods' gateway is up"
                    );
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "the pods have no gateway"),
            }
        }
        tokio::select! {
            changed = link.changed() => if changed.is_err() { return },
            // Gateways of subnets that are gone stay: pods may have addresses of them.
            _ = live.wait_for(|live| agent.config.gateway_addresses(live) != known) => {}
        }
    }
}
