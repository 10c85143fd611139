//! The bridge of plain mode, created if it is missing.

use crate::attach::Handles;
use crate::plan::{mac, mac_text};
use crate::ports::BridgeWanted;

/// How to create the bridge if it is missing.
pub(super) async fn wanted(node: &Handles) -> BridgeWanted {
    let kernel_datapath = match node.netlink.kernel_datapath_available().await {
        Ok(available) => available,
        Err(error) => {
            tracing::warn!(
                %error,
                "can't find out whether the kernel has an Open vSwitch datapath; using the \
                 userspace datapath"
            );
            false
        }
    };
    BridgeWanted {
        datapath_type: if kernel_datapath { "system" } else { "netdev" },
        // Pods cache their gateway's address; unless it is set, it is the lowest of the ports' and
        // changes as they come and go.
        hwaddr: mac_text(mac::bridge_mac(&[&node.config.bridge])),
        // Unless it is set, the bridge's MTU follows its smallest port.
        mtu: node.default_mtu(),
    }
}
