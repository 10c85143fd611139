//! The pods' gateway in plain mode: addresses on the bridge's local port, put there and, when the subnets have changed since,
//! taken away again.
//!
//! An operator may have put addresses on the same link. So what is put there is written down first, in the run directory, and
//! only what is written there is ever taken away; that directory ends with the boot, as the link does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use podwire_cni::private_dir::PrivateDir;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::LOCAL_PORT_DEADLINE;
use crate::attach::Agent;
use crate::config::{Live, Mode};
use crate::{netns, ports};

/// The record's name in the run directory.
const FILE: &str = "gateways.json";
/// Its most bytes: two addresses for each subnet.
const LONGEST: usize = 1 << 20;

/// Sees to it that the bridge's local port has the gateway addresses, also after ovs-vswitchd has made it anew and after the
/// subnets have changed, and none of an earlier subnet in which no pod is left. Never ends, unless there can be no gateway.
pub async fn keep_gateway(agent: Arc<Agent>) {
    let mut record = Record::read(&agent.config.run_dir);
    let mut live = agent.live.subscribe();
    let mut wanted = agent.config.gateway_addresses(&live.borrow_and_update());
    remove_outdated(&agent, &mut record, &wanted).await;
    if !agent.config.gateway || agent.config.ovn.mode == Mode::Ovn {
        return;
    }
    let name = agent.config.bridge.clone();
    let mut link = agent.netlink.watch_link(&name);
    let mut announced = None;
    loop {
        let seen = link.borrow_and_update().clone();
        // A port that somebody set down stays down; what was never up is new, and ours to set up.
        if seen.is_some_and(|state| state.up || announced != Some(state.ifindex)) {
            // Also when it is the one we know: ovs-vswitchd sets a tap down and up again to change its MAC, and on the way down
            // the kernel drops its IPv6 addresses (`addrconf_ifdown`).
            let deadline = Instant::now() + LOCAL_PORT_DEADLINE;
            // Its MAC is set before its ofport is told; until then addresses come and go.
            if let Err(error) = agent.ports.wait_local_port(LOCAL_PORT_DEADLINE).await {
                tracing::warn!(%error, "the bridge's local port is not in use yet");
            }
            note_what_is_put(&agent, &mut record, &wanted).await;
            let set = agent
                .netlink
                .ensure_addresses(&name, wanted.clone(), true, deadline);
            match set.await {
                Ok(state) if announced != Some(state.ifindex) => {
                    announced = Some(state.ifindex);
                    let list: Vec<String> = wanted.iter().map(ToString::to_string).collect();
                    tracing::info!(
                        link = name,
                        addresses = list.join(","),
                        "the pods' gateway is up"
                    );
                }
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "the pods have no gateway"),
            }
        }
        tokio::select! {
            changed = link.changed() => if changed.is_err() { return },
            changed = other_gateways(&agent, &mut live, &wanted) => {
                let Some(others) = changed else { return };
                wanted = others;
                announced = None;
                remove_outdated(&agent, &mut record, &wanted).await;
            }
        }
    }
}

/// Waits until the subnets have other gateways than these; none when the agent ends.
async fn other_gateways(
    agent: &Agent,
    live: &mut watch::Receiver<Live>,
    known: &[IpNet],
) -> Option<Vec<IpNet>> {
    let changed = live.wait_for(|live| agent.config.gateway_addresses(live) != known);
    let live = changed.await.ok()?;
    Some(agent.config.gateway_addresses(&live))
}

/// Takes away what an agent with other subnets, or another bridge, has put there; not while a pod lives whose gateway it is.
async fn remove_outdated(agent: &Agent, record: &mut Record, wanted: &[IpNet]) {
    let used = addresses_of_pods(agent);
    let stays = |address: &IpNet| {
        record.bridge == agent.config.bridge
            && (wanted.contains(address) || used.iter().any(|pod| address.contains(&pod.addr())))
    };
    let (stay, outdated): (Vec<IpNet>, Vec<IpNet>) =
        record.addresses.iter().copied().partition(stays);
    if outdated.is_empty() {
        return;
    }
    let bridge = record.bridge.clone();
    let list: Vec<String> = outdated.iter().map(ToString::to_string).collect();
    match remove(agent, &bridge, outdated).await {
        Ok(()) => {
            tracing::info!(
                link = bridge,
                addresses = list.join(","),
                "gateways of earlier subnets are gone"
            );
            record.addresses = stay;
            record.write();
        }
        Err(error) => tracing::error!(%error, "a gateway of an earlier subnet stays"),
    }
}

/// What the pods of this node have, by the intent log: it is there before the database is.
fn addresses_of_pods(agent: &Agent) -> Vec<IpNet> {
    let (entries, _) = agent.journal.entries();
    let ports = entries.iter().flat_map(|(_, entry)| &entry.ports);
    ports
        .flat_map(|port| ports::addresses(&port.external_ids))
        .collect()
}

/// Takes addresses away and leaves others'.
async fn remove(agent: &Agent, link: &str, outdated: Vec<IpNet>) -> Result<(), netns::Error> {
    let mut others = agent.netlink.host_addresses(link).await?;
    others.retain(|address| !outdated.contains(address));
    agent.netlink.remove_addresses(link, outdated).await?;
    // With the first IPv4 address of a subnet the kernel removes its others (`__inet_del_ifa`, unless promote_secondaries is
    // set), and those are not ours to lose.
    if agent.netlink.host_addresses(link).await?.len() < others.len() {
        let deadline = Instant::now() + LOCAL_PORT_DEADLINE;
        let restored = agent
            .netlink
            .ensure_addresses(link, others, false, deadline);
        restored.await?;
    }
    Ok(())
}

/// Writes down those addresses that are not there yet, and so will be ours.
async fn note_what_is_put(agent: &Agent, record: &mut Record, wanted: &[IpNet]) {
    let bridge = &agent.config.bridge;
    let there = match agent.netlink.host_addresses(bridge).await {
        Ok(there) => there,
        // Then nothing is known to be ours, and what is put stays.
        Err(error) => {
            return tracing::warn!(%error, "the pods' gateway can't be told from others' addresses");
        }
    };
    let mut addresses: Vec<IpNet> = match record.bridge == *bridge {
        true => record.addresses.clone(),
        false => Vec::new(),
    };
    for address in wanted {
        if !there.contains(address) && !addresses.contains(address) {
            addresses.push(*address);
        }
    }
    if record.bridge != *bridge || record.addresses != addresses {
        record.bridge.clone_from(bridge);
        record.addresses = addresses;
        record.write();
    }
}

/// What was put where.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    bridge: String,
    addresses: Vec<IpNet>,
    #[serde(skip)]
    run_dir: PathBuf,
}

impl Record {
    fn read(run_dir: &Path) -> Self {
        let read = PrivateDir::open(run_dir).and_then(|dir| dir.read(FILE, LONGEST));
        let record = match read.map(|text| text.map(|text| serde_json::from_slice(&text))) {
            Ok(None) => Self::default(),
            Ok(Some(Ok(record))) => record,
            Ok(Some(Err(error))) => {
                tracing::warn!(file = FILE, %error, "not used: no record of gateways");
                Self::default()
            }
            Err(error) => {
                tracing::warn!(%error, "the record of gateways is not used");
                Self::default()
            }
        };
        let run_dir = run_dir.to_owned();
        Self { run_dir, ..record }
    }

    fn write(&self) {
        let text = serde_json::to_vec(self).expect("strings and addresses always serialise");
        let written = PrivateDir::open(&self.run_dir).and_then(|dir| dir.write(FILE, &[&text]));
        if let Err(error) = written {
            tracing::warn!(%error, "the record of gateways can't be written");
        }
    }
}
