//! Annotations as ovn-kubernetes writes them, for pods that tests number.

use serde_json::{Value, json};

/// The annotation in which ovn-kubernetes says what a pod gets.
pub const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";
/// A subnet for the agent from which the numbered pods have their IPv4 addresses.
pub const SUBNET_V4: &str = "10.244.1.0/24";
/// A subnet for the agent from which the numbered pods have their IPv6 addresses.
pub const SUBNET_V6: &str = "fd00:10:244:1::/64";
/// The IPv4 gateway of the numbered pods, the first address of its subnet.
pub const GATEWAY_V4: &str = "10.244.1.1";
/// The IPv6 gateway of the numbered pods, the first address of its subnet.
pub const GATEWAY_V6: &str = "fd00:10:244:1::1";

/// The `k8s.ovn.org/pod-networks` entry of pod number `number`, both families and a gateway each.
pub fn entry(number: u8) -> Value {
    json!({
        "ip_addresses": [format!("{}/24", ipv4(number)), format!("{}/64", ipv6(number))],
        "mac_address": mac(number),
        "gateway_ips": [GATEWAY_V4, GATEWAY_V6],
    })
}

/// The annotations, as the API server has them, of a pod with this entry for the default network.
pub fn default_network(entry: &Value) -> Value {
    json!({ POD_NETWORKS: json!({ "default": entry }).to_string() })
}

/// The IPv4 address of pod number `number`.
pub fn ipv4(number: u8) -> String {
    format!("10.244.1.{number}")
}

/// The IPv6 address of pod number `number`.
pub fn ipv6(number: u8) -> String {
    format!("fd00:10:244:1::{number:x}")
}

/// The MAC address of pod number `number`: `0a:58` and the IPv4 address, as ovn-kubernetes makes
/// it.
pub fn mac(number: u8) -> String {
    format!("0a:58:0a:f4:01:{number:02x}")
}
