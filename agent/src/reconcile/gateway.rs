//! The pods' gateway in plain mode: addresses on the bridge's local port, removed again when the
//! subnets change.
//!
//! An operator may have set addresses on the same link. So podwire first records in the run
//! directory what it is about to set, and removes only what is recorded there; that directory ends
//! with the boot, as the link does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use itertools::Itertools as _;
use podwire_cni::private_dir::PrivateDir;
use podwire_netns::{self as netns, Netlink};
use serde::{Deserialize, Serialize};

use super::LOCAL_PORT_DEADLINE;
use crate::attach::Handles;
use crate::config::{Live, Mode};
use crate::ports;

/// The record's name in the run directory.
const FILE: &str = "gateways.json";
/// Its size limit in bytes: two addresses for each subnet.
const LONGEST: usize = 1 << 20;

/// Keeps the gateway addresses on the bridge's local port, even after ovs-vswitchd has re-created
/// it and after the subnets have changed, and removes those of an earlier subnet that has no pods
/// left. Never returns, unless there can be no gateway.
pub async fn keep_gateway(node: Arc<Handles>) {
    let mut live = node.live.subscribe();
    let mut gateway = Gateway {
        record: Record::read(&node.config.run_dir),
        wanted: node.config.gateway_addresses(&live.borrow_and_update()),
        announced: None,
        node: Arc::clone(&node),
    };
    gateway.remove_outdated().await;
    if !node.config.gateway || node.config.ovn.mode == Mode::Ovn {
        return;
    }
    let mut link = node.netlink.watch_link(&node.config.bridge);
    loop {
        let seen = link.borrow_and_update().clone();
        // A port that somebody set down stays down; one that was never up is new, and podwire's to
        // set up.
        if !gateway.wanted.is_empty()
            && seen.is_some_and(|state| state.up || gateway.announced != Some(state.ifindex))
        {
            gateway.set_addresses().await;
        }
        let known = gateway.wanted.clone();
        let other_gateways = async {
            let differ = |live: &Live| node.config.gateway_addresses(live) != known;
            let live = live.wait_for(differ).await.ok()?;
            Some(node.config.gateway_addresses(&live))
        };
        tokio::select! {
            changed = link.changed() => if changed.is_err() { return },
            others = other_gateways => {
                let Some(others) = others else { return };
                gateway.wanted = others;
                gateway.announced = None;
                gateway.remove_outdated().await;
            }
        }
    }
}

/// The gateway on the bridge's local port.
struct Gateway {
    node: Arc<Handles>,
    record: Record,
    wanted: Vec<IpNet>,
    /// The link whose addresses have been logged.
    announced: Option<u32>,
}

impl Gateway {
    /// Sets the addresses, even on a known link: ovs-vswitchd sets a tap down and up again to
    /// change its MAC address, and when it goes down the kernel removes its IPv6 addresses
    /// (`addrconf_ifdown`).
    async fn set_addresses(&mut self) {
        let deadline = Instant::now() + LOCAL_PORT_DEADLINE;
        // Its MAC address is set before its ofport is known; until then addresses come and go.
        if let Err(error) = self.node.ports.wait_local_port(LOCAL_PORT_DEADLINE).await {
            tracing::warn!(%error, "the bridge's local port is not in use yet");
        }
        self.note_what_is_set().await;
        let (netlink, link) = (&self.node.netlink, &self.node.config.bridge);
        let set = netlink.ensure_addresses(link, self.wanted.clone(), true, deadline);
        match set.await {
            Ok(state) if self.announced != Some(state.ifindex) => {
                self.announced = Some(state.ifindex);
                let addresses = self.wanted.iter().join(",");
                tracing::info!(link, addresses, "the pods' gateway is up");
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "the pods have no gateway"),
        }
    }

    /// Removes what an agent with other subnets, or another bridge, has set, unless a live pod uses
    /// it as its gateway.
    async fn remove_outdated(&mut self) {
        let used = self.addresses_of_pods();
        let stays = |address: &IpNet| {
            let is_used = || used.iter().any(|pod| address.contains(&pod.addr()));
            self.record.bridge == self.node.config.bridge
                && (self.wanted.contains(address) || is_used())
        };
        let addresses = self.record.addresses.iter().copied();
        let (stay, outdated): (Vec<IpNet>, Vec<IpNet>) = addresses.partition(stays);
        if outdated.is_empty() {
            return;
        }
        let (link, addresses) = (&self.record.bridge, outdated.iter().join(","));
        match remove(&self.node.netlink, link, outdated).await {
            Ok(()) => {
                tracing::info!(link, addresses, "removed gateways of earlier subnets");
                self.record.addresses = stay;
                self.record.write();
            }
            Err(error) => tracing::error!(%error, "a gateway of an earlier subnet stays"),
        }
    }

    /// The addresses of this node's pods, from the intent log, which is available before the
    /// database.
    fn addresses_of_pods(&self) -> Vec<IpNet> {
        let (entries, _) = self.node.journal.entries();
        let ports = entries.iter().flat_map(|(_, entry)| &entry.ports);
        ports
            .flat_map(|port| ports::own_addresses(&port.external_ids))
            .collect()
    }

    /// Records those addresses that don't exist yet, and so will be podwire's.
    async fn note_what_is_set(&mut self) {
        let bridge = &self.node.config.bridge;
        let there = match self.node.netlink.host_addresses(bridge).await {
            Ok(there) => there,
            // Then nothing is known to be podwire's, and all addresses stay.
            Err(error) => {
                return tracing::warn!(
                    %error,
                    "can't tell the pods' gateway from others' addresses"
                );
            }
        };
        let record = &mut self.record;
        let mut addresses: Vec<IpNet> = match record.bridge == *bridge {
            true => record.addresses.clone(),
            false => Vec::new(),
        };
        for address in &self.wanted {
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
}

/// Removes addresses and keeps others'.
async fn remove(netlink: &Netlink, link: &str, outdated: Vec<IpNet>) -> Result<(), netns::Error> {
    let mut others = netlink.host_addresses(link).await?;
    others.retain(|address| !outdated.contains(address));
    netlink.remove_addresses(link, outdated).await?;
    // With the first IPv4 address of a subnet the kernel removes the subnet's others
    // (`__inet_del_ifa`, unless promote_secondaries is set), and those may not be podwire's.
    if netlink.host_addresses(link).await?.len() < others.len() {
        let deadline = Instant::now() + LOCAL_PORT_DEADLINE;
        let restored = netlink.ensure_addresses(link, others, false, deadline);
        restored.await?;
    }
    Ok(())
}

/// The addresses set, by link.
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
