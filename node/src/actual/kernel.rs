//! The kernel's links, addresses, neighbours and routes, by rtnetlink(7).

use std::collections::BTreeMap;
use std::path::Path;

use futures_util::TryStreamExt as _;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteAttribute;
use rtnetlink::Handle;

use super::ReadError;
use super::dump::Dump;
use super::in_use::in_use;
use super::uplink::immovable;
use crate::LINKS;
use crate::items::{
    Actual, ObservedAddress, ObservedByDoor, ObservedLink, ObservedNeighbour, ObservedRoute,
    is_by_door,
};
use crate::manager::{Manager, Tells};
use crate::moved::NicConfig;

impl Actual {
    /// With what is on the links that `holds` names.
    pub(super) async fn read_kernel(
        &mut self,
        handle: &Handle,
        holds: &[String],
    ) -> Result<(), ReadError> {
        let failed = |what| move |source| ReadError::Netlink { what, source };
        let dump = Dump::read(handle).await?;
        let names = dump.names();
        self.in_use = in_use(&dump, &names);
        self.links = dump.links.iter().filter_map(ObservedLink::of).collect();
        let addresses = dump.addresses.iter();
        self.addresses = addresses
            .filter_map(|message| ObservedAddress::of(message, names.get(&message.header.index)?))
            .collect();
        let mut held: BTreeMap<u32, &String> = holds
            .iter()
            .filter_map(|name| Some((self.links.get(name)?.index, name)))
            .collect();
        if !holds.is_empty() {
            // The NIC of a bridge that is not there yet may be the default route's.
            let defaults = dump.routes.iter();
            let defaults = defaults.filter(|it| it.header.destination_prefix_length == 0);
            let by = defaults.flat_map(|route| &route.attributes);
            held.extend(by.filter_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some((*index, names.get(index)?)),
                _ => None,
            }));
        }
        let mut neighbours: Vec<NeighbourMessage> = Vec::new();
        let own: Vec<(u32, &str)> = LINKS
            .iter()
            .filter_map(|name| Some((self.links.get(*name)?.index, *name)))
            .collect();
        if !own.is_empty() || !held.is_empty() {
            let listed = handle.neighbours().get().execute().try_collect().await;
            neighbours = listed.map_err(failed("neighbours"))?;
        }
        for (index, name) in held {
            let held = NicConfig::of(&dump, &neighbours, index, name);
            let managed = Manager::look(name, index).await;
            let renews = managed.as_ref().is_some_and(Manager::renews);
            let reasons = immovable(&held, name, &dump.routes, index, renews);
            self.managed.extend(managed.map(|it| (name.clone(), it)));
            self.immovable.insert(name.clone(), reasons);
            self.held.insert(name.clone(), held);
        }
        self.tells = Tells::look();
        let routes = dump.routes.into_iter();
        let routes: Vec<ObservedRoute> = routes
            .filter_map(|message| ObservedRoute::of(message, |index| names.get(&index).cloned()))
            .collect();
        let (by_door, routes): (Vec<_>, Vec<_>) = routes.into_iter().partition(is_by_door);
        self.by_door = ObservedByDoor::of(&dump.rules, by_door);
        let defaults = routes.iter();
        let mut defaults: Vec<&ObservedRoute> = defaults
            .filter(|route| route.destination.prefix_len() == 0 && route.is_unicast())
            .collect();
        // IPv4 first, as in kubelet's choice of the node's address.
        defaults.sort_by_key(|route| (route.destination.addr().is_ipv6(), route.metric));
        let defaults = defaults.into_iter();
        self.default_links = defaults.filter_map(|route| route.link.clone()).collect();
        self.default_link = self.default_links.first().cloned();
        self.routes = routes;
        let of_links = neighbours.iter().filter_map(|message| {
            let (_, link) = own.iter().find(|(at, _)| *at == message.header.ifindex)?;
            ObservedNeighbour::of(message, link)
        });
        self.neighbours = of_links.collect();
        self.has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        self.force_forwarding = Path::new("/proc/sys/net/ipv6/conf/all/force_forwarding").exists();
        Ok(())
    }
}
