//! The node's settings from the Kubernetes API, in addition to the flags.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::{Mode, Peer, Settings, SettingsError, bad, check_subnets, nets};
use crate::announce::NODE_SUBNETS;
use crate::cluster::Cluster;

impl Settings {
    /// Applies what the cluster reports about this node's subnets and, in plain mode, about the
    /// other nodes. A value stays until a new one arrives.
    ///
    /// # Errors
    /// What is still missing or wrong, as text.
    pub(crate) fn follow(&mut self, cluster: &Cluster) -> Result<(), String> {
        if self.mode == Mode::Plain {
            if !cluster.nodes.is_listed {
                return Err("waiting for the API server to list the nodes".to_owned());
            }
            let nodes = cluster.nodes.objects.iter();
            let peers =
                nodes.filter(|(name, node)| **name != self.node_name && !node.pod_cidrs.is_empty());
            self.peers = peers
                .map(|(name, node)| Peer {
                    name: name.clone(),
                    subnets: node.pod_cidrs.clone(),
                    addresses: node.addresses.clone(),
                })
                .collect();
        }
        if self.subnets_by_flag {
            return Ok(());
        }
        let node = cluster.nodes.objects.get(&self.node_name);
        let taken = match self.mode {
            Mode::Ovn => node
                .and_then(|node| node.annotations.get(NODE_SUBNETS))
                .map(|annotation| self.take_subnets(annotation)),
            Mode::Plain => node
                .filter(|node| !node.pod_cidrs.is_empty())
                .map(|node| self.take_pod_cidrs(&node.pod_cidrs)),
        };
        match taken {
            Some(taken) => taken.map_err(|error| error.to_string()),
            None if !self.node_subnets.is_empty() => Ok(()),
            None => Err(match self.mode {
                Mode::Ovn => format!(
                    "waiting for annotation {} of node {}, which the control plane writes",
                    NODE_SUBNETS, self.node_name
                ),
                Mode::Plain => format!(
                    "waiting for podCIDRs of node {}, which kube-controller-manager gives \
                     (--allocate-node-cidrs)",
                    self.node_name
                ),
            }),
        }
    }

    fn take_pod_cidrs(&mut self, subnets: &[IpNet]) -> Result<(), SettingsError> {
        check_subnets("podCIDRs", subnets, &self.cluster_subnets)?;
        self.node_subnets = subnets.to_vec();
        Ok(())
    }

    /// Reads the node's subnets from the control plane's annotation: by network, one or several.
    ///
    /// # Errors
    /// What is wrong with them.
    fn take_subnets(&mut self, annotation: &str) -> Result<(), SettingsError> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Subnets {
            One(String),
            Several(Vec<String>),
        }
        let flag = NODE_SUBNETS;
        let parsed: Result<BTreeMap<String, Subnets>, _> = serde_json::from_str(annotation);
        let default = parsed
            .ok()
            .and_then(|mut networks| networks.remove("default"));
        let texts = match default {
            Some(Subnets::One(text)) => vec![text],
            Some(Subnets::Several(texts)) if !texts.is_empty() => texts,
            _ => {
                let problem =
                    r#"expected a network's subnets, as in {"default":["10.244.1.0/24"]}"#;
                return Err(bad(flag, annotation, problem));
            }
        };
        let subnets = nets(flag, &texts)?;
        check_subnets(flag, &subnets, &self.cluster_subnets)?;
        self.node_subnets = subnets;
        Ok(())
    }
}
