//! A lease: what a server gave.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use podwire_netns::{Netlink, Netns, Route};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{DhcpError, Provided, Term, acquire, decline, release, renew};
use crate::ipam::Place;

/// What is done with a lease of either family.
pub trait Leased: Clone + fmt::Debug + Send + Sync + 'static {
    /// When it was last given, and what is due when.
    fn term(&self) -> &Term;

    /// The same, to change it.
    fn term_mut(&mut self) -> &mut Term;

    /// Its address, with its prefix length.
    fn net(&self) -> IpNet;

    /// Its server.
    fn server(&self) -> String;

    /// The interface that it is for.
    fn ifname(&self) -> &str;

    /// The routes that come with it. The pod's first interface keeps its default route.
    fn routes(&self, has_default: bool) -> Vec<Route>;

    /// The options that its client sends.
    fn provided(&self) -> &[Provided] {
        &[]
    }

    /// Gets a lease, preferably of the address of an earlier one.
    ///
    /// # Errors
    /// [`DhcpError`].
    fn acquire(
        netlink: &Netlink,
        place: &Place,
        provided: &[Provided],
        earlier: Option<&Self>,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self, DhcpError>> + Send;

    /// Extends it: asks its server or, if `any` is set, all of them.
    ///
    /// # Errors
    /// [`DhcpError`]; with [`DhcpError::Refused`] the address must not be used any more.
    fn renew(
        &self,
        netlink: &Netlink,
        place: &Place,
        any: bool,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self, DhcpError>> + Send;

    /// Tells the server that another host has the address that it gave.
    ///
    /// # Errors
    /// [`DhcpError`]; the server may then give it again.
    fn decline(
        &self,
        netlink: &Netlink,
        place: &Place,
    ) -> impl Future<Output = Result<(), DhcpError>> + Send;

    /// Gives it back.
    ///
    /// # Errors
    /// [`DhcpError`]; the lease then runs out at the server.
    fn release(
        &self,
        netlink: &Netlink,
        place: &Place,
    ) -> impl Future<Output = Result<(), DhcpError>> + Send;

    /// The interface that it is for, in the pod's namespace.
    fn place(&self, netns: Arc<Netns>) -> Place {
        let ifname = self.ifname().to_owned();
        Place { netns, ifname }
    }

    /// The same as one that has ended, and whose address the pod no longer has.
    fn lost(&self) -> Self {
        let mut lost = self.clone();
        *lost.term_mut() = self.term().lost();
        lost
    }
}

/// A lease, as the attachment's entry in the intent log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The interface in the pod.
    pub ifname: String,
    /// The address with its prefix length.
    pub address: Ipv4Net,
    /// The server's identifier.
    pub server: Ipv4Addr,
    /// The MAC address that the server's answers come from: its own, or a relay's.
    pub server_mac: [u8; 6],
    /// Routers, the first one first.
    pub routers: Vec<Ipv4Addr>,
    /// Further routes (option 121).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub name_servers: Vec<Ipv4Addr>,
    /// The domain of the pod's names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The options that its client sends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provided: Vec<Provided>,
    /// When it was last given, and what is due when.
    #[serde(flatten)]
    pub term: Term,
}

impl Lease {
    /// The same with the times and the server of its extension. Address, routes and names stay:
    /// they are what the runtime was told.
    pub fn extended_by(&self, extension: &Self) -> Self {
        Self {
            server: extension.server,
            server_mac: extension.server_mac,
            term: extension.term,
            ..self.clone()
        }
    }
}

impl Leased for Lease {
    fn term(&self) -> &Term {
        &self.term
    }

    fn term_mut(&mut self) -> &mut Term {
        &mut self.term
    }

    fn net(&self) -> IpNet {
        self.address.into()
    }

    fn server(&self) -> String {
        self.server.to_string()
    }

    fn ifname(&self) -> &str {
        &self.ifname
    }

    /// If there are classless routes, the routers are not for use (RFC 3442).
    fn routes(&self, has_default: bool) -> Vec<Route> {
        let default = (Ipv4Net::default(), self.routers.first().copied());
        let mut all = match (&*self.routes, default) {
            ([], (_, None)) => Vec::new(),
            ([], (dst, Some(router))) => vec![(dst, router)],
            (some, _) => some.to_vec(),
        };
        all.retain(|(dst, _)| !has_default || dst.prefix_len() > 0);
        // A route to a next hop's network must exist before the routes through it.
        all.sort_by_key(|(_, next_hop)| !next_hop.is_unspecified());
        let route = |(dst, next_hop): (Ipv4Net, Ipv4Addr)| {
            let gateway = (!next_hop.is_unspecified()).then_some(IpAddr::V4(next_hop));
            Route {
                onlink: gateway.is_some() && !self.address.contains(&next_hop),
                ..Route::new(IpNet::V4(dst.trunc()), gateway)
            }
        };
        all.into_iter().map(route).collect()
    }

    fn provided(&self) -> &[Provided] {
        &self.provided
    }

    async fn acquire(
        netlink: &Netlink,
        place: &Place,
        provided: &[Provided],
        earlier: Option<&Self>,
        deadline: Instant,
    ) -> Result<Self, DhcpError> {
        let wanted = earlier.map(|earlier| earlier.address.addr());
        acquire(netlink, place, provided, wanted, deadline).await
    }

    async fn renew(
        &self,
        netlink: &Netlink,
        place: &Place,
        any: bool,
        deadline: Instant,
    ) -> Result<Self, DhcpError> {
        renew(netlink, place, self, any, deadline).await
    }

    async fn decline(&self, netlink: &Netlink, place: &Place) -> Result<(), DhcpError> {
        decline(netlink, place, self).await
    }

    async fn release(&self, netlink: &Netlink, place: &Place) -> Result<(), DhcpError> {
        release(netlink, place, self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::dhcp::Times;

    fn lease(since: u64) -> Lease {
        Lease {
            ifname: "net1".into(),
            address: "192.0.2.7/24".parse().unwrap(),
            server: Ipv4Addr::new(192, 0, 2, 1),
            server_mac: [2, 0, 0, 0, 0, 1],
            routers: Vec::new(),
            routes: Vec::new(),
            name_servers: Vec::new(),
            domain: None,
            provided: Vec::new(),
            term: Term {
                since,
                times: Times::of(120, 60, 105),
            },
        }
    }

    #[test]
    fn an_extension_changes_neither_address_nor_routes() {
        let (lease, mut extension) = (lease(100), lease(160));
        extension.address = "192.0.2.7/16".parse().unwrap();
        extension.routers = vec![Ipv4Addr::new(192, 0, 2, 254)];
        extension.server = Ipv4Addr::new(192, 0, 2, 2);
        let extended = lease.extended_by(&extension);
        assert_eq!(
            (extended.address, &*extended.routers),
            (lease.address, &[][..])
        );
        assert_eq!(
            (extended.term, extended.server),
            (extension.term, extension.server)
        );
    }

    #[test]
    fn an_entry_of_an_earlier_agent_is_read() {
        let noted = r#"{"ifname":"net1","address":"192.0.2.7/24","server":"192.0.2.1",
            "serverMac":[2,0,0,0,0,1],"routers":[],"since":100,
            "times":{"renewal":60,"rebinding":105,"end":120}}"#;
        assert_eq!(serde_json::from_str::<Lease>(noted).unwrap(), lease(100));
    }
}
