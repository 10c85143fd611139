//! Services on the host: one nftables table makes them reachable from the host and from outside.

mod fronts;
mod health;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde_json::Value;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::conntrack;
use crate::nft::{self, NftError, objects};

pub(crate) use fronts::Here;
pub(crate) use table::NAME;

use fronts::{Front, Fronts, Key};
use health::Health;
use table::{Contents, Seen};

/// The state of all services on this machine.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// The table as last seen or written, until somebody changes it.
    seen: Option<Option<Seen>>,
    /// The fronts that it was created for.
    fronts: Fronts,
    health: Health,
    /// Whether it was once as planned.
    is_settled: bool,
}

/// The result of settling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Nothing,
    /// It was updated from the objects.
    Changed,
    /// Somebody else had changed it.
    PutBack,
}

impl Services {
    /// The table may have been changed by somebody.
    pub(crate) fn look_again(&mut self) {
        self.seen = None;
    }

    /// Number of fronts.
    pub(crate) fn count(&self) -> usize {
        self.fronts.by_key.len()
    }

    /// Brings the table in line with the objects.
    ///
    /// # Errors
    /// nft's.
    pub(crate) async fn settle(
        &mut self,
        cluster: &Cluster,
        here: &Here,
        pods: &[IpNet],
    ) -> Result<Settled, NftError> {
        if !cluster.is_listed() {
            return Ok(Settled::Nothing);
        }
        let fronts = Fronts::of(cluster, here);
        self.health.serve(&fronts.health);
        let contents = Contents::of(&fronts, pods, &here.addresses);
        let wanted = contents.seen();
        let looked = self.seen.is_none();
        let seen = match self.seen.take() {
            Some(seen) => seen,
            None => nft::list(NAME).await?.map(|listed| read(&listed)),
        };
        if seen.as_ref() == Some(&wanted) {
            self.seen = Some(seen);
            self.fronts = fronts;
            self.is_settled = true;
            return Ok(Settled::Nothing);
        }
        let before = Contents::of(&self.fronts, pods, &here.addresses).seen();
        let was_changed = looked && self.is_settled && seen.as_ref() != Some(&before);
        let script = contents.script(seen.as_ref());
        if let Err(error) = nft::run("services' table", &script).await {
            // The actual state is not the one seen: create everything anew.
            warn!(%error, "creating the table of services again");
            nft::run("services' table", &contents.anew()).await?;
        }
        self.seen = Some(Some(wanted));
        let before = std::mem::replace(&mut self.fronts, fronts);
        self.is_settled = true;
        self.forget(&before).await;
        info!(fronts = self.count(), "services follow the cluster");
        Ok(if was_changed {
            Settled::PutBack
        } else {
            Settled::Changed
        })
    }

    /// Makes clients of deleted endpoints use others: UDP clients, whose connections have no end,
    /// and those that stuck to one.
    async fn forget(&self, before: &Fronts) {
        let mut datagrams = BTreeMap::new();
        for (key, front) in &self.fronts.by_key {
            let was = before.by_key.get(key);
            let same = was.is_some_and(|was| was.endpoints == front.endpoints);
            if key.protocol == "udp" && !same && !front.endpoints.is_empty() {
                let usable = front
                    .endpoints
                    .iter()
                    .chain(&front.inner)
                    .copied()
                    .collect();
                datagrams.insert(SocketAddr::new(key.address, key.port), usable);
            }
            let gone = |was: &&Front| was.endpoints.iter().any(|it| !front.endpoints.contains(it));
            if front.affinity.is_some() && was.as_ref().is_some_and(gone) {
                unstick(key, front).await;
            }
        }
        match conntrack::forget(&datagrams).await {
            Ok(0) => {}
            Ok(count) => info!(count, "removed connections to endpoints that are gone"),
            Err(error) => warn!(%error, "connections to endpoints that are gone can't be removed"),
        }
    }
}

/// Removes the clients that stuck to a deleted endpoint.
async fn unstick(key: &Key, front: &Front) {
    let map = table::clients(key);
    let listed = match nft::list_map(NAME, &map).await {
        Ok(listed) => listed,
        Err(error) => return warn!(%error, "clients stick to endpoints that are gone"),
    };
    let elements = objects(&listed).filter_map(|object| object["map"]["elem"].as_array());
    let mut script = String::new();
    for element in elements.flatten() {
        let client = &element[0]["elem"]["val"];
        let endpoint = joined(&element[1]);
        let stays = front
            .endpoints
            .iter()
            .any(|it| format!("{} . {}", it.ip(), it.port()) == endpoint);
        if let (Some(client), false) = (client.as_str(), stays) {
            script += &format!("delete element {NAME} {map} {{ {client} }}\n");
        }
    }
    if !script.is_empty()
        && let Err(error) = nft::run("clients' endpoints", &script).await
    {
        warn!(%error, "clients stick to endpoints that are gone");
    }
}

/// The addresses of the machine for node ports: not those of the pod network.
pub(crate) fn addresses<'a>(
    seen: impl Iterator<Item = &'a crate::actual::AddressSeen>,
) -> BTreeSet<IpAddr> {
    let own = seen.filter(|seen| seen.universe && seen.link != crate::LINK && seen.link != "lo");
    own.map(|seen| seen.address.addr()).collect()
}

fn read(listed: &Value) -> Seen {
    let mut seen = Seen::default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for object in objects(listed) {
        if let Some(chain) = object.get("chain") {
            seen.chains.entry(text(&chain["name"])).or_default();
        } else if let Some(rule) = object.get("rule") {
            let chain = seen.chains.entry(text(&rule["chain"])).or_default();
            chain.push(text(&rule["comment"]));
        } else if let Some(set) = object.get("set").or_else(|| object.get("map")) {
            let name = text(&set["name"]);
            // The table itself decides which client sticks to which endpoint.
            let elements = set["elem"]
                .as_array()
                .filter(|_| !table::is_of_clients(&name));
            for element in elements.into_iter().flatten() {
                let (key, value) = match element.as_array() {
                    Some(pair) if pair.len() == 2 => (joined(&pair[0]), joined(&pair[1])),
                    _ => (joined(element), String::new()),
                };
                seen.elements.insert((name.clone(), key), value);
            }
            seen.sets.insert(name);
        }
    }
    seen
}

/// In the form that nft accepts, from the one that it lists.
fn joined(value: &Value) -> String {
    if let Some(parts) = value["concat"].as_array() {
        let parts: Vec<String> = parts.iter().map(joined).collect();
        return parts.join(" . ");
    }
    if let Some(target) = value["goto"]["target"].as_str() {
        return format!("goto {target}");
    }
    if let Some(prefix) = value.get("prefix") {
        return format!("{}/{}", joined(&prefix["addr"]), prefix["len"]);
    }
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
