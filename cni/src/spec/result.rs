//! The result of an ADD: the interfaces, addresses, routes and DNS of an attachment, in one
//! internal form that reads and writes every supported version.

mod json;

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

pub use json::ResultError;

use super::{CniVersion, FieldError};

/// A result in the form of the newest version (CNI spec, section 5, "ADD Success").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniResult {
    /// The interfaces that were created or changed, on the host and in the sandbox.
    pub interfaces: Vec<Interface>,
    /// The addresses.
    pub ips: Vec<IpConfig>,
    /// The routes.
    pub routes: Vec<Route>,
    /// The resolver's configuration.
    pub dns: Dns,
}

/// An interface in a result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address. Kept as text, because a previous plugin in the chain may have reported
    /// one that is not an Ethernet address.
    pub mac: Option<String>,
    /// The path of its namespace; None for the host's.
    pub sandbox: Option<String>,
    /// Its MTU in bytes. Since 1.1.0.
    pub mtu: Option<u32>,
    /// The path of the socket file behind it, as with vhost-user. Since 1.1.0.
    pub socket_path: Option<String>,
    /// The PCI address of the device behind it. Since 1.1.0.
    pub pci_id: Option<String>,
}

/// An address in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// The address with the length of its subnet's prefix.
    pub address: IpNet,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
    /// Its index in [`CniResult::interfaces`].
    pub interface: Option<usize>,
}

/// A route in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub dst: IpNet,
    /// The next hop; None for a destination on the link.
    pub gw: Option<IpAddr>,
    /// The path's MTU in bytes. Since 1.1.0.
    pub mtu: Option<u32>,
    /// The MSS to advertise to the destination, in bytes. Since 1.1.0.
    pub advmss: Option<u32>,
    /// The priority, the lower the better. Since 1.1.0.
    pub priority: Option<u32>,
    /// The table it is in. Since 1.1.0.
    pub table: Option<u32>,
    /// The scope: 0 global, 253 link, 254 host. Since 1.1.0.
    pub scope: Option<u32>,
}

/// A resolver's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers, by priority.
    pub nameservers: Vec<String>,
    /// The local domain for short names.
    pub domain: Option<String>,
    /// The search list for short names.
    pub search: Vec<String>,
    /// Options for the resolver.
    pub options: Vec<String>,
}

impl CniResult {
    /// Parses a result of any supported version: a prevResult, or the output of a delegated IPAM
    /// plugin (which has no interfaces). Null members count as absent.
    ///
    /// # Errors
    /// Names the member and its value; also if an address refers to an interface that is not in the
    /// result.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ResultError> {
        json::read(
            serde_json::from_slice(bytes)
                .map_err(|error| ResultError::NotJson(error.to_string()))?,
        )
    }

    /// [`Self::from_json`] for a parsed value.
    ///
    /// # Errors
    /// As `from_json`.
    pub fn from_value(value: Value) -> Result<Self, ResultError> {
        json::read(value)
    }

    /// The result for stdout, as a runtime with this version expects it: up to 0.4.0 with `version`
    /// "4" or "6" in each of the ips, and without members that came later.
    pub fn to_json(&self, version: CniVersion) -> String {
        serde_json::to_string(&self.to_value(version))
            .expect("writing a Value to a String has no way to fail")
    }

    /// [`Self::to_json`] as a value, for use as a configuration's prevResult.
    pub fn to_value(&self, version: CniVersion) -> Value {
        json::write(self, version)
    }

    /// This result, appended to that of the previous plugins in the chain. Nothing of theirs is
    /// dropped: their interfaces come first, so that their indexes stay valid. Of the DNS lists
    /// theirs come first too; podwire's domain wins if it has one.
    #[must_use]
    pub fn merge(mut self, prev: Self) -> Self {
        let shift = prev.interfaces.len();
        for ip in &mut self.ips {
            ip.interface = ip.interface.map(|index| index + shift);
        }
        let mut merged = prev;
        merged.interfaces.append(&mut self.interfaces);
        merged.ips.append(&mut self.ips);
        merged.routes.append(&mut self.routes);
        merged.dns = self.dns.merge(merged.dns);
        merged
    }
}

impl Route {
    /// A route with only a destination and a next hop.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self {
            dst,
            gw,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        }
    }
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn merge(self, prev: Self) -> Self {
        let behind = |mut theirs: Vec<String>, ours: Vec<String>| {
            for entry in ours {
                if !theirs.contains(&entry) {
                    theirs.push(entry);
                }
            }
            theirs
        };
        Self {
            nameservers: behind(prev.nameservers, self.nameservers),
            domain: self.domain.or(prev.domain),
            search: behind(prev.search, self.search),
            options: behind(prev.options, self.options),
        }
    }

    /// Parses a `dns` object of a configuration or result.
    pub(super) fn read(parent: &mut super::fields::Fields) -> Result<Self, FieldError> {
        let Some(mut fields) = parent.object("dns")? else {
            return Ok(Self::default());
        };
        Ok(Self {
            nameservers: fields.strings("nameservers")?,
            domain: fields.string("domain")?,
            search: fields.strings("search")?,
            options: fields.strings("options")?,
        })
    }
}

#[cfg(test)]
mod tests;
