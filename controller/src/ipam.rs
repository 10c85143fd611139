//! Who has which addresses. Pure: what is known of it is in the objects' annotations and in the
//! database, from which it is built anew at every start.

mod addresses;
mod subnets;
#[cfg(test)]
mod tests;

pub use addresses::{AddressError, Addresses};
pub use subnets::{ClusterSubnet, ClusterSubnetError, SubnetError, Subnets};

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

/// The annotation of a node's subnets.
pub const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";
/// The annotation of a pod's addresses.
pub const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// An address by its place in a subnet, with the subnet's prefix length. Place 0 is the subnet's own
/// address, 1 its router's, 2 its node's.
pub fn nth(subnet: IpNet, place: u32) -> IpNet {
    match subnet {
        IpNet::V4(net) => {
            let bits = u32::from(net.network()).wrapping_add(place);
            IpNet::new_assert(IpAddr::V4(bits.into()), net.prefix_len())
        }
        IpNet::V6(net) => {
            let bits = u128::from(net.network()).wrapping_add(place.into());
            IpNet::new_assert(IpAddr::V6(bits.into()), net.prefix_len())
        }
    }
}

/// The MAC address that goes with an IP address: `0a:58` and its last four bytes.
pub fn mac(address: IpAddr) -> String {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let octets = address.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
    };
    format!("0a:58:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// A node's annotation: its subnets on the default network.
pub fn write_node_subnets(subnets: &[IpNet]) -> String {
    json!({ "default": subnets }).to_string()
}

/// The subnets that a node's annotation names; a single one may be written without a list. What is
/// no subnet is passed over, for it gives nothing to keep.
pub fn read_node_subnets(annotation: &str) -> Vec<IpNet> {
    let Ok(document) = serde_json::from_str::<Value>(annotation) else {
        return Vec::new();
    };
    strings(&document["default"])
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// A pod's annotation, as ovn-kubernetes writes it: lists, and beside a list of one its only element.
pub fn write_pod_networks(addresses: &[IpNet]) -> Option<String> {
    let first = addresses.first()?;
    let gateways: Vec<IpAddr> = addresses
        .iter()
        .map(|address| nth(address.trunc(), 1).addr())
        .collect();
    let mut entry = json!({
        "ip_addresses": addresses,
        "mac_address": mac(first.addr()),
        "gateway_ips": gateways,
    });
    if let ([address], [gateway]) = (addresses, &gateways[..]) {
        entry["ip_address"] = json!(address);
        entry["gateway_ip"] = json!(gateway);
    }
    Some(json!({ "default": entry }).to_string())
}

/// The addresses that a pod's annotation names on the default network.
pub fn read_pod_networks(annotation: &str) -> Vec<IpNet> {
    let Ok(document) = serde_json::from_str::<Value>(annotation) else {
        return Vec::new();
    };
    strings(&document["default"]["ip_addresses"])
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// Whether a pod's annotation says that it has these addresses, and the MAC address that goes with
/// them.
pub fn pod_networks_say(annotation: &str, addresses: &[IpNet]) -> bool {
    let document: Value = serde_json::from_str(annotation).unwrap_or_default();
    let mac = addresses.first().map(|first| mac(first.addr()));
    read_pod_networks(annotation) == addresses
        && document["default"]["mac_address"].as_str() == mac.as_deref()
}

/// A string, or the strings of a list.
fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().into_iter().flatten();
    list.chain([value]).filter_map(Value::as_str)
}
