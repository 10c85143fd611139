//! What the kernel lists of links, addresses, routes and rules, by rtnetlink(7).

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};

use super::ReadError;

/// Names of links by index.
pub(super) type Names = BTreeMap<u32, String>;

/// What the kernel lists.
pub(super) struct Dump {
    pub(super) links: Vec<LinkMessage>,
    pub(super) addresses: Vec<AddressMessage>,
    pub(super) routes: Vec<RouteMessage>,
    pub(super) rules: Vec<RuleMessage>,
}

impl Dump {
    pub(super) async fn read(handle: &Handle) -> Result<Self, ReadError> {
        let failed = |what| move |source| ReadError::Netlink { what, source };
        let links = handle.link().get().execute().try_collect().await;
        let addresses = handle.address().get().execute().try_collect().await;
        let (mut routes, mut rules) = (Vec::new(), Vec::new());
        for version in [IpVersion::V4, IpVersion::V6] {
            let mut request = RouteMessageBuilder::<IpAddr>::new().build();
            request.header.address_family = match version {
                IpVersion::V4 => AddressFamily::Inet,
                IpVersion::V6 => AddressFamily::Inet6,
            };
            let of_family = handle.route().get(request).execute().try_collect().await;
            routes.extend::<Vec<_>>(of_family.map_err(failed("routes"))?);
            let of_family = handle.rule().get(version).execute().try_collect().await;
            rules.extend::<Vec<_>>(of_family.map_err(failed("rules"))?);
        }
        Ok(Self {
            links: links.map_err(failed("links"))?,
            addresses: addresses.map_err(failed("addresses"))?,
            routes,
            rules,
        })
    }

    /// The names of links by index.
    pub(super) fn names(&self) -> Names {
        let links = self.links.iter().filter_map(|message| {
            let mut attributes = message.attributes.iter();
            let name = attributes.find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            });
            Some((message.header.index, name?))
        });
        links.collect()
    }
}
