//! The node's settings from the Kubernetes API, in addition to the flags.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::annotations::{ANSWERS, NODE_SUBNETS, OVN_KUBERNETES, TO_HOST};
use podwire_cluster::networks::node_subnets;

use super::nets::{check_apart, check_subnets, nets};
use super::{Door, Mode, Peer, Settings, SettingsError, bad};
use crate::cluster::Cluster;
use crate::overlap::not_for_pods;

/// Why the node's settings are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// The API server has not provided them yet.
    #[error("{0}")]
    Missing(String),
    #[error(transparent)]
    Invalid(SettingsError),
}

/// What the API server has said that is valid: an input of the plan beside the flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClusterSettings {
    /// The node's subnets, unless flags set them.
    pub(crate) subnets: Vec<IpNet>,
    /// In plain mode, the other nodes.
    peers: Vec<Peer>,
    /// With OVN, those with a door.
    doors: Option<Vec<Door>>,
    /// With OVN, whether its pods' answers come back to the host although they have a gateway
    /// router.
    answers_return: bool,
    /// With OVN, whether ovn-kubernetes' control plane makes the gateway router, which then leads
    /// clients from outside to pods.
    router_leads: bool,
}

impl Settings {
    /// These settings of the flags, with what the API server has said.
    pub(crate) fn with(&self, given: &ClusterSettings) -> Self {
        let mut settings = self.clone();
        settings.peers.clone_from(&given.peers);
        settings.answers_return |= given.answers_return;
        settings.router_leads = settings.shares && given.router_leads;
        // Otherwise answers would leave by the gateway router, and not by the door.
        let doors = given.doors.as_ref().filter(|_| settings.answers_return);
        settings.doors = doors.cloned();
        if !self.subnets_by_flag {
            settings.node_subnets.clone_from(&given.subnets);
        }
        settings
    }

    /// What the cluster says about this node's subnets and, in plain mode, about the other nodes. A
    /// value stays until a valid one arrives; returns what is wrong with one that is not taken for
    /// that.
    ///
    /// # Errors
    /// There is no value.
    pub(crate) fn follow(
        &self,
        cluster: &Cluster,
        given: &mut ClusterSettings,
    ) -> Result<Option<SettingsError>, FollowError> {
        // With subnets by flags, a node with OVN is set up without the API server, too.
        if !(cluster.nodes.is_listed || self.mode == Mode::Ovn && self.subnets_by_flag) {
            let text = "waiting for the API server to list the nodes";
            return Err(FollowError::Missing(text.to_owned()));
        }
        if self.mode == Mode::Plain {
            let nodes = cluster.nodes.objects.iter();
            let peers =
                nodes.filter(|(name, node)| **name != self.node_name && !node.pod_cidrs.is_empty());
            given.peers = peers
                .map(|(name, node)| Peer {
                    name: name.clone(),
                    subnets: node.pod_cidrs.iter().map(IpNet::trunc).collect(),
                    addresses: hosts(&node.addresses),
                })
                .collect();
        }
        if self.mode == Mode::Ovn && cluster.nodes.is_listed {
            given.doors = self.doors_of(&cluster.nodes.objects);
            let own = cluster.nodes.objects.get(&self.node_name);
            let said = |key: &str| own.and_then(|node| node.annotations.get(key));
            // podwire-controller removes these when it is the control plane.
            given.router_leads = OVN_KUBERNETES.iter().any(|key| said(key).is_some());
            let returns = said(ANSWERS).is_some_and(|said| said == TO_HOST);
            given.answers_return = returns && !given.router_leads;
        }
        if self.subnets_by_flag {
            return Ok(None);
        }
        let node = cluster.nodes.objects.get(&self.node_name);
        let said = match self.mode {
            Mode::Ovn => node
                .and_then(|node| node.annotations.get(NODE_SUBNETS))
                .map(|annotation| self.subnets(annotation)),
            Mode::Plain => node
                .filter(|node| !node.pod_cidrs.is_empty())
                .map(|node| self.pod_cidrs(&node.pod_cidrs)),
        };
        match said {
            Some(Ok(subnets)) => {
                given.subnets = subnets;
                Ok(None)
            }
            Some(Err(error)) if given.subnets.is_empty() => Err(FollowError::Invalid(error)),
            Some(Err(error)) => Ok(Some(error)),
            None if !given.subnets.is_empty() => Ok(None),
            None => Err(FollowError::Missing(match self.mode {
                Mode::Ovn => format!(
                    "waiting for annotation {} of node {}, which the control plane writes",
                    NODE_SUBNETS, self.node_name
                ),
                Mode::Plain => format!(
                    "waiting for podCIDRs of node {}, which kube-controller-manager gives \
                     (--allocate-node-cidrs)",
                    self.node_name
                ),
            })),
        }
    }

    /// Whether all that the plan follows has been listed.
    pub(crate) fn is_known(&self, cluster: &Cluster) -> bool {
        cluster.nodes.is_listed && (cluster.is_listed() || !self.router_leads)
    }

    /// What is wrong with the services' network: the cluster's services have other addresses, which
    /// this machine's own route does not lead to OVN.
    pub(crate) fn missed_service(&self, cluster: &Cluster) -> Option<SettingsError> {
        let nets = &self.service_cidrs;
        let is_outside = |ip: &&IpAddr| !nets.iter().any(|net| net.contains(*ip));
        let services = cluster.services.objects.iter();
        let mut missed = services
            .filter_map(|(name, service)| {
                Some((name, service.cluster_ips.iter().find(is_outside)?))
            })
            .filter(|_| !nets.is_empty());
        let ((namespace, name), ip) = missed.next()?;
        let others = match missed.count() {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        let nets: Vec<String> = nets.iter().map(ToString::to_string).collect();
        let problem = format!(
            "service {namespace}/{name} has {ip}, which is not in it{others}: name what \
             kube-apiserver has as --service-cluster-ip-range"
        );
        Some(bad("--service-cidr", &nets.join(","), problem))
    }

    fn pod_cidrs(&self, subnets: &[IpNet]) -> Result<Vec<IpNet>, SettingsError> {
        let texts: Vec<String> = subnets.iter().map(ToString::to_string).collect();
        self.checked("podCIDRs", &texts)
    }

    fn checked(&self, flag: &'static str, texts: &[String]) -> Result<Vec<IpNet>, SettingsError> {
        let subnets = nets(flag, texts)?;
        check_subnets(flag, &subnets, &self.cluster_subnets)?;
        for subnet in &subnets {
            check_apart(flag, subnet, "--service-cidr", self.service_cidrs.iter())?;
        }
        Ok(subnets)
    }

    /// Reads the node's subnets from the control plane's annotation: by network, one or several.
    ///
    /// # Errors
    /// What is wrong with them.
    fn subnets(&self, annotation: &str) -> Result<Vec<IpNet>, SettingsError> {
        let flag = NODE_SUBNETS;
        let texts = node_subnets(annotation);
        if texts.is_empty() {
            let problem = r#"expected a network's subnets, as in {"default":["10.244.1.0/24"]}"#;
            return Err(bad(flag, annotation, problem));
        }
        self.checked(flag, &texts)
    }
}

/// Those that can be a host's.
fn hosts(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let addresses = addresses.iter().copied();
    let hosts = addresses.filter(|ip| not_for_pods(&IpNet::from(*ip)).is_none());
    hosts.collect()
}
