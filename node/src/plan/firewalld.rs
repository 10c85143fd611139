//! firewalld's settings, if it runs.

use std::collections::BTreeSet;

use super::{Plan, TUNNEL_PORT};
use crate::firewalld::{Rule, RuleKind, TRUSTED};
use crate::items::{Actual, Item};
use crate::settings::{Firewalld, Mode, Settings};
use crate::{DOOR, LINK, TUNNEL};

impl Plan {
    /// Adds the rules that let pods' packets and tunnels pass a running firewalld.
    pub(super) fn pass_firewalld(&mut self, settings: &Settings, actual: &Actual) {
        let Some(seen) = &actual.firewalld else {
            return;
        };
        let has_bridge = self
            .items
            .iter()
            .any(|item| matches!(item, Item::Bridge(it) if it.name == TUNNEL));
        let links = match settings.mode {
            Mode::Ovn if self.has_door() => vec![LINK, DOOR],
            Mode::Ovn => vec![LINK],
            Mode::Plain if has_bridge => vec![settings.bridge.as_str(), TUNNEL],
            Mode::Plain => vec![settings.bridge.as_str()],
        };
        let peers = settings.peers.iter().flat_map(|peer| &peer.subnets);
        // In plain mode, other nodes' pods send through the uplink, with their own addresses.
        let nets: BTreeSet<_> = settings
            .node_subnets
            .iter()
            .chain(&settings.cluster_subnets)
            .chain(peers)
            .collect();
        // A part of another net would be in two zones.
        let within = |net: &&&ipnet::IpNet| {
            nets.iter()
                .any(|other| *other != **net && other.contains(**net))
        };
        let trusted = links
            .into_iter()
            .map(|link| RuleKind::Interface(link.to_owned()))
            .chain(
                nets.iter()
                    .filter(|net| !within(net))
                    .map(|net| RuleKind::Source(**net)),
            )
            .map(|what| (TRUSTED.to_owned(), what));
        let tunnels = settings.mode == Mode::Ovn || has_bridge;
        let port = RuleKind::Port(settings.encap_port.unwrap_or(TUNNEL_PORT));
        let port = seen
            .uplink_zone
            .clone()
            .filter(|_| tunnels)
            .map(|zone| (zone, port));
        let kinds: &[bool] = match settings.firewalld {
            Firewalld::Off => &[],
            Firewalld::Runtime => &[false],
            Firewalld::Permanent => &[false, true],
        };
        for (zone, what) in trusted.chain(port) {
            for permanent in kinds {
                self.items.push(Item::Firewalld(Rule {
                    zone: zone.clone(),
                    what: what.clone(),
                    permanent: *permanent,
                }));
            }
        }
    }
}
