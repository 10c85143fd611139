//! MAC addresses as OVN's control planes derive them from an IP address.

use std::net::IpAddr;

/// `0a:58` and four bytes: the IPv4 address itself or, for an IPv6 address, the first four of its
/// text's SHA-256 (ovn-kubernetes, go-controller/pkg/util, `IPAddrToHWAddr`).
pub(crate) fn of_ip(ip: IpAddr) -> String {
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let digest = ring::digest::digest(&ring::digest::SHA256, ip.to_string().as_bytes());
            let bytes = digest.as_ref();
            [bytes[0], bytes[1], bytes[2], bytes[3]]
        }
    };
    format!("0a:58:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// The bytes of a MAC address; None if the text is none.
pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes.filter(|bytes| bytes.len() == 6)
}

/// In `ip`'s format.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_tells_the_address_as_ovn_kubernetes_has_it() {
        assert_eq!(of_ip("10.244.0.1".parse().unwrap()), "0a:58:0a:f4:00:01");
        // From ovn-kubernetes' own test of IPAddrToHWAddr.
        let mac = of_ip("fd01::1234".parse().unwrap());
        assert_eq!(mac, "0a:58:11:37:a6:26");
        assert_eq!(text(&bytes(&mac).unwrap()), mac);
        assert_eq!(bytes("0a:58"), None);
    }
}
