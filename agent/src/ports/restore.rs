//! Re-creating ports: when an ADD that replaced them fails, and after the database was lost.

use std::collections::{BTreeMap, HashMap};

use podwire_ovs::client::{Follower, State, Version};
use podwire_ovs::replica::Db;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{self, Interface, PortRows, PortSpec};
use tokio::sync::watch;

use super::bandwidth::unused_qos;
use super::bridges::set_switch_port;
use super::{PortError, PortRecord, Ports};
use crate::plan::{AttachmentKey, Bandwidth, SwitchPort, ids};

/// One lifetime of a database and of its bridges. In a new epoch, the ports of the old one may be
/// gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    resyncs: u64,
    root: Option<Uuid>,
    bridges: Vec<Uuid>,
}

impl Ports {
    /// The present epoch.
    pub fn epoch(&self, versions: &watch::Receiver<Version>) -> Epoch {
        let resyncs = versions.borrow().resyncs;
        self.client.read(|db| {
            let root = db.open_vswitch();
            Epoch {
                resyncs,
                root: root.map(|root| root.uuid()),
                bridges: root.into_iter().flat_map(|root| root.bridges()).collect(),
            }
        })
    }

    /// Waits without a time limit for the next epoch: a new snapshot, or a bridge was created or
    /// removed.
    pub async fn wait_other_epoch(&self, versions: &mut watch::Receiver<Version>, before: &Epoch) {
        loop {
            let state = versions.borrow_and_update().state.clone();
            if state == State::Synced && self.epoch(versions) != *before {
                return;
            }
            if versions.changed().await.is_err() {
                return;
            }
        }
    }

    /// Follows changes of rows from now on.
    pub fn follow(&self) -> Follower {
        self.client.follow()
    }

    /// All of podwire's Interface rows with their attachments.
    pub fn attachments_by_row(&self) -> HashMap<Uuid, AttachmentKey> {
        self.client.read(|db| {
            let ours = |it: Interface<'_>| {
                Some((it.uuid(), AttachmentKey::of_row(|id| it.external_id(id))?))
            };
            db.interfaces().filter_map(ours).collect()
        })
    }

    /// The attachment of an Interface row; None if there is no such row or it isn't podwire's.
    pub fn attachment_of(&self, interface: Uuid) -> Option<AttachmentKey> {
        self.client.read(|db| {
            let interface = db.interface(interface)?;
            AttachmentKey::of_row(|id| interface.external_id(id))
        })
    }

    /// The attachment of the port with this name; None if podwire has no such port.
    pub fn attachment_named(&self, port: &str) -> Option<AttachmentKey> {
        self.client.read(|db| {
            let interface = db.interface_by_name(port)?;
            AttachmentKey::of_row(|id| interface.external_id(id))
        })
    }

    /// The ports whose interface has this iface-id, whoever wrote them.
    pub fn with_iface_id(&self, iface_id: &str) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces_with(iface_id)
                .map(|interface| PortRecord::read(db, interface))
                .collect()
        })
    }

    /// Re-creates a port as it was, on its own bridge.
    ///
    /// # Errors
    /// The bridge is gone, the database refused, or did not answer.
    pub async fn put_back(&self, record: &PortRecord) -> Result<(), PortError> {
        let Some(bridge) = &record.bridge else {
            return Ok(());
        };
        self.make_again(bridge, &record.name, &record.external_ids, record.bandwidth)
            .await
    }

    /// Re-creates a port from the intent log, on the bridge that its external_ids name, in place of
    /// any row with its name.
    ///
    /// # Errors
    /// The bridge is missing, the database refused, or did not answer.
    pub async fn restore(
        &self,
        name: &str,
        external_ids: &BTreeMap<String, String>,
        bandwidth: Bandwidth,
    ) -> Result<(), PortError> {
        let bridge = external_ids.get(ids::BRIDGE).unwrap_or(&self.bridge);
        self.make_again(bridge, name, external_ids, bandwidth).await
    }

    /// What ovn-controller had written about its flows is left out, because nothing has installed
    /// them yet. If the port's QoS row still exists, it is removed.
    async fn make_again(
        &self,
        bridge: &str,
        name: &str,
        external_ids: &BTreeMap<String, String>,
        bandwidth: Bandwidth,
    ) -> Result<(), PortError> {
        let mut spec = PortSpec {
            name: name.to_owned(),
            external_ids: external_ids.clone(),
            ..PortSpec::default()
        };
        spec.external_ids
            .retain(|key, _| !key.starts_with(ids::OVN_INSTALLED));
        set_switch_port(&mut spec, &SwitchPort::of(external_ids));
        bandwidth.apply(&mut spec);
        let prepare = |db: &Db| {
            let bridge = db.bridge_by_name(bridge)?.uuid();
            let same_name = db.interface_by_name(name);
            let replaces: Vec<PortRows> = same_name
                .and_then(|interface| PortRecord::read(db, interface).rows)
                .into_iter()
                .collect();
            let mut transaction = vswitch::add_port(bridge, &spec, &replaces).transaction;
            let sandbox = external_ids.get(ids::SANDBOX);
            let unused = sandbox.map(|sandbox| unused_qos(db, sandbox));
            vswitch::del_qos(&mut transaction, &unused.unwrap_or_default());
            Some(transaction)
        };
        let transaction = self.client.read(prepare);
        let transaction = transaction.ok_or_else(|| self.no_bridge(bridge))?;
        self.commit("put back port", name.to_owned(), &transaction)
            .await
    }
}
