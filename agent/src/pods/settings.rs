//! Annotations for a pod as a whole: `podwire.io/mtu` and the bandwidth limits.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde_json::Value;

use super::annotation::AnnotationError;
use super::bandwidth;
use super::field::Field;
use crate::plan::Bandwidth;

/// The MTU in bytes of those of a pod's interfaces that have no setting of their own.
pub const MTU: &str = "podwire.io/mtu";

/// The settings of the whole pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// The MTU, 68 to 65535.
    mtu: Option<u32>,
    /// The limits of its traffic, in bit/s.
    pub bandwidth: Bandwidth,
}

impl Settings {
    /// Parses them from a pod's annotations.
    ///
    /// # Errors
    /// Names the annotation and its value.
    pub fn parse(annotations: &BTreeMap<String, String>) -> Result<Self, AnnotationError> {
        let mtu = match annotations.get(MTU) {
            Some(text) => Some(parse_mtu(text, &[])?),
            None => None,
        };
        Ok(Self {
            mtu,
            bandwidth: bandwidth::parse(annotations)?,
        })
    }

    /// The pod's MTU for an interface with these addresses.
    ///
    /// # Errors
    /// It is too small for IPv6.
    pub fn mtu_with(&self, addresses: &[IpNet]) -> Result<Option<u32>, AnnotationError> {
        match self.mtu {
            Some(mtu) => parse_mtu(&mtu.to_string(), addresses).map(Some),
            None => Ok(None),
        }
    }
}

fn parse_mtu(text: &str, addresses: &[IpNet]) -> Result<u32, AnnotationError> {
    Field::root(MTU, &Value::from(text)).mtu_or_text(addresses)
}

#[cfg(test)]
mod tests;
