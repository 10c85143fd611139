//! A pod's requests for addresses.

use std::net::IpAddr;

use podwire_apiserver::brief;
use podwire_cluster::address::MacError;
use podwire_cluster::annotations::NETWORKS;

use super::Mac;

/// The annotation with which a pod requests addresses, separated by commas.
pub const REQUESTED_ADDRESSES: &str = "podwire.io/ip-addresses";
/// The annotation with which a pod requests a MAC address.
pub const REQUESTED_MAC: &str = "podwire.io/mac-address";

/// A pod's request in its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mac: Option<Mac>,
}

/// An annotation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation {annotation}: {problem}")]
pub struct RequestError {
    annotation: &'static str,
    problem: String,
}

impl Request {
    /// Parses the annotations; absent ones request nothing.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(addresses: Option<&str>, mac: Option<&str>) -> Result<Self, RequestError> {
        let refused = |annotation, problem| RequestError {
            annotation,
            problem,
        };
        let mut request = Self::default();
        for text in addresses.into_iter().flat_map(|list| list.split(',')) {
            let parsed: Result<IpAddr, _> = text.trim().parse();
            let address = parsed.map_err(|_| {
                let problem = format!(
                    "{:?} is no IP address; write 10.244.0.9 or 10.244.0.9,fd00::9",
                    brief(&text)
                );
                refused(REQUESTED_ADDRESSES, problem)
            })?;
            if let Some(other) = request.of_family(address.is_ipv4()) {
                let problem =
                    format!("{other} and {address} are of one family, and a pod has one of each");
                return Err(refused(REQUESTED_ADDRESSES, problem));
            }
            request.addresses.push(address);
        }
        if let Some(text) = mac {
            let parsed = text.parse();
            let own = parsed.map_err(|error: MacError| refused(REQUESTED_MAC, brief(&error)))?;
            request.mac = Some(own);
        }
        Ok(request)
    }

    /// What an attachment requests, in the words of its annotation's element `field`.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn of_attachment<'a>(
        addresses: impl Iterator<Item = &'a str>,
        mac: Option<&str>,
    ) -> Result<Self, RequestError> {
        // An address may have a prefix length: that of the network counts.
        let bare = addresses.map(|it| it.split('/').next().unwrap_or_default());
        let list = bare.collect::<Vec<_>>().join(",");
        let list = Some(list.as_str()).filter(|it| !it.is_empty());
        Self::parse(list, mac).map_err(|error| RequestError {
            annotation: NETWORKS,
            ..error
        })
    }

    pub(super) fn of_family(&self, is_ipv4: bool) -> Option<IpAddr> {
        let mut own = self.addresses.iter().copied();
        own.find(|address| address.is_ipv4() == is_ipv4)
    }
}
