//! MACs for interfaces whose MAC nobody chose.
//!
//! An interface with an IPv4 address gets ovn-kubernetes' form, `0a:58` and the four address bytes:
//! it is unique wherever the address is, and operators read the address off it. Any other gets one
//! derived from a seed, so that a repeated request gives the same MAC and no record of it is
//! needed.

use std::net::{IpAddr, Ipv4Addr};

use macaddr::MacAddr6;

/// The MAC for an interface with these addresses: by the first IPv4 address if there is one, else
/// generated from `seed`.
pub fn choose(addresses: &[IpAddr], seed: &[&str]) -> MacAddr6 {
    addresses
        .iter()
        .find_map(|address| match address {
            IpAddr::V4(v4) => Some(from_ipv4(*v4)),
            IpAddr::V6(_) => None,
        })
        .unwrap_or_else(|| generate(seed))
}

/// `0a:58:a:b:c:d` for `a.b.c.d`, as ovn-kubernetes names pods' and gateways' MACs.
pub fn from_ipv4(address: Ipv4Addr) -> MacAddr6 {
    let [a, b, c, d] = address.octets();
    MacAddr6::new(0x0a, 0x58, a, b, c, d)
}

/// A MAC that depends on nothing but `seed` (by custom network, container id, interface name).
///
/// It is unicast, locally administered, and of the quadrant `x2` that RFC 8948 section 4 leaves to
/// local administrators; `0a:58…` lies in another quadrant, so the two forms never meet. 44 bits
/// are free: among 1,000 interfaces of one network the chance that any two agree is 3 in 10^8.
pub fn generate(seed: &[&str]) -> MacAddr6 {
    let [_, _, first, rest @ ..] = scatter(seed).to_be_bytes();
    let [b, c, d, e, f] = rest;
    MacAddr6::new((first & 0xf0) | 0x02, b, c, d, e, f)
}

/// 64-bit FNV-1a over the parts, finished as MurmurHash3 does so that every input bit reaches every
/// output bit.
///
/// Written out since the value must outlive a process: the standard library's hashers promise
/// nothing between versions. Each part goes in behind its length, so that `["a", "bc"]` and `["ab",
/// "c"]` differ.
fn scatter(seed: &[&str]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = OFFSET_BASIS;
    for part in seed {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes();
        for byte in length.iter().chain(part.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests;
