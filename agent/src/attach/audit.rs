//! A CHECK of what is there without anybody's prevResult: rows, links and namespaces held against what their ADD recorded.
//!
//! It is for people, who ask about every attachment at once, and so it goes on after the first difference. What only
//! prevResult knows (routes, an MTU that a later plugin set) it can't hold against anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::call::sandbox_line;
use super::check::{difference, differences_of_row};
use super::del::is_ours;
use super::{Agent, Error, READY_DEADLINE};
use crate::journal::{Entry, State};
use crate::netns::{Netns, NetnsError};
use crate::plan::{AttachmentKey, ids};
use crate::ports::{PortRecord, PortState, addresses};
use podwire_cni::spec::{CniResult, Interface, IpConfig};

/// What was found of one attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Which attachment.
    pub key: AttachmentKey,
    /// `namespace/name` of its pod.
    pub pod: Option<String>,
    /// CNI_NETNS, as its ADD had it.
    pub netns: Option<String>,
    /// A verb works on it just now, so nothing was looked at.
    pub busy: bool,
    /// What is not as its ADD left it; nothing when all is well.
    pub differences: Vec<Difference>,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// In words.
    pub what: String,
    /// The command that mends it, where one does.
    pub mend: Option<String>,
}

impl Agent {
    /// Looks at every attachment whose pod is wanted.
    ///
    /// # Errors
    /// Open vSwitch's database is not there to ask, or the kernel does not answer.
    pub(crate) async fn audit(
        &self,
        wanted: impl Fn(Option<&str>) -> bool,
    ) -> Result<Vec<Audit>, Error> {
        self.ports.synced(READY_DEADLINE).await?;
        let mut audits = Vec::new();
        for key in self.all_attachments() {
            let records = self.ports.find(&key);
            let entry = self.journal.find(&key)?;
            let noted = entry.as_ref().map(|(_, entry)| entry);
            let pod = pod_of(&records, noted);
            if !wanted(pod.as_deref()) {
                continue;
            }
            let line = sandbox_line(&key);
            let busy = self.sandbox_lines.is_busy(&line);
            let netns = netns_of(&records, noted);
            let differences = match busy {
                true => Vec::new(),
                false => {
                    self.differences(&key, &records, entry, netns.as_deref())
                        .await?
                }
            };
            audits.push(Audit {
                key,
                pod,
                netns,
                busy,
                differences,
            });
        }
        audits.sort_by(|a, b| (&a.pod, &a.key).cmp(&(&b.pod, &b.key)));
        Ok(audits)
    }

    /// Every attachment that a row or the intent log knows of.
    pub(super) fn all_attachments(&self) -> BTreeSet<AttachmentKey> {
        let rows = self.ports.all().into_iter().filter_map(|record| record.key);
        let (entries, errors) = self.journal.entries();
        for error in errors {
            tracing::warn!(%error, "intent log");
        }
        rows.chain(entries.into_iter().map(|(_, entry)| entry.key))
            .collect()
    }

    async fn differences(
        &self,
        key: &AttachmentKey,
        records: &[PortRecord],
        entry: Option<(State, Entry)>,
        netns: Option<&str>,
    ) -> Result<Vec<Difference>, Error> {
        let mut found = Vec::new();
        let entry = match entry {
            Some((State::Live, entry)) => Some(entry),
            Some((State::Adding, _)) => {
                found.push(without_mend(
                    "its ADD was interrupted and is not undone yet",
                ));
                return Ok(found);
            }
            Some((State::Deleting, _)) => {
                found.push(mended("its DEL is not finished", "podwire gc"));
                return Ok(found);
            }
            None => {
                found.push(without_mend(
                    "there is no record of it under the run directory: its port would not come back if Open vSwitch's \
                     database were lost",
                ));
                None
            }
        };
        let netns = match self.open_namespace(netns, entry.as_ref()) {
            Ok(netns) => Some(netns),
            Err(what) => {
                let can_go = self.leftover(key).await?.is_some();
                let mend = can_go.then(|| "podwire gc".to_owned());
                found.push(Difference { what, mend });
                None
            }
        };
        if records.is_empty() {
            found.push(without_mend(&format!("Open vSwitch has no port for {key}")));
        }
        let netdev = self
            .ports
            .node_facts(self.default_mtu())
            .is_ok_and(|facts| facts.netdev_datapath);
        for record in records {
            let row = differences_of_row(record, &self.config.bridge, entry.as_ref());
            found.extend(row.map(|what| without_mend(&what)));
            if record.state(self.config.ovn.wait) == PortState::AwaitsOvn {
                found.push(without_mend(&format!(
                    "OVN has not installed the flows of port {}",
                    record.name
                )));
            }
            found.extend(self.link_difference(record, entry.as_ref()).await?);
            if let Some(netns) = &netns {
                found.extend(self.pod_differences(key, record, netns, netdev).await?);
            }
        }
        Ok(found)
    }

    /// The namespace that the attachment was made in; or why it is not to be had.
    fn open_namespace(
        &self,
        path: Option<&str>,
        entry: Option<&Entry>,
    ) -> Result<Arc<Netns>, String> {
        let path = path.ok_or("nobody recorded its network namespace")?;
        let netns = Netns::open(path).map_err(|error| match error {
            NetnsError::Absent { .. } => format!("its network namespace {path} is gone"),
            other => other.to_string(),
        })?;
        if !is_made_in(&netns, entry) {
            return Err(format!("{path} is another pod's network namespace by now"));
        }
        Ok(Arc::new(netns))
    }

    async fn link_difference(
        &self,
        record: &PortRecord,
        entry: Option<&Entry>,
    ) -> Result<Option<Difference>, Error> {
        let name = &record.name;
        Ok(match self.netlink.host_link(name).await? {
            None => Some(without_mend(&format!("the host has no link {name}"))),
            Some(link) if !is_ours(&link, entry) => Some(without_mend(&format!(
                "the host's link {name} is not the one that was made for it"
            ))),
            Some(link) if !link.up => Some(mended(
                &format!("the host's link {name} is down"),
                &format!("ip link set {name} up"),
            )),
            Some(_) => None,
        })
    }

    async fn pod_differences(
        &self,
        key: &AttachmentKey,
        record: &PortRecord,
        netns: &Arc<Netns>,
        netdev: bool,
    ) -> Result<Vec<Difference>, Error> {
        let name = record.pod_ifname.as_deref().unwrap_or(&key.ifname);
        let seen = self.netlink.observe(Arc::clone(netns), name).await?;
        let inside = format!("nsenter --net={}", netns.path().display());
        let mut found = Vec::new();
        let recorded = as_result(record, name);
        if let Some(interface) = recorded.interfaces.first()
            && let Some(what) = difference(&recorded, 0, interface, seen.as_ref())
        {
            let is_down = seen.as_ref().is_some_and(|seen| !seen.link.up);
            let lost = seen.as_ref().and_then(|seen| {
                let addresses = || addresses(&record.external_ids);
                addresses().find(|address| !seen.addresses.contains(address))
            });
            let mend = match lost {
                _ if is_down => Some(format!("{inside} ip link set {name} up")),
                Some(address) => Some(format!("{inside} ip addr add {address} dev {name}")),
                None => None,
            };
            found.push(Difference { what, mend });
        }
        if netdev && seen.is_some_and(|seen| seen.tx_checksum == Some(true)) {
            found.push(mended(
                &format!(
                    "interface {name} leaves checksums to hardware (TX checksum offload), and the bridge's datapath is netdev: \
                     TCP gets nothing through"
                ),
                &format!("{inside} ethtool -K {name} tx off"),
            ));
        }
        Ok(found)
    }
}

/// What the row records of a pod's interface, as a result would have it.
fn as_result(record: &PortRecord, name: &str) -> CniResult {
    let interface = Interface {
        name: name.to_owned(),
        mac: record.external_ids.get(ids::ATTACHED_MAC).cloned(),
        sandbox: Some(String::new()),
        ..Interface::default()
    };
    let ip = |address| IpConfig {
        interface: Some(0),
        address,
        gateway: None,
    };
    CniResult {
        interfaces: vec![interface],
        ips: addresses(&record.external_ids).map(ip).collect(),
        ..CniResult::default()
    }
}

/// CNI_NETNS of an attachment, as the intent log or the row has it.
pub(super) fn netns_of(records: &[PortRecord], entry: Option<&Entry>) -> Option<String> {
    let noted = entry.map(|entry| entry.netns.clone());
    let in_row = || {
        records
            .iter()
            .find_map(|record| record.external_ids.get(ids::NETNS).cloned())
    };
    noted.filter(|path| !path.is_empty()).or_else(in_row)
}

/// `namespace/name` of an attachment's pod, as a row or the intent log has it.
pub(super) fn pod_of(records: &[PortRecord], entry: Option<&Entry>) -> Option<String> {
    let in_row = records.iter().find_map(|record| record.pod.clone());
    in_row.or_else(|| entry.and_then(|entry| entry.pod.clone()))
}

/// Whether an attachment was made in this namespace, as far as the intent log knows: a path may be another one's by now.
pub(super) fn is_made_in(netns: &Netns, entry: Option<&Entry>) -> bool {
    let noted = entry.and_then(|entry| entry.netns_id);
    noted.is_none_or(|id| id == (netns.id().dev, netns.id().ino))
}

fn without_mend(what: &str) -> Difference {
    Difference {
        what: what.to_owned(),
        mend: None,
    }
}

fn mended(what: &str, mend: &str) -> Difference {
    Difference {
        what: what.to_owned(),
        mend: Some(mend.to_owned()),
    }
}
