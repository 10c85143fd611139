//! A plan's ports as rows of Open vSwitch: made, found, awaited and removed by OVSDB transactions
//! and updates.
//!
//! Nothing here is remembered. What ports there are is asked of the replica, which an update keeps
//! current; which of them are ours, and what they are for, is written in their external_ids.

mod bandwidth;
mod bridge;
mod bridge_ports;
mod conntrack;
mod error;
mod ovn;
mod ovn_kubernetes;
mod record;
mod restore;
mod southbound;
mod state;
mod switch;
mod tunnel;
mod wait;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use podwire_ovs::client::{Client, ClientConfig, Remote, State, Version};
use podwire_ovs::replica::Db;
use podwire_ovs::transact::Transaction;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{self, PortRows, PortSpec};
use tokio::sync::watch;
use tokio::time::Instant;

pub use bridge::BridgeWanted;
pub use bridge_ports::{BridgePorts, SecuredPort, Touched};
pub use error::PortError;
pub use ovn::{ControllerError, Diagnosis};
pub use record::{PortRecord, addresses};
pub use restore::Epoch;
pub use state::PortState;
pub use switch::{BridgeView, OvnView, SwitchView, Tunnel};
pub use tunnel::Encapsulation;
pub use wait::version_of;

use crate::config::{Config, Mode, OvnConfig};
use crate::plan::{AttachmentKey, NodeFacts, PortPlan, ids};

/// How long one transaction may take; ovsdb-server answers in less than a millisecond, a loaded one
/// in some.
const TRANSACTION_DEADLINE: Duration = Duration::from_secs(15);

/// The switch's database and its daemon.
#[derive(Debug, Clone)]
pub struct Ports {
    client: Client,
    bridge: String,
    ovsdb: PathBuf,
    rundir: PathBuf,
    ovn: OvnConfig,
    port_security: bool,
}

/// A port to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewPort<'a> {
    /// What it is.
    pub plan: &'a PortPlan,
    /// The name that its host end got.
    pub host_name: &'a str,
    /// The OpenFlow port for which its flows are made.
    pub ofport: Option<u16>,
}

/// A port that was made.
#[derive(Debug, Clone)]
pub struct AddedPort {
    /// Its Interface row.
    pub interface: Uuid,
    /// Its name, which is its host end's.
    pub name: String,
    /// OVN's name for it.
    pub iface_id: String,
    /// The pod's uid, which the logical port may be bound to.
    pub iface_id_ver: Option<String>,
}

/// Ports that were made.
#[derive(Debug)]
pub struct Added {
    /// In the order they were asked for.
    pub ports: Vec<AddedPort>,
    /// Ports of older sandboxes, or leftovers, whose iface-id they took over.
    pub replaced: Vec<PortRecord>,
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
            ovn: config.ovn.clone(),
            port_security: config.port_security,
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
        found.map_err(|_| self.no_bridge())
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

    /// What the plan must know of the node; nothing keeps pods quiet.
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
                quiet_pods: false,
            }),
            None => Err(self.no_bridge()),
        }
    }

    fn no_bridge(&self) -> PortError {
        PortError::NoBridge {
            bridge: self.bridge.clone(),
            ovn: self.ovn.mode == Mode::Ovn,
        }
    }

    /// The ports of one attachment, be it that ovn-kubernetes made them.
    pub fn find(&self, key: &AttachmentKey) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces_with_sandbox(&key.container_id)
                .map(|interface| PortRecord::read(db, interface))
                .filter(|record| {
                    record.key.as_ref() == Some(key) || ovn_kubernetes::is_of(record, key)
                })
                .collect()
        })
    }

    /// The ports of one sandbox, of whichever network.
    pub fn of_sandbox(&self, container_id: &str) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces_with_sandbox(container_id)
                .map(|interface| PortRecord::read(db, interface))
                .collect()
        })
    }

    /// Whether an interface of Open vSwitch has this name, whoever made it.
    pub fn is_name_taken(&self, name: &str) -> bool {
        self.client.read(|db| db.interface_by_name(name).is_some())
    }

    /// Every port of ours.
    pub fn all(&self) -> Vec<PortRecord> {
        self.client.read(PortRecord::ours)
    }

    /// Makes ports, by `deadline`; rows that bear a port's iface-id go in the transaction that
    /// makes it.
    ///
    /// # Errors
    /// The bridge is gone, the database refused, or there was no answer; in the last case the rows
    /// may be there.
    pub async fn add(&self, new: &[NewPort<'_>], deadline: Instant) -> Result<Added, PortError> {
        self.refuse_foreign_ids(new)?;
        // Handed over together they go in one request; each is waited for, since an unanswered one
        // may still commit.
        let outcomes = join_all(new.iter().map(|port| self.add_one(port, deadline))).await;
        let mut ports = Vec::with_capacity(new.len());
        let mut replaced: Vec<PortRecord> = Vec::new();
        for outcome in outcomes {
            let (port, stale) = outcome?;
            ports.extend(port);
            let is_new =
                |it: &PortRecord| !replaced.iter().any(|other| other.interface == it.interface);
            let stale: Vec<PortRecord> = stale.into_iter().filter(is_new).collect();
            replaced.extend(stale);
        }
        Ok(Added { ports, replaced })
    }

    /// Makes one port, on the bridge that is there: when it was made anew since the replica showed
    /// it, the database refuses the transaction whole, and it is made again from what the replica
    /// shows next.
    async fn add_one(
        &self,
        port: &NewPort<'_>,
        deadline: Instant,
    ) -> Result<(Option<AddedPort>, Vec<PortRecord>), PortError> {
        let mut versions = self.client.subscribe();
        loop {
            versions.mark_unchanged();
            let prepared = self.client.read(|db| {
                let bridge = db.bridge_by_name(&self.bridge)?.uuid();
                let stale = replaced_by(db, port);
                let mut spec = PortSpec {
                    name: port.host_name.to_owned(),
                    external_ids: port.plan.external_ids.clone(),
                    ofport_request: port.ofport,
                    ..PortSpec::default()
                };
                port.plan.bandwidth.apply(&mut spec);
                Some((vswitch::add_port(bridge, &spec, &rows_of(&stale)), stale))
            });
            let (new, stale) = prepared.ok_or_else(|| self.no_bridge())?;
            let answered = deadline.min(Instant::now() + TRANSACTION_DEADLINE);
            let source = match self.client.transact(&new.transaction, answered).await {
                Ok(outcome) => {
                    let written = &port.plan.external_ids;
                    let added = outcome.uuid(new.interface).map(|interface| AddedPort {
                        interface,
                        name: port.host_name.to_owned(),
                        iface_id: port.plan.iface_id.clone(),
                        iface_id_ver: written.get(ids::IFACE_ID_VER).cloned(),
                    });
                    return Ok((added, stale));
                }
                Err(source) => source,
            };
            // What the replica had not shown yet is on its way.
            let changed = tokio::time::timeout_at(deadline, versions.changed());
            if !source.is_dangling_reference() || !matches!(changed.await, Ok(Ok(()))) {
                return Err(PortError::Transact {
                    step: "add port",
                    port: port.host_name.to_owned(),
                    source,
                });
            }
            self.ready(deadline.saturating_duration_since(Instant::now()))
                .await?;
        }
    }

    /// Refuses an iface-id that another pod's port bears: outside of Kubernetes a pod's name may
    /// hold the `_` that joins the parts, so that `web` on eth1 and `web_eth1` on eth0 make the
    /// same one.
    fn refuse_foreign_ids(&self, new: &[NewPort<'_>]) -> Result<(), PortError> {
        self.client.read(|db| {
            for port in new {
                let written = &port.plan.external_ids;
                let (pod, ifname) = (written.get(ids::POD), written.get(ids::POD_IF_NAME));
                let is_foreign = |record: &PortRecord| {
                    let (theirs, their_ifname) = (&record.pod, &record.pod_ifname);
                    record.key.is_some()
                        && pod.is_some()
                        && theirs.is_some()
                        && (theirs.as_ref() != pod || their_ifname.as_ref() != ifname)
                };
                let mut bearers = db.interfaces_with(&port.plan.iface_id);
                let foreign =
                    bearers.find_map(|it| Some(PortRecord::read(db, it)).filter(is_foreign));
                if let Some(foreign) = foreign {
                    return Err(PortError::IfaceIdForeign {
                        iface_id: port.plan.iface_id.clone(),
                        holder: foreign.pod.unwrap_or_default(),
                    });
                }
            }
            Ok(())
        })
    }

    /// Removes ports in one transaction; none is no work.
    ///
    /// # Errors
    /// The database refused, or there was no answer.
    pub async fn remove(&self, records: &[PortRecord]) -> Result<(), PortError> {
        let transaction = vswitch::del_ports(&rows_of(records));
        self.commit("remove port", first_name(records), &transaction)
            .await
    }

    /// Removes ports of a sandbox, and the QoS rows that ports of it left behind which somebody
    /// else removed.
    ///
    /// # Errors
    /// The database refused, or there was no answer.
    pub async fn remove_of(&self, sandbox: &str, records: &[PortRecord]) -> Result<(), PortError> {
        let mut transaction = vswitch::del_ports(&rows_of(records));
        let unused = self.client.read(|db| bandwidth::unused_qos(db, sandbox));
        vswitch::del_qos(&mut transaction, &unused);
        self.commit("remove port", first_name(records), &transaction)
            .await
    }

    /// How many QoS rows were left behind by ports that somebody else removed.
    pub fn unused_qos(&self) -> usize {
        self.client.read(|db| bandwidth::all_unused_qos(db).len())
    }

    /// Removes the QoS rows that were left behind by ports that somebody else removed, and says how
    /// many.
    ///
    /// # Errors
    /// The database refused, or there was no answer.
    pub async fn remove_unused_qos(&self) -> Result<usize, PortError> {
        let unused = self.client.read(bandwidth::all_unused_qos);
        let mut transaction = Transaction::new();
        vswitch::del_qos(&mut transaction, &unused);
        self.commit("remove unused QoS rows", String::new(), &transaction)
            .await?;
        Ok(unused.len())
    }

    /// Commits a transaction about this port; an empty one is no work.
    async fn commit(
        &self,
        step: &'static str,
        port: String,
        transaction: &Transaction,
    ) -> Result<(), PortError> {
        if transaction.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + TRANSACTION_DEADLINE;
        match self.client.transact(transaction, deadline).await {
            Ok(_) => Ok(()),
            Err(source) => Err(PortError::Transact { step, port, source }),
        }
    }
}

fn rows_of(records: &[PortRecord]) -> Vec<PortRows> {
    let rows = records.iter().map(|record| record.rows.clone());
    rows.flatten().collect()
}

fn first_name(records: &[PortRecord]) -> String {
    let first = records.first();
    first.map(|record| record.name.clone()).unwrap_or_default()
}

/// The rows that a new port takes the place of: those that bear its iface-id.
fn replaced_by(db: &Db, port: &NewPort<'_>) -> Vec<PortRecord> {
    db.interfaces_with(&port.plan.iface_id)
        .map(|it| PortRecord::read(db, it))
        .collect()
}
