//! Addresses of a node's subnet, and MAC addresses that follow from an IP address. The node role
//! expects the controller's router at both.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use macaddr::MacAddr6;

/// An address by its index in a subnet, with the subnet's prefix length. Index 0 is the subnet's
/// own address.
pub fn nth(subnet: IpNet, place: u128) -> IpNet {
    let address: IpAddr = match subnet.network() {
        IpAddr::V4(ip) => {
            let [.., a, b, c, d] = place.to_be_bytes();
            let place = u32::from_be_bytes([a, b, c, d]);
            u32::from(ip).wrapping_add(place).to_be_bytes().into()
        }
        IpAddr::V6(ip) => u128::from(ip).wrapping_add(place).to_be_bytes().into(),
    };
    IpNet::new_assert(address, subnet.prefix_len())
}

/// The router's address in a node's subnet: the first.
pub fn gateway(subnet: &IpNet) -> IpAddr {
    nth(*subnet, 1).addr()
}

/// The node's own address in its subnet, that of its management port: the second.
pub fn management(subnet: &IpNet) -> IpNet {
    nth(*subnet, 2)
}

/// Whether two networks have an address in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// The first bytes of a text's SHA-256: what nobody can choose.
pub fn digest<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let whole = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    whole.as_ref().first_chunk().copied().unwrap_or([0; LENGTH])
}

/// The MAC address of a pod's interface, a router's port or a node's management port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

/// The MAC address for an IP address: `0a:58` and four bytes, an IPv4 address itself or, for an
/// IPv6 address, the first four of its text's SHA-256 (ovn-kubernetes, go-controller/pkg/util,
/// `IPAddrToHWAddr`).
pub fn mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(address) => Mac::derived(address.octets()),
        IpAddr::V6(address) => Mac::derived(digest(&address.to_string())),
    }
}

impl Mac {
    /// With these last four bytes.
    pub fn derived([a, b, c, d]: [u8; 4]) -> Self {
        Self([0x0a, 0x58, a, b, c, d])
    }

    /// A locally administered one for what this text names, which belongs to no IP address.
    pub fn local(text: &str) -> Self {
        let [a, b, c, d, e] = digest(text);
        Self([0x02, a, b, c, d, e])
    }

    /// Its bytes, in the order of its text.
    pub fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// Whether it belongs to an IP address.
    pub fn is_derived(self) -> bool {
        self.0.starts_with(&[0x0a, 0x58])
    }
}

impl From<Mac> for MacAddr6 {
    fn from(mac: Mac) -> Self {
        mac.0.into()
    }
}

/// In lower case, as in OVN and ovn-kubernetes: rows are compared as text.
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is no MAC address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a unicast MAC address such as 0a:58:0a:f4:00:03")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let parsed: MacAddr6 = text.trim().parse().map_err(|_| MacError(text.to_owned()))?;
        match parsed.is_nil() || parsed.is_multicast() {
            true => Err(MacError(text.to_owned())),
            false => Ok(Self(parsed.into_array())),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mac_is_the_one_that_ovn_kubernetes_derives() {
        let mac = |ip: &str| super::mac(ip.parse().unwrap()).to_string();
        // From ovn-kubernetes' own test of IPAddrToHWAddr.
        assert_eq!(mac("192.168.1.5"), "0a:58:c0:a8:01:05");
        assert_eq!(mac("fd01::1234"), "0a:58:11:37:a6:26");
    }
}
