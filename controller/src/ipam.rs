//! Assigns addresses. Pure: the objects' annotations and the database contain everything, and the
//! state is rebuilt from them at every start.

mod addresses;
mod error;
mod mac;
mod pool;
mod request;
mod subnets;
#[cfg(test)]
mod tests;

pub use addresses::{Addresses, Assigned, Former, Had};
pub use error::AddressError;
pub use mac::Mac;
pub use request::{REQUESTED_ADDRESSES, REQUESTED_MAC, Request, RequestError};
pub use subnets::{ClusterSubnet, ClusterSubnetError, SubnetError, Subnets};

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::networks::default_entry;
use serde_json::{Value, json};

/// The annotation of a node's subnets.
pub const NODE_SUBNETS: &str = "k8s.ovn.org/node-subnets";
/// The annotation of a pod's addresses.
pub const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// An address by its index in a subnet, with the subnet's prefix length. Index 0 is the subnet's
/// own address, 1 its router's, 2 its node's.
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

/// The MAC address for an IP address: `0a:58` and four bytes, an IPv4 address itself or, for an
/// IPv6 address, the first four of its text's SHA-256 (ovn-kubernetes, go-controller/pkg/util,
/// `IPAddrToHWAddr`). The node role expects its router there.
pub fn mac(address: IpAddr) -> Mac {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let text = address.to_string();
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            let bytes = digest.as_ref();
            [bytes[0], bytes[1], bytes[2], bytes[3]]
        }
    };
    Mac([0x0a, 0x58, a, b, c, d])
}

/// The MAC address that podwire derived from an IPv6 address at first: `0a:58` and its last four
/// bytes. Pods that have one keep it.
fn former_mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(_) => mac(address),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            Mac([0x0a, 0x58, a, b, c, d])
        }
    }
}

/// The subnets in a node's annotation; a single one may be written without a list. Invalid ones are
/// skipped, because they can't be kept.
pub fn read_node_subnets(annotation: &str) -> Vec<IpNet> {
    strings(&default_entry(annotation))
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// A pod's entry in its annotation, in ovn-kubernetes' format: lists and, beside a list of one, its
/// only element.
pub fn pod_network(addresses: &[IpNet], mac: Mac) -> Value {
    let gateways: Vec<IpAddr> = addresses
        .iter()
        .map(|address| nth(address.trunc(), 1).addr())
        .collect();
    let mut entry = json!({
        "ip_addresses": addresses,
        "mac_address": mac.to_string(),
        "gateway_ips": gateways,
    });
    if let ([address], [gateway]) = (addresses, &gateways[..]) {
        entry["ip_address"] = json!(address);
        entry["gateway_ip"] = json!(gateway);
    }
    entry
}

/// A pod's addresses on the default network, according to its annotation.
pub fn read_pod_networks(annotation: &str) -> Had {
    let entry = &default_entry(annotation);
    let addresses = strings(&entry["ip_addresses"]).chain(strings(&entry["ip_address"]));
    let mut had = Had {
        addresses: addresses.filter_map(|text| text.parse().ok()).collect(),
        mac: strings(&entry["mac_address"]).find_map(|text| text.parse().ok()),
        is_exact: false,
    };
    had.addresses.dedup();
    let written = had.mac.map(|mac| pod_network(&had.addresses, mac));
    had.is_exact = written.as_ref() == Some(entry);
    had
}

/// A string, or the strings of a list.
fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().into_iter().flatten();
    list.chain([value]).filter_map(Value::as_str)
}
