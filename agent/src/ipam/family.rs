//! Addresses as numbers, so that one piece of arithmetic serves both families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// 32 bits, RFC 791.
    V4,
    /// 128 bits, RFC 8200.
    V6,
}

impl Family {
    /// The family that `address` belongs to.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The address of this family whose number is `bits`.
    pub(crate) fn address(self, bits: u128) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::from_bits(
                u32::try_from(bits)
                    .expect("IPv4 numbers come from IPv4 subnets, so they fit 32 bits"),
            )),
            Self::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The number of `address` within its family.
pub(crate) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
