//! MAC addresses for interfaces that were given none.

use std::net::IpAddr;

use ipnet::IpNet;
use macaddr::MacAddr6;

use super::names::stable_hash;

/// The pod end's address: `0a:58` and the first IPv4 address, as ovn-kubernetes and the reference
/// plugins derive it, so that the MAC address identifies the pod. Without an IPv4 address, a
/// locally administered one derived from the attachment's name.
pub fn pod_mac(addresses: &[IpNet], seed: &[&str]) -> MacAddr6 {
    let ipv4 = addresses.iter().find_map(|address| match address.addr() {
        IpAddr::V4(ip) => Some(ip.octets()),
        IpAddr::V6(_) => None,
    });
    let tail = ipv4.unwrap_or_else(|| {
        let [a, b, c, d, ..] = stable_hash(seed).to_be_bytes();
        [a, b, c, d]
    });
    let prefix = if ipv4.is_some() {
        [0x0a, 0x58]
    } else {
        [0x0a, 0x59]
    };
    MacAddr6::new(prefix[0], prefix[1], tail[0], tail[1], tail[2], tail[3])
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
    fn a_pod_with_an_ipv4_address_has_it_in_its_mac() {
        let addresses = [
            "fd00::5/64".parse().unwrap(),
            "10.186.1.5/22".parse().unwrap(),
        ];
        assert_eq!(pod_mac(&addresses, &["a"]).to_string(), "0A:58:0A:BA:01:05");
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
