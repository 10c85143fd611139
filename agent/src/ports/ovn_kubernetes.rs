//! Ports that ovn-kubernetes' node process created, on a node that it ran before or still runs.
//!
//! Its rows have `sandbox`, `iface-id` and `attached_mac`, but no network name. Newer versions
//! record the pod's interface (`pod-if-name`); a row of an older version without `k8s.ovn.org/nad`
//! belongs to the cluster's default network, and so to the pod's eth0. This is enough to find the
//! port for a DEL or CHECK, as ovn-kubernetes' own DEL does.

use std::collections::BTreeMap;

use super::{PortRecord, Ports};
use crate::plan::{AttachmentKey, ids};

/// The interface that runtimes request for the cluster's default network.
const DEFAULT_IFNAME: &str = "eth0";

impl Ports {
    /// The ports on podwire's bridge that ovn-kubernetes created.
    pub fn ovn_kubernetes(&self) -> Vec<PortRecord> {
        self.client.read(|db| {
            db.interfaces()
                .map(|interface| PortRecord::read(db, interface))
                .filter(|record| {
                    record.bridge.as_ref() == Some(&self.bridge) && is_ovn_kubernetes(record)
                })
                .collect()
        })
    }

    /// The port of a network attachment definition, created by a version of ovn-kubernetes that did
    /// not record the pod's interface.
    pub fn of_definition(&self, container_id: &str, definition: &str) -> Vec<PortRecord> {
        let ports = self.of_sandbox(container_id).into_iter();
        ports
            .filter(|record| {
                let ids = &record.external_ids;
                is_ovn_kubernetes(record)
                    && !ids.contains_key(ids::POD_IF_NAME)
                    && ids.get(ids::OVN_NAD).map(String::as_str) == Some(definition)
            })
            .collect()
    }
}

impl PortRecord {
    /// The pod's interface that a port of ovn-kubernetes is for, if its row shows it.
    pub fn ovn_kubernetes_ifname(&self) -> Option<&str> {
        is_ovn_kubernetes(self)
            .then(|| ifname(&self.external_ids))
            .flatten()
    }
}

/// Whether ovn-kubernetes created this port for this attachment.
pub(super) fn is_of(record: &PortRecord, key: &AttachmentKey) -> bool {
    record.external_ids.get(ids::SANDBOX) == Some(&key.container_id)
        && record.ovn_kubernetes_ifname() == Some(&key.ifname)
}

fn is_ovn_kubernetes(record: &PortRecord) -> bool {
    let ids = &record.external_ids;
    record.key.is_none()
        && !ids.contains_key(ids::NETWORK)
        && [ids::SANDBOX, ids::IFACE_ID, ids::ATTACHED_MAC]
            .iter()
            .all(|key| ids.contains_key(*key))
}

fn ifname(external_ids: &BTreeMap<String, String>) -> Option<&str> {
    match external_ids.get(ids::POD_IF_NAME) {
        Some(named) => Some(named),
        None if external_ids.contains_key(ids::OVN_NAD) => None,
        None => Some(DEFAULT_IFNAME),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ifname_of(more: &[(&str, &str)]) -> Option<String> {
        let map = more
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ifname(&map.collect()).map(str::to_owned)
    }

    #[test]
    fn the_pods_interface_is_the_one_named_or_the_default_networks() {
        assert_eq!(ifname_of(&[]).as_deref(), Some("eth0"));
        assert_eq!(
            ifname_of(&[("pod-if-name", "net1")]).as_deref(),
            Some("net1")
        );
        let nad = ("k8s.ovn.org/nad", "ns/blue");
        assert_eq!(ifname_of(&[nad]), None);
        assert_eq!(
            ifname_of(&[nad, ("pod-if-name", "net2")]).as_deref(),
            Some("net2")
        );
    }
}
