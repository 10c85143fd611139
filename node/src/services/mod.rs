//! Services on the host: one nftables table makes them reachable from the host and from outside.

mod clients;
mod frontends;
mod health;
mod refused;
mod rules;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use podwire_cluster::service::Protocol;
use podwire_cluster::{ObjectName, claims};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::items::Led;
use crate::nft::{self, NftError, SERVICES as NAME, objects};
use crate::settings::Settings;
use crate::snapshot::Snapshot;

pub(crate) use frontends::LocalNode;

use frontends::{Frontend, Frontends};
use health::Health;
use table::{Contents, Observed};

/// What a gateway router of OVN's leads to pods; none while that is not known.
pub(crate) fn led(
    cluster: &Cluster,
    settings: &Settings,
    snapshot: &Snapshot,
) -> Option<BTreeSet<Led>> {
    let is_led = settings
        .is_known(cluster)
        .then_some(settings.router_leads)?;
    let gateway = snapshot.plan.gateway.as_ref().filter(|_| is_led);
    let Some(gateway) = gateway else {
        return Some(BTreeSet::new());
    };
    let here = LocalNode::of(settings, &snapshot.actual);
    let addresses: Vec<IpAddr> = gateway.addresses.iter().map(IpNet::addr).collect();
    Some(Frontends::of(cluster, &here, |_| true).led(&here, &addresses))
}

/// The state of all services on this machine.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// The table as last seen or written, until somebody changes it.
    seen: Option<Option<Observed>>,
    /// The frontends that it was created for.
    frontends: Frontends,
    health: Health,
    /// What nft refused.
    refused: BTreeMap<ObjectName, Refused>,
    /// Whether it was once as planned.
    is_settled: bool,
    /// Whether somebody has written its rules: their comments don't tell what they do.
    is_overwritten: bool,
}

/// A service that nft refused.
#[derive(Debug)]
struct Refused {
    /// Its frontends then; others are tried again.
    frontends: Frontends,
    said: String,
}

/// The result of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Updated {
    Nothing,
    /// It was updated from the objects.
    Changed,
    /// Somebody else had changed it.
    Restored,
}

impl Services {
    /// The table may have been changed by somebody, also its rules.
    pub(crate) fn look_again(&mut self, rules: bool) {
        self.seen = None;
        self.is_overwritten |= rules;
    }

    /// Number of frontends.
    pub(crate) fn count(&self) -> usize {
        self.frontends.by_key.len()
    }

    /// The services that nft refuses, each with what it says.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&ObjectName, &str)> {
        let refused = self.refused.iter();
        refused.map(|(name, refused)| (name, refused.said.as_str()))
    }

    /// Brings the table in line with the objects. A service that nft refuses is left out.
    ///
    /// # Errors
    /// nft's, if it is no service's fault.
    pub(crate) async fn update(
        &mut self,
        cluster: &Cluster,
        here: &LocalNode,
    ) -> Result<Updated, NftError> {
        if !cluster.is_listed() {
            return Ok(Updated::Nothing);
        }
        let alone = |name: &ObjectName| Frontends::of(cluster, here, |other| other == name);
        self.refused
            .retain(|name, refused| alone(name) == refused.frontends);
        loop {
            let frontends = Frontends::of(cluster, here, |name| !self.refused.contains_key(name));
            let error = match self.write(&frontends, here).await {
                Err(error @ NftError::Refused { .. }) => error,
                written => return written,
            };
            let found = refused::find(&frontends, here).await?;
            if found.is_empty() {
                return Err(error);
            }
            for (name, said) in found {
                let service = format!("{}/{}", name.0, name.1);
                warn!(service, said, "nft refuses a service, which is left out");
                let frontends = alone(&name);
                self.refused.insert(name, Refused { frontends, said });
            }
        }
    }

    /// Brings the table in line with these frontends.
    async fn write(
        &mut self,
        frontends: &Frontends,
        here: &LocalNode,
    ) -> Result<Updated, NftError> {
        for (name, refused) in &frontends.refused {
            if self.frontends.refused.get(name) != Some(refused) {
                let (service, text) = (format!("{}/{}", name.0, name.1), claims::text(refused));
                warn!(service, text, "addresses of a service are left out");
            }
        }
        self.health.serve(&frontends.health);
        let contents = Contents::of(frontends, here);
        let wanted = contents.seen();
        let looked = self.seen.is_none();
        let seen = match self.seen.take() {
            Some(seen) => seen,
            None => {
                let listed = nft::list(NAME).await?;
                if let Some(listed) = listed.as_ref().filter(|_| !self.is_settled)
                    && rules::are_changed(&contents, listed).await?
                {
                    warn!("rules of services are not those that podwire wrote: writing them anew");
                    self.is_overwritten = true;
                }
                listed.as_ref().map(read)
            }
        };
        if seen.as_ref() == Some(&wanted) && !self.is_overwritten {
            self.seen = Some(seen);
            self.frontends = frontends.clone();
            self.is_settled = true;
            return Ok(Updated::Nothing);
        }
        let before = Contents::of(&self.frontends, here).seen();
        let is_other = self.is_overwritten || seen.as_ref() != Some(&before);
        let was_changed = looked && self.is_settled && is_other;
        let script = match self.is_overwritten {
            true => contents.anew(),
            false => contents.script(seen.as_ref()),
        };
        if let Err(error) = nft::run("services' table", &script).await {
            // The actual state is not the one seen: create everything anew.
            warn!(%error, "creating the table of services again");
            nft::run("services' table", &contents.anew()).await?;
        }
        self.seen = Some(Some(wanted));
        self.is_overwritten = false;
        let before = std::mem::replace(&mut self.frontends, frontends.clone());
        self.is_settled = true;
        self.forget(&before).await;
        info!(frontends = self.count(), "services follow the cluster");
        Ok(if was_changed {
            Updated::Restored
        } else {
            Updated::Changed
        })
    }

    /// Makes clients of deleted endpoints use others: UDP clients, whose connections have no end,
    /// and those that stuck to one.
    async fn forget(&self, before: &Frontends) {
        let mut datagrams = BTreeMap::new();
        let frontends = before.by_key.iter().chain(&self.frontends.by_key);
        for key in frontends.map(|(key, _)| key).collect::<BTreeSet<_>>() {
            let (was, frontend) = (before.by_key.get(key), self.frontends.by_key.get(key));
            let (had, has) = (ends(was), ends(frontend));
            if had == has {
                continue;
            }
            if key.protocol == Protocol::Udp {
                let address = SocketAddr::new(key.address, key.port);
                // A server of the machine's own may have the address of a frontend that is gone.
                let usable = if frontend.is_some() {
                    has.clone()
                } else {
                    vec![address]
                };
                datagrams.insert(address, usable);
            }
            let is_gone = had.iter().any(|end| !has.contains(end));
            if let Some(frontend) =
                frontend.filter(|it| it.affinity.is_some() && is_gone && !has.is_empty())
            {
                clients::forget(key, frontend).await;
            }
        }
        if datagrams.is_empty() {
            return;
        }
        let removed = spawn_blocking(move || podwire_netns::forget_endpoints(&datagrams)).await;
        match removed
            .map_err(io::Error::from)
            .and_then(|it| it.map_err(io::Error::other))
        {
            Ok(0) => {}
            Ok(count) => info!(count, "removed connections to endpoints that are gone"),
            Err(error) => warn!(%error, "connections to endpoints that are gone can't be removed"),
        }
    }
}

/// What is behind a frontend, for whomever; nothing without one.
fn ends(frontend: Option<&Frontend>) -> Vec<SocketAddr> {
    let ends = frontend.into_iter();
    ends.flat_map(|frontend| frontend.endpoints.iter().chain(&frontend.inner))
        .copied()
        .collect()
}

fn read(listed: &Value) -> Observed {
    let mut seen = Observed::default();
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
    let Some(text) = value.as_str() else {
        return value.to_string();
    };
    // The C library writes ::192.0.2.1 where Rust writes ::c000:201.
    let address: Result<IpAddr, _> = text.parse();
    address.map_or_else(|_| text.to_owned(), |address| address.to_string())
}
