//! MAC addresses for interfaces that were given none.

use std::net::IpAddr;

use ipnet::IpNet;
use macaddr::MacAddr6;
use podwire_cluster::address::mac;

use super::names::stable_hash;

/// The pod end's address: that of its first IPv4 address, else of its first one, as ovn-kubernetes
/// derives it, so that the MAC address identifies the pod. Without an address, a locally
/// administered one derived from the attachment's name.
pub fn pod_mac(addresses: &[IpNet], seed: &[&str]) -> MacAddr6 {
    let mut all = addresses.iter().map(IpNet::addr);
    let ipv4 = all.clone().find(IpAddr::is_ipv4);
    if let Some(address) = ipv4.or_else(|| all.next()) {
        return mac(address).into();
    }
    let [a, b, c, d, ..] = stable_hash(seed).to_be_bytes();
    MacAddr6::new(0x0a, 0x59, a, b, c, d)
}

/// The host end's address. It starts with `fe`, because a bridge without a fixed address takes the
/// lowest of its ports'.
pub fn host_mac(seed: &[&str]) -> MacAddr6 {
    let [a, b, c, d, e, ..] = stable_hash(seed).to_be_bytes();
    MacAddr6::new(0xfe, a, b, c, d, e)
}

/// The bridge's fixed address. Pods cache their gateway's address, so it must not change as ports
/// come and go.
pub fn bridge_mac(seed: &[&str]) -> MacAddr6 {
    let [a, b, c, d, ..] = stable_hash(seed).to_be_bytes();
    MacAddr6::new(0x0a, 0x5a, a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_s_mac_is_the_one_that_ovn_kubernetes_derives() {
        let addresses = [
            "fd00::5/64".parse().unwrap(),
            "10.186.1.5/22".parse().unwrap(),
        ];
        assert_eq!(pod_mac(&addresses, &["a"]).to_string(), "0A:58:0A:BA:01:05");
        let ipv6 = ["fd01::1234/64".parse().unwrap()];
        assert_eq!(pod_mac(&ipv6, &["a"]).to_string(), "0A:58:11:37:A6:26");
    }

    #[test]
    fn every_made_address_is_unicast_and_locally_administered() {
        for seed in ["a", "b", "c", "d"] {
            for mac in [
                pod_mac(&[], &[seed]),
                host_mac(&[seed]),
                bridge_mac(&[seed]),
            ] {
                assert!(mac.is_unicast() && mac.is_local(), "{mac}");
            }
        }
        assert_ne!(pod_mac(&[], &["a"]), pod_mac(&[], &["b"]));
    }
}
