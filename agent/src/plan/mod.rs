//! Computes the links, addresses, routes and rows to create, from what a pod should get and the
//! node's facts.
//!
//! Pure: no clock, no file, no socket. Every request that can be refused without a look at the
//! kernel or at OVS is refused here, so that a refusal leaves nothing behind. The modules that
//! execute a plan add nothing to it and decide nothing.

use ipnet::IpNet;
use podwire_netns::{LinkSpec, PodIpv6};

mod address;
mod error;
pub mod mac;
mod names;
pub mod result;
mod routes;
mod rows;
mod spec;

pub use address::{not_a_host, not_an_interfaces};
pub use error::PlanError;
pub use mac::pod_mac;
pub use names::{derived_link_name, host_link_names, stable_hash};
pub use rows::{ids, is_physical, mac_text};
pub use spec::{
    AttachmentKey, Bandwidth, InterfaceSpec, NodeFacts, PodRef, PortName, PortPlan, Subject,
    SwitchPort,
};

/// Smallest MTU that IPv4 (RFC 791 §3.1) and a veth device (`ETH_MIN_MTU`) allow.
pub const MIN_MTU: u32 = 68;

/// Smallest MTU that IPv6 allows (RFC 8200 §5). Below it the kernel removes the link's IPv6
/// addresses.
pub const MIN_MTU_IPV6: u32 = 1280;

/// Largest MTU of a veth device (`ETH_MAX_MTU`).
pub const MAX_MTU: u32 = 65_535;

/// The most interfaces of one attachment, and the most addresses and routes of one interface: far
/// more than any pod has, and no more than can be set within a deadline.
const MOST_INTERFACES: usize = 64;
const MOST_ADDRESSES: usize = 1_024;
const MOST_ROUTES: usize = 4_096;

/// Plans the ports of one attachment.
///
/// # Errors
/// [`PlanError`]: a request can't be met.
pub fn plan(
    subject: &Subject<'_>,
    interfaces: &[InterfaceSpec],
    node: &NodeFacts,
) -> Result<Vec<PortPlan>, PlanError> {
    check_count(
        &subject.key.ifname,
        "interfaces",
        interfaces.len(),
        MOST_INTERFACES,
    )?;
    let mut ports: Vec<PortPlan> = Vec::with_capacity(interfaces.len());
    for spec in interfaces {
        let port = plan_port(subject, spec, node)?;
        if ports
            .iter()
            .any(|other| other.link.pod_name == port.link.pod_name)
        {
            return Err(PlanError::TwoOfOneName {
                name: port.link.pod_name,
            });
        }
        ports.push(port);
    }
    Ok(ports)
}

fn plan_port(
    subject: &Subject<'_>,
    spec: &InterfaceSpec,
    node: &NodeFacts,
) -> Result<PortPlan, PlanError> {
    let key = subject.key;
    let pod_name = spec.pod_ifname.as_deref().unwrap_or(&key.ifname);
    check_count(pod_name, "addresses", spec.addresses.len(), MOST_ADDRESSES)?;
    check_count(pod_name, "routes", spec.routes.len(), MOST_ROUTES)?;
    address::check_addresses(pod_name, &spec.addresses)?;
    let mtu = address::check_mtu(
        pod_name,
        spec.mtu.unwrap_or(node.default_mtu),
        &spec.addresses,
    )?;
    let seed = [key.network.as_str(), &key.container_id, pod_name];
    let pod_mac = spec
        .mac
        .unwrap_or_else(|| mac::pod_mac(&spec.addresses, &seed));
    if pod_mac.is_nil() || pod_mac.is_multicast() {
        return Err(PlanError::Mac {
            interface: pod_name.to_owned(),
            mac: pod_mac,
        });
    }
    let nad = spec.nad.as_deref();
    let chosen = spec.logical_port.clone();
    let has_chosen_id = chosen.is_some();
    let iface_id = chosen.unwrap_or_else(|| rows::iface_id(subject, nad, spec.port_name, pod_name));
    let mut external_ids =
        rows::external_ids(subject, pod_name, &iface_id, pod_mac, &spec.addresses);
    spec.switch_port.write(&mut external_ids);
    if let Some(nad) = nad {
        // With a configuration other than the network's own, as for an ADD of the default network,
        // the result does not show the name.
        if spec.pod_ifname.is_none() {
            external_ids.insert(ids::OVN_NETWORK.to_owned(), key.network.clone());
        }
        external_ids.insert(ids::OVN_NAD.to_owned(), nad.to_owned());
    }
    let link = LinkSpec {
        host_names: host_link_names(&key.network, &key.container_id, pod_name),
        pod_name: pod_name.to_owned(),
        host_mac: mac::host_mac(&seed),
        pod_mac,
        mtu,
        addresses: spec.addresses.clone(),
        routes: routes::plan_routes(pod_name, spec)?,
        pod_ipv6: ipv6_of(spec, node),
        netdev_datapath: node.netdev_datapath,
        announce: spec.addresses.iter().map(IpNet::addr).collect(),
    };
    Ok(PortPlan {
        link,
        iface_id,
        external_ids,
        subnet_gateways: spec.subnet_gateways.clone(),
        bandwidth: spec.bandwidth,
        switch_port: spec.switch_port.clone(),
        has_chosen_id,
    })
}

fn check_count(
    interface: &str,
    what: &'static str,
    count: usize,
    most: usize,
) -> Result<(), PlanError> {
    if count <= most {
        return Ok(());
    }
    Err(PlanError::TooMany {
        interface: interface.to_owned(),
        what,
        count,
        most,
    })
}

/// Which IPv6 messages an interface may send by itself, and whether it believes routers. Anybody
/// may route the network of a network attachment definition or of a bridge with VLANs, and an
/// interface without an address may have to find one.
fn ipv6_of(spec: &InterfaceSpec, node: &NodeFacts) -> PodIpv6 {
    let has_address = spec.addresses.iter().any(|it| it.addr().is_ipv6());
    match spec.nad {
        Some(_) => PodIpv6::Usual,
        None if spec.switch_port.vlan.is_some() => PodIpv6::Usual,
        None if spec.addresses.is_empty() => PodIpv6::Usual,
        None if is_ipv4_alone(spec) => PodIpv6::Off,
        None if node.has_routers => PodIpv6::Usual,
        None if has_address && node.quiet_pods => PodIpv6::Quiet,
        None => PodIpv6::Assigned,
    }
}

/// Whether everything known about an interface is IPv4 (a gateway has an address of its own family
/// beside it).
fn is_ipv4_alone(spec: &InterfaceSpec) -> bool {
    let addresses = spec.addresses.iter().map(IpNet::addr);
    let mut all = addresses.chain(spec.routes.iter().map(|route| route.dst.addr()));
    all.all(|address| address.is_ipv4())
}

#[cfg(test)]
mod tests;
