//! The ends of a packet's path: the pods' ports, their addresses and next hops.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use macaddr::MacAddr6;
use podwire_netns::{Netlink, Netns};
use serde::Serialize;

use super::ovn;
use crate::ToolError;
use podwire::config::Mode;
use podwire::inspect::{PortView, StatusView};
use podwire::plan::ids;

/// An end of the packet's path.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    pub(super) pod: Option<String>,
    /// The name of the port on the bridge; None outside the node.
    pub(super) port: Option<String>,
    address: IpAddr,
    #[serde(serialize_with = "as_text")]
    mac: MacAddr6,
}

fn as_text<S: serde::Serializer>(mac: &MacAddr6, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&podwire::plan::mac_text(*mac))
}

/// The port of a pod, by its name or its container's id.
///
/// # Errors
/// There is none on this node, or there are several pods of that name.
pub(crate) fn port_of<'a>(
    ports: &'a [PortView],
    wanted: &str,
    interface: Option<&str>,
) -> Result<&'a PortView, ToolError> {
    let is_wanted = |port: &&PortView| {
        let pod = port.pod.as_deref().unwrap_or_default();
        let name = pod.rsplit('/').next().unwrap_or_default();
        let id = port.key.as_ref().map(|key| key.container_id.as_str());
        let is_named = pod == wanted || name == wanted;
        (is_named || id.is_some_and(|id| wanted.len() >= 6 && id.starts_with(wanted)))
            && interface.is_none_or(|name| port.pod_ifname.as_deref() == Some(name))
    };
    let found: Vec<&PortView> = ports.iter().filter(is_wanted).collect();
    let first = found
        .iter()
        .find(|it| it.pod_ifname.as_deref() == Some("eth0"));
    let other = match found.iter().any(|it| it.pod != found[0].pod) {
        true => {
            let what = format!("several pods are called {wanted}; give it as NAMESPACE/NAME");
            return Err(ToolError::Unable(what));
        }
        false => found.first(),
    };
    first.or(other).copied().ok_or_else(|| {
        let interface =
            interface.map_or_else(String::new, |name| format!(" with interface {name}"));
        ToolError::NotFound(format!(
            "no pod {wanted}{interface} on this node\nlook: podwire ports; a pod of another node \
             is given by its address"
        ))
    })
}

pub(super) fn address_is(port: &PortView, ip: IpAddr) -> bool {
    port.addresses.iter().any(|net| net.addr() == ip)
}

pub(super) fn address_of(port: &PortView, wants_v6: bool) -> Result<IpAddr, ToolError> {
    let of_family = |net: &&IpNet| net.addr().is_ipv6() == wants_v6;
    let found = port.addresses.iter().find(of_family);
    // A node may have IPv6 only.
    let any = port.addresses.first().filter(|_| !wants_v6);
    found.or(any).map(IpNet::addr).ok_or_else(|| {
        let family = if wants_v6 { "IPv6 address" } else { "address" };
        ToolError::Unable(format!("port {} has no {family}", port.name))
    })
}

pub(super) fn mac_of(port: &PortView) -> Result<MacAddr6, ToolError> {
    let mac = port.mac.as_deref().and_then(|mac| mac.parse().ok());
    mac.ok_or_else(|| {
        let key = ids::ATTACHED_MAC;
        ToolError::Unable(format!(
            "port {} has no MAC address in external_ids:{key}",
            port.name
        ))
    })
}

/// The MAC address to which the pod would send: the receiver's own, or its gateway's.
pub(super) async fn next_hop_mac(
    from: &PortView,
    dst: IpAddr,
    receiver: Option<&PortView>,
    status: &StatusView,
) -> Result<MacAddr6, ToolError> {
    let is_on_link = from.addresses.iter().any(|net| net.contains(&dst));
    if let (true, Some(receiver)) = (is_on_link, receiver) {
        return mac_of(receiver);
    }
    let hop = match is_on_link {
        true => dst,
        false => gateway(from, dst).await?,
    };
    let found = match &status.switch.ovn {
        ovn if ovn.remote.is_some() && status.mode == Mode::Ovn.name() => {
            ovn::router_mac(ovn, hop).await
        }
        _ => bridge_mac(&status.bridge),
    };
    found.map_err(|problem| {
        ToolError::Unable(format!(
            "the MAC address of {hop}, the next hop to {dst}, is not known: {problem}\n\
             give it with --dst-mac; in the pod, ip neigh shows it"
        ))
    })
}

/// The gateway for a destination in the pod's routes.
async fn gateway(from: &PortView, dst: IpAddr) -> Result<IpAddr, ToolError> {
    let no_way = |why: String| ToolError::Unable(format!("the pod's route to {dst}: {why}"));
    let netns = from.netns.as_deref().unwrap_or_default();
    let netns = Netns::open(netns).map_err(|error| no_way(error.to_string()))?;
    let netlink = Netlink::start(None).map_err(ToolError::Kernel)?;
    let ifname = from.pod_ifname.as_deref().unwrap_or_default();
    let seen = netlink.observe(Arc::new(netns), ifname).await;
    let seen = seen.map_err(ToolError::Kernel)?;
    let routes = seen.map(|it| it.routes).unwrap_or_default();
    let ways = routes.iter().filter(|route| route.dst.contains(&dst));
    let best = ways.max_by_key(|route| route.dst.prefix_len());
    let gateway = best.and_then(|route| route.gateway);
    gateway.ok_or_else(|| no_way(format!("its interface {ifname} has none")))
}

/// The MAC address of the bridge's local port, which is the pods' gateway in plain mode.
fn bridge_mac(bridge: &str) -> Result<MacAddr6, String> {
    let path = format!("/sys/class/net/{bridge}/address");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    text.trim()
        .parse()
        .map_err(|_| format!("{path}: no MAC address"))
}

pub(super) fn place(port: Option<&PortView>, address: IpAddr, mac: MacAddr6) -> Place {
    Place {
        pod: port.and_then(|port| port.pod.clone()),
        port: port.map(|port| port.name.clone()),
        address,
        mac,
    }
}
