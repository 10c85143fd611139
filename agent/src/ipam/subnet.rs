//! Subnets as an operator writes them:
//! `10.186.0.0/22,gateway=10.186.0.1,range=10.186.0.10-10.186.0.200,exclude=10.186.0.64/28`.
//!
//! A parsed subnet is consistent: its gateway and ranges lie within it, and at least one address is
//! left for a pod. Reserved, and never given to a pod, are the gateway (the first address unless
//! set), every exclusion, and:
//!
//! - IPv4 up to /30: the network and the broadcast address. A /31 has neither (RFC 3021) and serves
//!   one pod beside its gateway; a /32 has no room for both and is refused.
//! - IPv6 up to /126: the subnet-router anycast address (RFC 4291 section 2.6.1). A /127 has none
//!   (RFC 6164) and serves one pod; a /128 is refused.

mod error;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::family::{Family, bits};
pub use error::SpecError;

/// One subnet of the node, and which of its addresses are for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetSpec {
    subnet: IpNet,
    gateway: IpAddr,
    ranges: Vec<AddressRange>,
    exclude: Vec<IpNet>,
}

/// Addresses from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    /// The lowest address.
    pub first: IpAddr,
    /// The highest address, of the same family.
    pub last: IpAddr,
}

/// Why an address is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// The IPv4 network address.
    Network,
    /// The IPv4 broadcast address.
    Broadcast,
    /// The IPv6 subnet-router anycast address.
    RouterAnycast,
    /// The pods' gateway.
    Gateway,
    /// Excluded by the operator.
    Excluded(IpNet),
}

impl SubnetSpec {
    /// A subnet with the default gateway and no restriction.
    ///
    /// # Errors
    /// The [`SpecError`]s about the subnet itself.
    pub fn new(subnet: IpNet) -> Result<Self, SpecError> {
        if subnet.addr() != subnet.network() {
            return Err(SpecError::HostBits {
                value: subnet,
                network: subnet.trunc(),
            });
        }
        if !is_ordinary_unicast(subnet) {
            return Err(SpecError::NotUnicast { value: subnet });
        }
        if subnet.prefix_len() == subnet.max_prefix_len() {
            return Err(SpecError::TooSmall { value: subnet });
        }
        let first_host = bits(subnet.network()) + u128::from(has_reserved_ends(subnet));
        let gateway = Family::of(subnet.addr()).address(first_host);
        Ok(Self {
            subnet,
            gateway,
            ranges: Vec::new(),
            exclude: Vec::new(),
        })
    }

    /// The subnet, without host bits.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The pods' gateway.
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// The subnet's family.
    pub fn family(&self) -> Family {
        Family::of(self.gateway)
    }

    /// Why `address` is reserved, if it is.
    pub fn reserved(&self, address: IpAddr) -> Option<Reserved> {
        fixed_role(self.subnet, address)
            .or_else(|| (address == self.gateway).then_some(Reserved::Gateway))
            .or_else(|| {
                self.exclude
                    .iter()
                    .find(|net| net.contains(&address))
                    .map(|net| Reserved::Excluded(*net))
            })
    }

    /// The addresses for the search, as inclusive, disjoint, ascending intervals of their numbers.
    pub(crate) fn assignable(&self) -> Vec<(u128, u128)> {
        let whole = (bits(self.subnet.network()), bits(self.subnet.broadcast()));
        let mut intervals: Vec<_> = match self.ranges.as_slice() {
            [] => vec![whole],
            ranges => ranges
                .iter()
                .map(|range| (bits(range.first), bits(range.last)))
                .collect(),
        };
        intervals.sort_unstable();
        let mut reserved: Vec<_> = self
            .exclude
            .iter()
            .map(|net| (bits(net.network()), bits(net.broadcast())))
            .collect();
        reserved.push((bits(self.gateway), bits(self.gateway)));
        for end in [whole.0, whole.1] {
            if fixed_role(self.subnet, self.family().address(end)).is_some() {
                reserved.push((end, end));
            }
        }
        reserved.into_iter().fold(intervals, subtract)
    }
}

impl FromStr for SubnetSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split(',').map(str::trim);
        let cidr = parts.next().unwrap_or_default();
        let subnet: IpNet = cidr.parse().map_err(|_| SpecError::Cidr {
            value: cidr.to_owned(),
        })?;
        let mut spec = Self::new(subnet)?;
        let mut gateway = None;
        for part in parts {
            match part.split_once('=') {
                Some(("gateway", value)) => {
                    if gateway.is_some() {
                        return Err(SpecError::DuplicateKey {
                            subnet,
                            key: "gateway",
                            value: value.to_owned(),
                        });
                    }
                    gateway = Some(parse_gateway(subnet, value)?);
                }
                Some(("range", value)) => spec.ranges.push(parse_range(subnet, value)?),
                Some(("exclude", value)) => spec.exclude.push(parse_exclude(subnet, value)?),
                _ => {
                    return Err(SpecError::UnknownKey {
                        subnet,
                        value: part.to_owned(),
                    });
                }
            }
        }
        spec.gateway = gateway.unwrap_or(spec.gateway);
        refuse_overlap(subnet, &mut spec.ranges)?;
        if spec.assignable().is_empty() {
            return Err(SpecError::Empty { subnet });
        }
        Ok(spec)
    }
}

fn parse_gateway(subnet: IpNet, value: &str) -> Result<IpAddr, SpecError> {
    let gateway = parse_address(subnet, "gateway", value, value)?;
    match fixed_role(subnet, gateway) {
        Some(reserved) => Err(SpecError::GatewayReserved {
            subnet,
            gateway,
            reserved,
        }),
        None => Ok(gateway),
    }
}

fn parse_range(subnet: IpNet, value: &str) -> Result<AddressRange, SpecError> {
    let (first, last) = value.split_once('-').ok_or_else(|| SpecError::Value {
        subnet,
        key: "range",
        value: value.to_owned(),
        expected: "two addresses with - between them",
    })?;
    let range = AddressRange {
        first: parse_address(subnet, "range", value, first)?,
        last: parse_address(subnet, "range", value, last)?,
    };
    if bits(range.first) > bits(range.last) {
        return Err(SpecError::Reversed { subnet, range });
    }
    Ok(range)
}

fn parse_exclude(subnet: IpNet, value: &str) -> Result<IpNet, SpecError> {
    let net: IpNet = value
        .parse()
        .or_else(|_| value.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| SpecError::Value {
            subnet,
            key: "exclude",
            value: value.to_owned(),
            expected: "an address or a CIDR",
        })?;
    if net.addr() != net.network() {
        return Err(SpecError::Value {
            subnet,
            key: "exclude",
            value: value.to_owned(),
            expected: "a CIDR without bits below its prefix length",
        });
    }
    if !subnet.contains(&net) {
        return Err(SpecError::Outside {
            subnet,
            key: "exclude",
            value: value.to_owned(),
        });
    }
    Ok(net)
}

/// Parses `text`, which is `value` or a part of it, as an address of `subnet`.
fn parse_address(
    subnet: IpNet,
    key: &'static str,
    value: &str,
    text: &str,
) -> Result<IpAddr, SpecError> {
    let address: IpAddr = text.trim().parse().map_err(|_| SpecError::Value {
        subnet,
        key,
        value: value.to_owned(),
        expected: if key == "range" {
            "two addresses with - between them"
        } else {
            "an address"
        },
    })?;
    if !subnet.contains(&address) {
        return Err(SpecError::Outside {
            subnet,
            key,
            value: value.to_owned(),
        });
    }
    Ok(address)
}

fn refuse_overlap(subnet: IpNet, ranges: &mut [AddressRange]) -> Result<(), SpecError> {
    ranges.sort_unstable_by_key(|range| bits(range.first));
    match ranges
        .windows(2)
        .find(|pair| bits(pair[1].first) <= bits(pair[0].last))
    {
        Some(pair) => Err(SpecError::RangesOverlap {
            subnet,
            first: pair[0],
            second: pair[1],
        }),
        None => Ok(()),
    }
}

/// `intervals` without the addresses of `hole`.
fn subtract(intervals: Vec<(u128, u128)>, hole: (u128, u128)) -> Vec<(u128, u128)> {
    let mut left = Vec::with_capacity(intervals.len() + 1);
    for (first, last) in intervals {
        if hole.1 < first || last < hole.0 {
            left.push((first, last));
            continue;
        }
        if first < hole.0 {
            left.push((first, hole.0 - 1));
        }
        if hole.1 < last {
            left.push((hole.1 + 1, last));
        }
    }
    left
}

/// The role that an address has by its position in the subnet.
fn fixed_role(subnet: IpNet, address: IpAddr) -> Option<Reserved> {
    if !has_reserved_ends(subnet) {
        return None;
    }
    match subnet {
        IpNet::V4(net) if address == net.network() => Some(Reserved::Network),
        IpNet::V4(net) if address == net.broadcast() => Some(Reserved::Broadcast),
        IpNet::V6(net) if address == net.network() => Some(Reserved::RouterAnycast),
        _ => None,
    }
}

/// False for the two-address links of RFC 3021 and RFC 6164, true for anything larger.
fn has_reserved_ends(subnet: IpNet) -> bool {
    subnet.max_prefix_len() - subnet.prefix_len() >= 2
}

fn is_ordinary_unicast(subnet: IpNet) -> bool {
    let within = |special: &str| {
        let special: IpNet = special
            .parse()
            .expect("the special ranges are written out below");
        special.contains(&subnet) || subnet.contains(&special)
    };
    ![
        "0.0.0.0/8",
        "127.0.0.0/8",
        "224.0.0.0/3",
        "::/96",
        "::ffff:0:0/96",
        "fe80::/10",
        "ff00::/8",
    ]
    .into_iter()
    .any(within)
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network => f.write_str("network address"),
            Self::Broadcast => f.write_str("broadcast address"),
            Self::RouterAnycast => f.write_str("subnet-router anycast address"),
            Self::Gateway => f.write_str("gateway"),
            Self::Excluded(net) => write!(f, "excluded part {net}"),
        }
    }
}

#[cfg(test)]
mod tests;
