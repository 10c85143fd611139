//! A plan's ports as rows of Open vSwitch: made, found, awaited and removed by OVSDB transactions and updates.
//!
//! Nothing here is remembered. What ports there are is asked of the replica, which an update keeps current; which of them are
//! ours, and what they are for, is written in their external_ids.

mod error;
mod record;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use podwire_ovs::client::{Client, ClientConfig, Remote, State, Version};
use podwire_ovs::replica::Db;
use podwire_ovs::transact::Transaction;
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{self, BridgeSpec, PortRows, PortSpec, StringMap};
use tokio::sync::watch;
use tokio::time::Instant;

pub use error::PortError;
pub use record::{PortRecord, addresses};

use crate::config::Config;
use crate::plan::{AttachmentKey, NodeFacts, PortPlan};

/// How long one transaction may take; ovsdb-server answers in less than a millisecond, a loaded one in some.
const TRANSACTION_DEADLINE: Duration = Duration::from_secs(15);
/// After this long without an ofport ovs-vswitchd is asked whether it lives.
const SUSPICION: Duration = Duration::from_secs(2);
/// How long ovs-vswitchd may take to forget a pod's connections; a dead one must not hold up a DEL.
const FLUSH_DEADLINE: Duration = Duration::from_millis(500);
/// How long it may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// The switch's database and its daemon.
#[derive(Debug)]
pub struct Ports {
    client: Client,
    bridge: String,
    ovsdb: PathBuf,
    rundir: PathBuf,
}

/// A port to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewPort<'a> {
    /// What it is.
    pub plan: &'a PortPlan,
    /// The name that its host end got.
    pub host_name: &'a str,
}

/// Ports that were made.
#[derive(Debug)]
pub struct Added {
    /// Their Interface rows, in the order they were asked for.
    pub interfaces: Vec<Uuid>,
    /// Ports of older sandboxes, or leftovers, whose iface-id they took over.
    pub replaced: Vec<PortRecord>,
    /// When the transaction was handed over.
    pub sent: std::time::Instant,
    /// Until it was answered.
    pub took: Duration,
}

/// What the bridge should be like if it has to be made.
#[derive(Debug, Clone)]
pub struct BridgeWanted {
    /// `system` or `netdev`.
    pub datapath_type: &'static str,
    /// MAC address of the local port.
    pub hwaddr: String,
    /// MTU of the local port, in bytes.
    pub mtu: u32,
}

impl Ports {
    /// Begins to connect, on the current tokio runtime.
    pub fn connect(config: &Config) -> Self {
        let remote = Remote::Unix(config.ovsdb.clone());
        Self {
            client: Client::start(ClientConfig::new(
                remote,
                vswitch::DATABASE,
                vswitch::tables(),
            )),
            bridge: config.bridge.clone(),
            ovsdb: config.ovsdb.clone(),
            rundir: config.ovs_rundir.clone(),
        }
    }

    /// Waits until the replica is what the database has, for so long at most.
    ///
    /// # Errors
    /// [`PortError::NotConnected`].
    pub async fn synced(&self, patience: Duration) -> Result<(), PortError> {
        if self.client.state() == State::Synced {
            return Ok(());
        }
        self.client.nudge();
        self.client
            .synced(Instant::now() + patience)
            .await
            .map_err(|source| PortError::NotConnected {
                ovsdb: self.ovsdb.clone(),
                source,
            })
    }

    /// Waits until ports can be made: the replica is current, and the bridge is there.
    ///
    /// # Errors
    /// [`PortError::NotConnected`] and [`PortError::NoBridge`].
    pub async fn ready(&self, patience: Duration) -> Result<(), PortError> {
        self.synced(patience).await?;
        let is_there = |db: &Db| db.bridge_by_name(&self.bridge).map(|_| ());
        if self.client.read(is_there).is_some() {
            return Ok(());
        }
        let awaited = format!("bridge {}", self.bridge);
        let found = self
            .client
            .wait(&awaited, Instant::now() + patience, is_there)
            .await;
        found.map_err(|_| PortError::NoBridge {
            bridge: self.bridge.clone(),
        })
    }

    /// Waits, however long, until the replica is current.
    pub async fn wait_synced(&self) {
        let mut versions = self.client.subscribe();
        // The sender lives as long as the client, and the client as long as we do.
        let _ = versions
            .wait_for(|version| version.state == State::Synced)
            .await;
    }

    /// The replica's versions.
    pub fn subscribe(&self) -> watch::Receiver<Version> {
        self.client.subscribe()
    }

    /// Waits, however long, until there has been a new snapshot or the bridge has gone.
    pub async fn wait_lost_or_bridgeless(&self, versions: &mut watch::Receiver<Version>) {
        let before = versions.borrow_and_update().resyncs;
        let is_due = |version: &Version| {
            version.resyncs != before
                || (version.state == State::Synced
                    && self
                        .client
                        .read(|db| db.bridge_by_name(&self.bridge).is_none()))
        };
        let _ = versions.wait_for(is_due).await;
    }

    /// What the plan must know of the node.
    ///
    /// # Errors
    /// [`PortError::NoBridge`].
    pub fn node_facts(&self, default_mtu: u32) -> Result<NodeFacts, PortError> {
        let datapath = |db: &Db| {
            db.bridge_by_name(&self.bridge)
                .map(|bridge| bridge.datapath_type() == "netdev")
        };
        match self.client.read(datapath) {
            Some(netdev_datapath) => Ok(NodeFacts {
                bridge: self.bridge.clone(),
                netdev_datapath,
                default_mtu,
            }),
            None => Err(PortError::NoBridge {
                bridge: self.bridge.clone(),
            }),
        }
    }

    /// The ports of one attachment.
    pub fn find(&self, key: &AttachmentKey) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces_with_sandbox(&key.container_id)
                .map(|interface| PortRecord::read(db, interface))
                .filter(|record| record.key.as_ref() == Some(key))
                .collect()
        })
    }

    /// Every port of ours.
    pub fn all(&self) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces()
                .map(|interface| PortRecord::read(db, interface))
                .filter(|record| record.key.is_some())
                .collect()
        })
    }

    /// Makes ports; rows that bear a port's iface-id go in the transaction that makes it.
    ///
    /// # Errors
    /// The bridge is gone, the database refused, or there was no answer; in the last case the rows may be there.
    pub async fn add(&self, new: &[NewPort<'_>]) -> Result<Added, PortError> {
        let prepared = self.client.read(|db| {
            let bridge = db.bridge_by_name(&self.bridge)?.uuid();
            let mut stale: Vec<PortRecord> = Vec::new();
            let mut transactions = Vec::with_capacity(new.len());
            for port in new {
                let same_id = db
                    .interfaces_with(&port.plan.iface_id)
                    .map(|it| PortRecord::read(db, it));
                // A dead attachment's row may also still bear the name that our host end was free to take.
                let same_name = db
                    .interface_by_name(port.host_name)
                    .map(|it| PortRecord::read(db, it));
                let found: Vec<PortRecord> = same_id
                    .chain(same_name)
                    .filter(|record| {
                        !stale
                            .iter()
                            .any(|other| other.interface == record.interface)
                    })
                    .collect();
                let replaces: Vec<PortRows> = found
                    .iter()
                    .filter_map(|record| record.rows.clone())
                    .collect();
                stale.extend(found);
                let spec = PortSpec {
                    name: port.host_name.to_owned(),
                    external_ids: port.plan.external_ids.clone(),
                    ..PortSpec::default()
                };
                transactions.push(vswitch::add_port(bridge, &spec, &replaces));
            }
            Some((transactions, stale))
        });
        let no_bridge = || PortError::NoBridge {
            bridge: self.bridge.clone(),
        };
        let (transactions, replaced) = prepared.ok_or_else(no_bridge)?;
        let sent = Instant::now();
        // Handed over together they go in one request; each is waited for, since an unanswered one may still commit.
        let outcomes = join_all(transactions.iter().map(|added| {
            self.client
                .transact(&added.transaction, sent + TRANSACTION_DEADLINE)
        }));
        let mut interfaces = Vec::with_capacity(new.len());
        let mut failed = None;
        for ((outcome, added), port) in outcomes.await.into_iter().zip(&transactions).zip(new) {
            match outcome {
                Ok(outcome) => interfaces.extend(outcome.uuid(added.interface)),
                Err(source) => {
                    let port = port.host_name.to_owned();
                    failed = failed.or(Some(PortError::Transact {
                        step: "add port",
                        port,
                        source,
                    }));
                }
            }
        }
        match failed {
            None => Ok(Added {
                interfaces,
                replaced,
                sent: sent.into_std(),
                took: sent.elapsed(),
            }),
            Some(error) => Err(error),
        }
    }

    /// Removes ports in one transaction; none is no work.
    ///
    /// # Errors
    /// The database refused, or there was no answer.
    pub async fn remove(&self, records: &[PortRecord]) -> Result<(), PortError> {
        let rows: Vec<PortRows> = records
            .iter()
            .filter_map(|record| record.rows.clone())
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + TRANSACTION_DEADLINE;
        match self
            .client
            .transact(&vswitch::del_ports(&rows), deadline)
            .await
        {
            Ok(_) => Ok(()),
            Err(source) => {
                let port = records
                    .first()
                    .map(|record| record.name.clone())
                    .unwrap_or_default();
                Err(PortError::Transact {
                    step: "remove port",
                    port,
                    source,
                })
            }
        }
    }

    /// Waits until ovs-vswitchd has given every interface an ofport.
    ///
    /// # Errors
    /// The switch refused one, a row went away, ovs-vswitchd is not alive, or the time is up.
    pub async fn wait_ofports(
        &self,
        interfaces: &[Uuid],
        patience: Duration,
    ) -> Result<(), PortError> {
        let started = Instant::now();
        // All of them are waited for together: each wait goes on from what has come already.
        for interface in interfaces {
            let first = self
                .wait_ofport(*interface, started + SUSPICION.min(patience))
                .await;
            let Err(PortError::NoOfport { .. }) = first else {
                first?;
                continue;
            };
            self.switch_alive(ANSWER_DEADLINE).await?;
            self.wait_ofport(*interface, started + patience).await?;
        }
        Ok(())
    }

    async fn wait_ofport(&self, interface: Uuid, deadline: Instant) -> Result<(), PortError> {
        let waited = Instant::now();
        let waiting = self
            .client
            .wait_row("Interface", interface, deadline, |row| match row {
                None => Some(Err(PortError::RowGone {
                    interface: interface.to_string(),
                })),
                Some(row) => match (row.integer("ofport"), row.str("error")) {
                    (Some(ofport), _) if ofport > 0 => Some(Ok(())),
                    (_, Some(text)) if !text.is_empty() => Some(Err(PortError::Refused {
                        port: row.str("name").unwrap_or_default().to_owned(),
                        text: text.to_owned(),
                    })),
                    _ => None,
                },
            });
        match waiting.await {
            Ok(outcome) => outcome,
            Err(source) => Err(PortError::NoOfport {
                waited: waited.elapsed(),
                source,
            }),
        }
    }

    /// Waits until ovs-vswitchd has the bridge's local port in use.
    ///
    /// # Errors
    /// [`PortError::NoOfport`] when the time is up.
    pub async fn wait_local_port(&self, patience: Duration) -> Result<(), PortError> {
        let started = Instant::now();
        let awaited = format!("the local port of bridge {}", self.bridge);
        let in_use = |db: &Db| {
            let local = db.interface_by_name(&self.bridge)?;
            local.ofport().filter(|ofport| *ofport > 0).map(drop)
        };
        let waiting = self.client.wait(&awaited, started + patience, in_use);
        waiting.await.map_err(|source| PortError::NoOfport {
            waited: started.elapsed(),
            source,
        })
    }

    /// Whether ovs-vswitchd's main loop answers; its socket alone says nothing, for a stopped process keeps it.
    ///
    /// # Errors
    /// [`PortError::SwitchDead`].
    pub async fn switch_alive(&self, patience: Duration) -> Result<(), PortError> {
        let dead = |source| PortError::SwitchDead {
            rundir: self.rundir.clone(),
            source,
        };
        let daemon = Unixctl::for_daemon(&self.rundir, "ovs-vswitchd").map_err(dead)?;
        daemon
            .call("version", &[], Instant::now() + patience)
            .await
            .map_err(dead)?;
        Ok(())
    }

    /// Removes the IPv4 connections to and from these addresses that the userspace datapath tracks; the kernel's are the netns
    /// room's. On a bridge with the kernel's datapath there is nothing to do.
    ///
    /// IPv6 connections are left to their timeouts: ovs-vswitchd 3.1.0 dies of being told to flush an ICMPv6 one
    /// (docs/decisions/0008).
    ///
    /// # Errors
    /// ovs-vswitchd did not answer, or refused.
    pub async fn flush_conntrack(&self, addresses: &[IpAddr]) -> Result<(), UnixctlError> {
        let is_userspace = self.node_facts(0).is_ok_and(|node| node.netdev_datapath);
        let tuples: Vec<String> = addresses
            .iter()
            .filter(|address| address.is_ipv4())
            .map(|address| format!("ct_nw_src={address}"))
            .collect();
        if !is_userspace || tuples.is_empty() {
            return Ok(());
        }
        let daemon = Unixctl::for_daemon(&self.rundir, "ovs-vswitchd")?;
        let deadline = Instant::now() + FLUSH_DEADLINE;
        // A connection is the pod's when the pod sends in either direction, whatever is translated in between: the first
        // argument selects by the original direction, the second by the reply's (ovs-vswitchd(8), dpctl/flush-conntrack). All
        // at once, for a question put after a port's removal waits until ovs-vswitchd has taken the port apart, 15 ms or more.
        let either = tuples
            .iter()
            .flat_map(|tuple| [vec![tuple.as_str()], vec!["", tuple.as_str()]]);
        let daemon = &daemon;
        let flushes = either.map(|arguments| async move {
            daemon
                .call("dpctl/flush-conntrack", &arguments, deadline)
                .await
        });
        try_join_all(flushes).await.map(drop)
    }

    /// Makes the bridge when it is missing. One that is there keeps its datapath and fail mode; what its local port lacks to
    /// be a gateway, a fixed address and MTU, is added.
    ///
    /// # Errors
    /// The database refused, or there was no answer.
    pub async fn ensure_bridge(&self, wanted: &BridgeWanted) -> Result<(), PortError> {
        let transaction = self
            .client
            .read(|db| match db.bridge_by_name(&self.bridge) {
                None => {
                    let root = db.open_vswitch()?.uuid();
                    tracing::info!(
                        bridge = self.bridge,
                        datapath = wanted.datapath_type,
                        "making the bridge"
                    );
                    Some(vswitch::add_bridge(root, &self.bridge_spec(wanted)).transaction)
                }
                Some(bridge) => {
                    let mut transaction = Transaction::new();
                    if bridge.other_config().str("hwaddr").is_none() {
                        let hwaddr =
                            StringMap::from([("hwaddr".to_owned(), wanted.hwaddr.clone())]);
                        vswitch::set_keys(
                            &mut transaction,
                            "Bridge",
                            bridge.uuid(),
                            "other_config",
                            &hwaddr,
                        );
                    }
                    if let Some(local) = db
                        .interface_by_name(&self.bridge)
                        .filter(|it| it.mtu_request().is_none())
                    {
                        let mtu = podwire_ovs::transact::Columns::new()
                            .set("mtu_request", i64::from(wanted.mtu));
                        transaction.update(
                            "Interface",
                            podwire_ovs::transact::Condition::uuid(local.uuid()),
                            mtu,
                        );
                    }
                    (!transaction.is_empty()).then_some(transaction)
                }
            });
        let Some(transaction) = transaction else {
            return Ok(());
        };
        let deadline = Instant::now() + TRANSACTION_DEADLINE;
        match self.client.transact(&transaction, deadline).await {
            Ok(_) => Ok(()),
            Err(source) => Err(PortError::Transact {
                step: "make bridge",
                port: self.bridge.clone(),
                source,
            }),
        }
    }

    fn bridge_spec(&self, wanted: &BridgeWanted) -> BridgeSpec {
        BridgeSpec {
            name: self.bridge.clone(),
            datapath_type: Some(wanted.datapath_type.to_owned()),
            // Without a controller the bridge is to switch by itself.
            fail_mode: Some("standalone".to_owned()),
            other_config: StringMap::from([("hwaddr".to_owned(), wanted.hwaddr.clone())]),
            external_ids: StringMap::from([("podwire.io/made".to_owned(), "true".to_owned())]),
            mtu_request: Some(wanted.mtu),
        }
    }
}
