//! The bridge of plain mode: made when it is missing, with a local port that stays the pods' gateway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attach::Agent;
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
        mtu: agent.config.mtu,
    }
}

/// Sees to it that the bridge's local port has the gateway addresses, also after ovs-vswitchd has made it anew. Never ends.
pub async fn keep_gateway(agent: Arc<Agent>) {
    let addresses = agent.config.gateway_addresses();
    if addresses.is_empty() {
        return;
    }
    let name = agent.config.bridge.clone();
    let mut link = agent.netlink.watch_link(&name);
    let mut done = None;
    loop {
        let seen = link.borrow_and_update().clone();
        match seen {
            // The index tells one local port from the next; that it was set down is an operator's doing, and stays.
            Some(state) if done != Some(state.ifindex) => {
                let deadline = Instant::now() + LOCAL_PORT_DEADLINE;
                match agent
                    .netlink
                    .ensure_addresses(&name, addresses.clone(), true, deadline)
                    .await
                {
                    Ok(state) => {
                        done = Some(state.ifindex);
                        let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                        tracing::info!(
                            link = name,
                            addresses = list.join(","),
                            "the pods' gateway is up"
                        );
                    }
                    Err(error) => tracing::error!(%error, "the pods have no gateway"),
                }
            }
            _ => {}
        }
        if link.changed().await.is_err() {
            return;
        }
    }
}
