//! A pod's requests for addresses.

use std::net::IpAddr;

use super::Mac;
use super::mac::MacError;

/// The annotation with which a pod requests addresses, separated by commas.
pub const WISHED_ADDRESSES: &str = "podwire.io/ip-addresses";
/// The annotation with which a pod requests a MAC address.
pub const WISHED_MAC: &str = "podwire.io/mac-address";

/// A pod's request in its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mac: Option<Mac>,
}

/// An annotation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation {annotation}: {problem}")]
pub struct WishError {
    annotation: &'static str,
    problem: String,
}

impl Wish {
    /// Parses the annotations; absent ones request nothing.
    ///
    /// # Errors
    /// [`WishError`].
    pub fn parse(addresses: Option<&str>, mac: Option<&str>) -> Result<Self, WishError> {
        let refused = |annotation, problem| WishError {
            annotation,
            problem,
        };
        let mut wish = Self::default();
        for text in addresses.into_iter().flat_map(|list| list.split(',')) {
            let parsed: Result<IpAddr, _> = text.trim().parse();
            let address = parsed.map_err(|_| {
                let problem =
                    format!("{text:?} is no IP address; write 10.244.0.9 or 10.244.0.9,fd00::9");
                refused(WISHED_ADDRESSES, problem)
            })?;
            if let Some(other) = wish.of_family(address.is_ipv4()) {
                let problem =
                    format!("{other} and {address} are of one family, and a pod has one of each");
                return Err(refused(WISHED_ADDRESSES, problem));
            }
            wish.addresses.push(address);
        }
        if let Some(text) = mac {
            let parsed = text.parse();
            let own = parsed.map_err(|error: MacError| refused(WISHED_MAC, error.to_string()))?;
            wish.mac = Some(own);
        }
        Ok(wish)
    }

    pub(super) fn of_family(&self, is_ipv4: bool) -> Option<IpAddr> {
        let mut own = self.addresses.iter().copied();
        own.find(|address| address.is_ipv4() == is_ipv4)
    }
}
