//! Which pods are in a set.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_cluster::address::digest;
use podwire_cluster::{Labels, Name, ObjectName, Place, Within};

use super::matching::Family;
use super::{Ids, Subject, candidate};
use crate::cluster::policy::{NamedPort, Namespaces, Peer, Selected};
use crate::cluster::{Pod, of_namespace};
use crate::key::Network;

/// All pods.
pub(super) type Pods = BTreeMap<ObjectName, Pod>;

/// The pods that rules name. Equal ones share their rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerSet {
    /// `None` for all pods.
    peers: Option<BTreeSet<Peer>>,
    /// Only those that give a port this number.
    port: Option<(NamedPort, u16)>,
}

/// A pod that may be in a set.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its namespace.
    pub namespace: &'a Name,
    /// Its name.
    pub name: &'a Name,
    /// The labels of that; `None` if it is not known.
    pub namespace_labels: Option<&'a Labels>,
    /// Its own.
    pub selected: &'a Selected,
}

impl Candidate<'_> {
    /// Whether selectors select it.
    pub(crate) fn is_in(&self, peer: &Peer) -> bool {
        let Peer::Pods { namespaces, pods } = peer else {
            return false;
        };
        let in_namespace = match namespaces {
            Namespaces::Own(name) => name == self.namespace,
            Namespaces::Matching(selector) => {
                self.namespace_labels.is_some_and(|it| selector.matches(it))
            }
        };
        in_namespace && pods.matches(&self.selected.labels)
    }
}

impl PeerSet {
    /// The pods among some peers, if there can be any. Networks need no set.
    pub(super) fn of(peers: &BTreeSet<Peer>) -> Option<Self> {
        let pods = peers.iter().filter(|it| matches!(it, Peer::Pods { .. }));
        let peers: BTreeSet<Peer> = pods.cloned().collect();
        (!peers.is_empty()).then_some(Self {
            peers: Some(peers),
            port: None,
        })
    }

    /// The pods of one peer.
    pub(super) fn selected(pods: Peer) -> Self {
        Self {
            peers: Some([pods].into()),
            port: None,
        }
    }

    /// Those of some peers that give a port this number. Networks have pods here.
    pub(super) fn named(peers: Option<BTreeSet<Peer>>, named: NamedPort, number: u16) -> Self {
        Self {
            peers,
            port: Some((named, number)),
        }
    }

    /// Whether an address of a pod is in it.
    pub fn has(&self, pod: &Candidate<'_>, address: IpAddr) -> bool {
        let port = self.port.as_ref();
        port.is_none_or(|port| pod.selected.ports.contains(port))
            && self.any(|it| it.contains(address).unwrap_or_else(|| pod.is_in(it)))
    }

    /// Whether a pod can be in it, whatever its addresses and the numbers of its ports.
    pub(super) fn may_match(&self, pod: &Candidate<'_>) -> bool {
        self.any(|it| matches!(it, Peer::Block(..)) || pod.is_in(it))
    }

    fn any(&self, is_in: impl Fn(&Peer) -> bool) -> bool {
        let peers = self.peers.as_ref();
        peers.is_none_or(|peers| peers.iter().any(is_in))
    }

    /// The namespaces whose pods it can have; `None` for all.
    pub(super) fn namespaces(&self, all: &super::Namespaces) -> Option<BTreeSet<Name>> {
        let mut found = BTreeSet::new();
        for peer in self.peers.as_ref()? {
            match peer {
                Peer::Pods {
                    namespaces: Namespaces::Own(name),
                    ..
                } => drop(found.insert(name.clone())),
                Peer::Pods {
                    namespaces: Namespaces::Matching(selector),
                    ..
                } => {
                    let selected = all.iter().filter(|(_, labels)| selector.matches(labels));
                    found.extend(selected.map(|(name, _)| name.clone()));
                }
                Peer::Block(..) => return None,
            }
        }
        Some(found)
    }

    /// The places of its pods.
    pub(super) fn places(&self) -> Vec<Place> {
        let Some(peers) = &self.peers else {
            return vec![Place::Any];
        };
        let all = peers.iter().flat_map(|peer| match peer {
            Peer::Pods { namespaces, pods } => {
                let within = match namespaces {
                    Namespaces::Own(name) => Within::Namespace(name),
                    Namespaces::Matching(selector) => Within::Matching(selector),
                };
                Place::of(within, pods)
            }
            Peer::Block(..) => vec![Place::Any],
        });
        all.collect()
    }

    /// Its part of the key of its rows on a network, and of their names: 64 bits of a hash that
    /// nobody can choose, because two tenants' sets with one name would be one set.
    pub fn id(&self, network: &Network) -> Name {
        let own = format!("{self:?}");
        let bytes = match *network == Network::DEFAULT {
            true => digest(&own),
            false => digest(&format!("{}:{own}", network.name())),
        };
        u64::from_be_bytes(bytes).to_string().into()
    }

    pub(super) fn ids(&self, family: Family) -> Ids {
        Ids::new("PodSelector", self.to_string()).and("ip-family", family.name())
    }
}

/// The pods that may be in a set.
pub(super) fn members_of(
    set: &PeerSet,
    pods: &Pods,
    namespaces: &super::Namespaces,
) -> BTreeSet<Subject> {
    let own = candidates(set, pods, namespaces);
    own.map(|(id, _)| Subject::Pod(id.clone())).collect()
}

/// The numbers that their containers give a port.
pub(super) fn numbers_of(
    set: &PeerSet,
    named: &NamedPort,
    pods: &Pods,
    namespaces: &super::Namespaces,
) -> BTreeSet<u16> {
    let own = candidates(set, pods, namespaces);
    own.flat_map(|(_, pod)| pod.selected.numbers(named))
        .collect()
}

fn candidates<'a>(
    set: &PeerSet,
    pods: &'a Pods,
    namespaces: &super::Namespaces,
) -> impl Iterator<Item = (&'a ObjectName, &'a Pod)> {
    let own: Vec<(&ObjectName, &Pod)> = match set.namespaces(namespaces) {
        Some(own) => own.iter().flat_map(|it| of_namespace(pods, it)).collect(),
        None => pods.iter().collect(),
    };
    own.into_iter()
        .filter(|(id, pod)| set.may_match(&candidate(id, pod, namespaces)))
}

/// The name of a set's row for the addresses of a family.
pub(super) fn set_name(id: &str, family: Family) -> Name {
    format!("a{id}_{}", family.name()).into()
}

/// In the form of selectors.
impl std::fmt::Display for PeerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        for peer in self.peers.iter().flatten() {
            parts.push(peer.to_string());
        }
        if self.peers.is_none() {
            parts.push("all pods".to_owned());
        }
        f.write_str(&parts.join(" or "))?;
        if let Some((named, number)) = &self.port {
            write!(
                f,
                " with {} = {number}/{}",
                named.name,
                named.protocol.name()
            )?;
        }
        Ok(())
    }
}
