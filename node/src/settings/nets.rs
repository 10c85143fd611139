//! The networks in the settings.

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cluster::address::overlap;
use podwire_cluster::annotations::NODE_SUBNETS;

use super::{Mode, Settings, SettingsError, bad};
use crate::overlap::not_for_pods;

impl Settings {
    /// The name of the setting with the node's subnets.
    pub(crate) fn subnets_setting(&self) -> &'static str {
        match self.mode {
            _ if self.subnets_by_flag => "--node-subnet",
            Mode::Ovn => NODE_SUBNETS,
            Mode::Plain => "podCIDRs",
        }
    }

    /// All networks that podwire is to lead packets to.
    pub(crate) fn networks(&self) -> Vec<IpNet> {
        let peers = self.peers.iter().flat_map(|peer| &peer.subnets);
        let own = self.node_subnets.iter().chain(&self.cluster_subnets);
        own.chain(&self.service_cidrs)
            .chain(peers)
            .copied()
            .collect()
    }

    /// The node's subnets, for messages.
    pub(crate) fn subnets_text(&self) -> String {
        self.node_subnets.iter().join(", ")
    }
}

/// The least MTU of pods with these subnets, in bytes: IPv6's (RFC 8200 section 5), or what every
/// host of IPv4 accepts (RFC 791).
pub(crate) fn least_mtu(subnets: &[IpNet]) -> u32 {
    match subnets.iter().any(|net| net.addr().is_ipv6()) {
        true => 1280,
        false => 576,
    }
}

/// Refuses a network that overlaps another of podwire's.
pub(super) fn check_apart<'a>(
    flag: &'static str,
    net: &IpNet,
    what: &str,
    mut others: impl Iterator<Item = &'a IpNet>,
) -> Result<(), SettingsError> {
    match others.find(|other| overlap(net, other)) {
        Some(other) => {
            let problem = format!("it overlaps {what} {other}");
            Err(bad(flag, &net.to_string(), problem))
        }
        None => Ok(()),
    }
}

/// Checks a node's subnets, by themselves and against the cluster's.
pub(crate) fn check_subnets(
    flag: &'static str,
    subnets: &[IpNet],
    cluster_subnets: &[IpNet],
) -> Result<(), SettingsError> {
    for (at, subnet) in subnets.iter().enumerate() {
        let same = |other: &&IpNet| other.addr().is_ipv4() == subnet.addr().is_ipv4();
        if let Some(other) = subnets[..at].iter().find(same) {
            let problem = format!("{other} is of the same family, and there may be one of each");
            return Err(bad(flag, &subnet.to_string(), problem));
        }
        // Network, gateway, the host's own, one pod, broadcast.
        if subnet.max_prefix_len() - subnet.prefix_len() < 3 {
            let most = subnet.max_prefix_len() - 3;
            let problem = format!("too small for a node's pods: /{most} at most");
            return Err(bad(flag, &subnet.to_string(), problem));
        }
    }
    for subnet in subnets {
        let mut of_family = cluster_subnets
            .iter()
            .filter(|net| net.addr().is_ipv4() == subnet.addr().is_ipv4())
            .peekable();
        if of_family.peek().is_some() && !of_family.any(|net| net.contains(subnet)) {
            let problem = "it is in none of --cluster-subnet";
            return Err(bad(flag, &subnet.to_string(), problem));
        }
    }
    Ok(())
}

pub(super) fn nets(flag: &'static str, texts: &[String]) -> Result<Vec<IpNet>, SettingsError> {
    // Kubernetes' own lists use commas.
    let texts = texts.iter().flat_map(|text| text.split(',').map(str::trim));
    let nets = texts.filter(|text| !text.is_empty()).map(|text| {
        let net: IpNet = text
            .parse()
            .map_err(|_| bad(flag, text, "expected a network, as in 10.244.0.0/16"))?;
        if net.addr() != net.network() {
            let problem = format!("its host part is not zero: is {} meant?", net.trunc());
            return Err(bad(flag, text, problem));
        }
        match not_for_pods(&net) {
            Some(problem) => Err(bad(flag, text, problem)),
            None => Ok(net),
        }
    });
    nets.collect()
}
