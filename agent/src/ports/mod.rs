//! A plan's ports as rows of Open vSwitch: created, found, waited for and removed by OVSDB
//! transactions and updates.
//!
//! Nothing is remembered here. The replica, which updates keep current, shows which ports exist;
//! their external_ids show which of them are podwire's and what they are for.

mod bandwidth;
mod bridge;
mod bridge_ports;
mod bridges;
mod conntrack;
mod error;
mod ovn;
mod ovn_kubernetes;
mod ovs_cni;
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
use podwire_ovs::vswitch::{self, Interface, PortRows, PortSpec};
use tokio::sync::watch;
use tokio::time::Instant;

pub use bridge::BridgeWanted;
pub use bridge_ports::{BridgePorts, SecuredPort, Touched};
pub use bridges::{ATTACH, BridgeClaims, MappingFault, Unmapped, mapping_faults};
pub use error::{BridgeMaker, PortError};
pub use ovn::{ControllerError, Diagnosis};
pub use ovs_cni::OvsCniPort;
pub use record::{PortRecord, addresses, own_addresses};
pub use restore::Epoch;
pub use state::PortState;
pub use switch::{BridgeView, OvnView, SwitchView, Tunnel};
pub use tunnel::Encapsulation;
pub use wait::version_of;

use bridges::set_switch_port;

use crate::config::{Config, Mode, OvnConfig};
use crate::plan::{AttachmentKey, NodeFacts, PortPlan, ids};

/// Time limit of one transaction. ovsdb-server answers in less than a millisecond, under load in a
/// few.
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

/// A port to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewPort<'a> {
    /// Its plan.
    pub plan: &'a PortPlan,
    /// The name of its host end.
    pub host_name: &'a str,
    /// The OpenFlow port number to request, for which its flows are installed.
    pub ofport: Option<u16>,
}

/// A port that was created.
#[derive(Debug, Clone)]
pub struct AddedPort {
    /// Its Interface row.
    pub interface: Uuid,
    /// Its name, which is that of its host end.
    pub name: String,
    /// Its name in OVN.
    pub iface_id: String,
    /// The pod's uid, to which the logical port may be bound.
    pub iface_id_ver: Option<String>,
}

impl Ports {
    /// Starts connecting, on the current tokio runtime.
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

    /// Waits at most `patience` until the replica is current.
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

    /// Waits until ports can be created: the replica is current, and the bridge exists.
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
        found.map_err(|_| self.no_bridge(&self.bridge))
    }

    /// Waits without a time limit until the replica is current.
    pub async fn wait_synced(&self) {
        let mut versions = self.client.subscribe();
        // The client holds the sender, and `self` holds the client.
        let _ = versions
            .wait_for(|version| version.state == State::Synced)
            .await;
    }

    /// The replica's versions.
    pub fn subscribe(&self) -> watch::Receiver<Version> {
        self.client.subscribe()
    }

    /// The node's facts that a plan for a bridge needs (None for the node's own bridge); what a
    /// network says, it does not.
    ///
    /// # Errors
    /// [`PortError::NoBridge`].
    pub fn node_facts(
        &self,
        bridge: Option<&str>,
        default_mtu: u32,
    ) -> Result<NodeFacts, PortError> {
        let bridge = bridge.unwrap_or(&self.bridge);
        match self.is_netdev(bridge) {
            Some(netdev_datapath) => Ok(NodeFacts {
                bridge: bridge.to_owned(),
                netdev_datapath,
                default_mtu,
                quiet_pods: false,
                has_routers: false,
            }),
            None => Err(self.no_bridge(bridge)),
        }
    }

    fn no_bridge(&self, bridge: &str) -> PortError {
        PortError::NoBridge {
            bridge: bridge.to_owned(),
            maker: match self.ovn.mode {
                _ if bridge != self.bridge => BridgeMaker::Operator,
                Mode::Ovn => BridgeMaker::OvnController,
                Mode::Plain => BridgeMaker::Agent,
            },
        }
    }

    /// The ports of one attachment, including those that ovn-kubernetes created.
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

    /// The ports of one sandbox, in any network.
    pub fn of_sandbox(&self, container_id: &str) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces_with_sandbox(container_id)
                .map(|interface| PortRecord::read(db, interface))
                .collect()
        })
    }

    /// Whether Open vSwitch has an interface with this name, whoever created it.
    pub fn is_name_taken(&self, name: &str) -> bool {
        self.client.read(|db| db.interface_by_name(name).is_some())
    }

    /// All of podwire's ports.
    pub fn all(&self) -> Vec<PortRecord> {
        self.client.read(PortRecord::ours)
    }

    /// Creates ports, by `deadline`, and returns them in the order of the request. The same
    /// transaction removes older rows with the port's iface-id: those of older sandboxes, and
    /// leftovers. They are added to `replaced`, after an error too.
    ///
    /// # Errors
    /// The bridge is gone, the database refused, or did not answer; in the last case the rows may
    /// exist.
    pub async fn add(
        &self,
        new: &[NewPort<'_>],
        deadline: Instant,
        replaced: &mut Vec<PortRecord>,
    ) -> Result<Vec<AddedPort>, PortError> {
        self.refuse_foreign_ids(new)?;
        // Handed over together, they go in one request. Each is waited for, because an unanswered
        // one may still commit.
        let outcomes = join_all(new.iter().map(|port| self.add_one(port, deadline))).await;
        let mut ports = Vec::with_capacity(new.len());
        for (port, stale) in outcomes {
            ports.push(port);
            let is_new =
                |it: &PortRecord| !replaced.iter().any(|other| other.interface == it.interface);
            let stale: Vec<PortRecord> = stale.into_iter().filter(is_new).collect();
            replaced.extend(stale);
        }
        let ports: Vec<Option<AddedPort>> = ports.into_iter().collect::<Result<_, _>>()?;
        Ok(ports.into_iter().flatten().collect())
    }

    /// Creates one port on the present bridge. If the bridge was re-created since the replica saw
    /// it, the database refuses the whole transaction; it is then sent again, based on the
    /// replica's next state. Returns what the last transaction removes as well.
    async fn add_one(
        &self,
        port: &NewPort<'_>,
        deadline: Instant,
    ) -> (Result<Option<AddedPort>, PortError>, Vec<PortRecord>) {
        let switch_port = &port.plan.switch_port;
        let bridge = switch_port.bridge.as_deref().unwrap_or(&self.bridge);
        let mut versions = self.client.subscribe();
        loop {
            versions.mark_unchanged();
            let prepared = self.client.read(|db| {
                let bridge = db.bridge_by_name(bridge)?.uuid();
                let stale = replaced_by(db, port);
                let mut spec = PortSpec {
                    name: port.host_name.to_owned(),
                    external_ids: port.plan.external_ids.clone(),
                    ofport_request: port.ofport,
                    ..PortSpec::default()
                };
                set_switch_port(&mut spec, switch_port);
                port.plan.bandwidth.apply(&mut spec);
                Some((vswitch::add_port(bridge, &spec, &rows_of(&stale)), stale))
            });
            let Some((new, stale)) = prepared else {
                return (Err(self.no_bridge(bridge)), Vec::new());
            };
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
                    return (Ok(added), stale);
                }
                Err(source) => source,
            };
            // The update that the replica lacked is on its way.
            let changed = tokio::time::timeout_at(deadline, versions.changed());
            if !source.is_dangling_reference() || !matches!(changed.await, Ok(Ok(()))) {
                let error = PortError::Transact {
                    step: "add port",
                    port: port.host_name.to_owned(),
                    source,
                };
                return (Err(error), stale);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if let Err(error) = self.ready_on(bridge, left).await {
                return (Err(error), Vec::new());
            }
        }
    }

    /// Refuses an iface-id that another pod's port has. Outside of Kubernetes a pod's name may
    /// contain the `_` that joins the parts, so `web` on eth1 and `web_eth1` on eth0 have the same
    /// iface-id.
    fn refuse_foreign_ids(&self, new: &[NewPort<'_>]) -> Result<(), PortError> {
        self.client.read(|db| {
            for port in new {
                let written = &port.plan.external_ids;
                let (pod, ifname) = (written.get(ids::POD), written.get(ids::POD_IF_NAME));
                let is_foreign = |record: &PortRecord| {
                    let (theirs, their_ifname) = (&record.pod, &record.pod_ifname);
                    let is_other = theirs.as_ref() != pod || their_ifname.as_ref() != ifname;
                    let is_known = record.key.is_some() && pod.is_some() && theirs.is_some();
                    // A logical port that was asked for by name may be anybody's: the node's
                    // management port, or another system's.
                    let is_anybodys = port.plan.has_chosen_id
                        && record.external_ids.get(ids::SANDBOX) != written.get(ids::SANDBOX);
                    (is_other && is_known) || ((is_other || pod.is_none()) && is_anybodys)
                };
                let mut bearers = bearers(db, port);
                let foreign =
                    bearers.find_map(|it| Some(PortRecord::read(db, it)).filter(is_foreign));
                if let Some(foreign) = foreign {
                    let iface_id = port.plan.iface_id.clone();
                    let holder = foreign.pod.unwrap_or(foreign.name);
                    return Err(match port.plan.has_chosen_id {
                        true => PortError::OvnPortTaken { iface_id, holder },
                        false => PortError::IfaceIdForeign { iface_id, holder },
                    });
                }
            }
            Ok(())
        })
    }

    /// Removes ports in one transaction; does nothing for none.
    ///
    /// # Errors
    /// The database refused, or did not answer.
    pub async fn remove(&self, records: &[PortRecord]) -> Result<(), PortError> {
        let transaction = vswitch::del_ports(&rows_of(records));
        self.commit("remove port", first_name(records), &transaction)
            .await
    }

    /// Removes ports of a sandbox, and the QoS rows of its ports that another process removed.
    ///
    /// # Errors
    /// The database refused, or did not answer.
    pub async fn remove_of(&self, sandbox: &str, records: &[PortRecord]) -> Result<(), PortError> {
        let mut transaction = vswitch::del_ports(&rows_of(records));
        let unused = self.client.read(|db| bandwidth::unused_qos(db, sandbox));
        vswitch::del_qos(&mut transaction, &unused);
        self.commit("remove port", first_name(records), &transaction)
            .await
    }

    /// Number of QoS rows left by ports that another process removed.
    pub fn unused_qos(&self) -> usize {
        self.client.read(|db| bandwidth::all_unused_qos(db).len())
    }

    /// Removes the QoS rows left by ports that another process removed, and returns their number.
    ///
    /// # Errors
    /// The database refused, or did not answer.
    pub async fn remove_unused_qos(&self) -> Result<usize, PortError> {
        let unused = self.client.read(bandwidth::all_unused_qos);
        let mut transaction = Transaction::new();
        vswitch::del_qos(&mut transaction, &unused);
        self.commit("remove unused QoS rows", String::new(), &transaction)
            .await?;
        Ok(unused.len())
    }

    /// Commits a transaction about this port; does nothing if it is empty.
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

/// The rows that a new port replaces: those with its iface-id on its bridge.
fn replaced_by(db: &Db, port: &NewPort<'_>) -> Vec<PortRecord> {
    let bearers = bearers(db, port);
    bearers.map(|it| PortRecord::read(db, it)).collect()
}

/// The interfaces with a port's iface-id, where it goes: on another bridge the same name is another
/// port's, and nobody may keep a pod from its own by choosing it there.
fn bearers<'a>(db: &'a Db, port: &NewPort<'_>) -> impl Iterator<Item = Interface<'a>> {
    let bridge = port.plan.switch_port.bridge.clone();
    let all = db.interfaces_with(&port.plan.iface_id);
    all.filter(move |it| it.external_id(ids::BRIDGE) == bridge.as_deref())
}
