//! podwire's items on the machine that are no longer planned.

use std::collections::BTreeSet;

use netlink_packet_route::route::RouteHeader;

use super::{Finding, Look, State, outlives};
use crate::actual::PortSeen;
use crate::firewall::Table;
use crate::journal::Undo;
use crate::plan::{Bridge, Claim, FormerRoute, Item, Port, Route, Tunnel};
use crate::{FILE_MARK, FIREWALLD, LINK, MADE, TUNNEL};

impl Look<'_> {
    /// Whether a replaced route can return: podwire's is no longer planned, and nobody else's has
    /// its place.
    fn is_to_return(&self, former: &FormerRoute) -> bool {
        let mut wanted = self.plan.items.iter();
        let is_wanted = wanted.any(
            |item| matches!(item, Item::Route(route) if route.destination == former.destination),
        );
        let mut there = self.actual.routes.iter();
        let is_there = there.any(|seen| {
            seen.destination == former.destination && seen.metric == former.metric && !seen.ours
        });
        !is_wanted && !is_there && self.actual.links.contains_key(&former.link)
    }

    /// Items with podwire's mark, or in the journal, that are not in the plan; in the order of
    /// creation.
    pub(super) fn surplus(&self) -> Vec<Finding> {
        let actual = self.actual;
        let wanted: BTreeSet<String> = self.plan.items.iter().map(Item::identity).collect();
        let mut items: Vec<Item> = Vec::new();
        let switch = &actual.switch;
        let of_switch = switch.answers;
        let rules = actual.firewalld.iter().flat_map(|seen| &seen.rules);
        for (rule, zone) in rules {
            let item = Item::Firewalld(rule.clone());
            let is_ours = self.made(&item) || switch.owned.contains_key(&rule.mark());
            if is_ours && *zone == rule.zone {
                items.push(item);
            }
        }
        let keys = switch.owned.keys().filter(|_| of_switch);
        for key in keys.filter(|key| !key.starts_with(FIREWALLD)) {
            items.push(Item::Key {
                key: key.clone(),
                value: actual.key(key).unwrap_or_default().to_owned(),
                claim: Claim::Yield,
            });
        }
        if let Some(ssl) = switch.ssl.as_ref().filter(|ssl| of_switch && ssl.ours) {
            items.push(Item::Ssl(ssl.keys.clone()));
        }
        let port = actual.switch.port.as_ref();
        if let Some(port) = port.filter(|port| of_switch && port.mark.is_some()) {
            items.push(Item::Port(Port {
                bridge: port
                    .bridge
                    .as_ref()
                    .map(|(name, _)| name.clone())
                    .unwrap_or_default(),
                iface_id: port.iface_id.clone().unwrap_or_default(),
                mac: port.mac.clone().unwrap_or_default(),
                mtu: port.mtu_request.unwrap_or_default(),
            }));
        }
        for (name, seen) in switch
            .bridges
            .iter()
            .filter(|(_, seen)| of_switch && seen.ours)
        {
            items.push(Item::Bridge(Bridge {
                name: name.clone(),
                datapath: seen.datapath.clone(),
                mac: seen.mac.clone().unwrap_or_default(),
                mtu: seen.mtu_request.unwrap_or_default(),
            }));
        }
        // A bridge is removed with its tunnels.
        let keeps_bridge = wanted.contains(&format!("bridge {TUNNEL}"));
        for (name, seen) in switch.tunnels.iter().filter(|_| of_switch && keeps_bridge) {
            let remote = seen.remote.as_ref().and_then(|remote| remote.parse().ok());
            items.push(Item::Tunnel(Tunnel {
                name: name.clone(),
                node: seen.node.clone(),
                remote: remote.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into()),
            }));
        }
        let lasting = actual.files.iter();
        for (path, text) in
            lasting.filter(|(path, text)| outlives(path) && text.starts_with(FILE_MARK))
        {
            items.push(Item::File {
                path: path.clone(),
                text: text.clone(),
            });
        }
        let forwards = wanted.contains("sysctl net.ipv6.conf.all.forwarding");
        for undo in self.journal {
            if let Undo::Made(item @ Item::File { path, .. }) = undo
                && actual.files.contains_key(path)
                && !outlives(path)
            {
                items.push(item.clone());
            }
            if let Undo::Sysctl { path, was, set } = undo
                && let Some(seen) = actual.sysctls.get(path)
                && (seen == set || was == set)
                && seen != was
                && !(forwards && is_written_with_all(path))
            {
                items.push(Item::Sysctl {
                    path: path.clone(),
                    value: was.clone(),
                });
            }
        }
        // The link is removed with a port that podwire created; a port that was taken over is
        // restored.
        let taken_over = |port: &PortSeen| port.mark.as_deref().is_some_and(|mark| mark != MADE);
        let is_up = actual.links.get(LINK).is_some_and(|link| link.up);
        if is_up
            && self.made(&Item::LinkUp(LINK.to_owned()))
            && actual.switch.port.as_ref().is_some_and(taken_over)
        {
            items.push(Item::LinkUp(LINK.to_owned()));
        }
        for seen in actual.addresses.iter().filter(|seen| seen.link == LINK) {
            let item = Item::Address(seen.address);
            if seen.ours || self.made(&item) {
                items.push(item);
            }
        }
        for seen in &actual.neighbours {
            let item = Item::Neighbour {
                link: seen.link.clone(),
                ip: seen.ip,
                mac: seen.mac.clone().unwrap_or_default(),
            };
            if seen.ours || self.made(&item) {
                items.push(item);
            }
        }
        // After the route that replaced it, because what was created last is removed first.
        let formers = self.journal.iter().filter_map(|undo| match undo {
            Undo::Replaced(former) => Some(former),
            _ => None,
        });
        items.extend(
            formers
                .filter(|former| self.is_to_return(former))
                .cloned()
                .map(Item::Former),
        );
        // Another program's routes may have the same protocol number: podwire's are in the main
        // table, on a link of podwire's, or in the journal.
        let main = u32::from(RouteHeader::RT_TABLE_MAIN);
        for seen in actual
            .routes
            .iter()
            .filter(|seen| seen.ours && seen.table == main)
        {
            let (Some(via), Some(link)) = (seen.via, seen.link.clone()) else {
                continue;
            };
            let is_ours = [LINK, TUNNEL].contains(&&*link);
            let item = Item::Route(Route {
                destination: seen.destination,
                via,
                link,
                source: seen.source,
            });
            if is_ours || self.made(&item) {
                items.push(item);
            }
        }
        // Whoever keeps the node role keeps its services.
        if actual.services && self.plan.items.is_empty() {
            items.push(Item::Services);
        }
        if actual.table.is_some() {
            items.push(Item::Table(Table::default()));
        }
        items
            .into_iter()
            .filter(|item| !wanted.contains(&item.identity()))
            .map(|item| Finding {
                item,
                state: State::Surplus,
            })
            .collect()
    }
}

/// Whether the kernel writes it along with forwarding for all links: it returns when that is
/// restored.
fn is_written_with_all(path: &str) -> bool {
    path.starts_with("net/ipv6/conf/") && path.ends_with("/forwarding")
}
