//! Who writes the northbound rows, and the changes that are measured.

use std::path::PathBuf;

use podwire_tests::Failure;
use serde_json::json;

use super::peer::{Peer, address_of_pod, version_of_pod};
use super::policies;
use crate::cluster::{
    Cluster, PORT_OF_ENDS, ends_of_service, name_of_node, name_of_pod, uid_of_pod,
};
use crate::cluster::{namespace, place};
use crate::process::Controller;

pub(crate) enum Subject {
    /// A build of the controller.
    Controller(&'static str, PathBuf),
    /// A build of the controller, and what ovn-northd is preloaded with.
    Preloaded(PathBuf, String),
    /// This bench, in the shape of ovn-kubernetes' rows.
    Peer,
}

/// Rows that are kept in line with a cluster.
pub(crate) enum Rows {
    Controller(PathBuf, Controller),
    Peer(Peer),
}

impl Subject {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Subject::Controller(name, _) => name,
            Subject::Preloaded(..) => "podwire, preloaded",
            Subject::Peer => "ovn-kubernetes' shape",
        }
    }

    pub(crate) fn preload(&self) -> Option<&str> {
        match self {
            Subject::Preloaded(_, library) => Some(library),
            Subject::Controller(..) | Subject::Peer => None,
        }
    }

    /// Writes all rows of a cluster.
    pub(crate) fn write(&self, cluster: &Cluster) -> Result<Rows, Failure> {
        Ok(match self {
            Subject::Controller(_, binary) | Subject::Preloaded(binary, _) => {
                let mut controller = Controller::start_by(binary, cluster)?;
                controller.await_done()?;
                Rows::Controller(binary.clone(), controller)
            }
            Subject::Peer => Rows::Peer(Peer::write(cluster)?),
        })
    }
}

impl Rows {
    /// The name of a pod's port.
    pub(crate) fn port(number: u32) -> String {
        format!("{}_{}", namespace(number), name_of_pod(number))
    }

    pub(crate) fn add_pod(&mut self, cluster: &Cluster, number: u32) -> Result<(), Failure> {
        match self {
            Rows::Controller(..) => {
                cluster.apply_pod(number);
                Ok(())
            }
            Rows::Peer(peer) => peer.add_pod(cluster, number),
        }
    }

    pub(crate) fn remove_pod(&mut self, cluster: &Cluster, number: u32) -> Result<(), Failure> {
        match self {
            Rows::Controller(..) => {
                let server = &cluster.server;
                server.delete(&namespace(number), &name_of_pod(number));
                Ok(())
            }
            Rows::Peer(peer) => peer.remove_pod(cluster, number),
        }
    }

    /// Replaces one endpoint of a service by another that no other has; that one.
    pub(crate) fn replace_end(&mut self, cluster: &Cluster, turn: u32) -> Result<String, Failure> {
        let service = turn % cluster.services;
        let mut ends = ends_of_service(service);
        ends[0] = place(250 << 16 | turn);
        match self {
            Rows::Controller(..) => cluster.apply_endpoints(service, &ends),
            Rows::Peer(peer) => peer.set_ends(service, &ends)?,
        }
        Ok(format!("{}:{PORT_OF_ENDS}", ends[0]))
    }

    /// Adds policies that a cluster's objects have already.
    pub(crate) fn add_policies(&mut self, cluster: &Cluster, count: u32) -> Result<(), Failure> {
        match self {
            Rows::Controller(..) => Ok(()),
            Rows::Peer(peer) => peer.add_policies(cluster, count),
        }
    }

    /// Adds one more.
    pub(crate) fn add_policy(&mut self, cluster: &Cluster, number: u32) -> Result<(), Failure> {
        match self {
            Rows::Controller(..) => {
                policies::apply_one(cluster, number);
                Ok(())
            }
            Rows::Peer(peer) => peer.add_policy(cluster, number),
        }
    }

    /// Changes the label of a pod from one to another.
    pub(crate) fn relabel(
        &mut self,
        cluster: &Cluster,
        (policies, number): (u32, u32),
        labels: [u32; 2],
    ) -> Result<(), Failure> {
        match self {
            Rows::Controller(..) => {
                policies::change(cluster, number, labels[1]);
                Ok(())
            }
            Rows::Peer(peer) => {
                let places = labels.map(|app| policies::places(policies, number, app));
                let places = places
                    .each_ref()
                    .map(|(sets, groups)| (&sets[..], &groups[..]));
                peer.relabel(cluster, number, places)
            }
        }
    }

    /// What tells a pod from an earlier one with its name.
    pub(crate) fn version(&self, number: u32) -> String {
        match self {
            Rows::Controller(..) => uid_of_pod(number),
            Rows::Peer(_) => version_of_pod(number),
        }
    }

    /// The address of a pod.
    pub(crate) fn address(&self, cluster: &Cluster, number: u32) -> String {
        match self {
            Rows::Controller(..) => cluster.annotated(number),
            Rows::Peer(_) => address_of_pod(cluster, number),
        }
    }

    /// Restarts the controller; how many operations it found to be done.
    pub(crate) fn restart(&mut self, cluster: &Cluster) -> Result<Option<u64>, Failure> {
        let Rows::Controller(binary, controller) = self else {
            return Ok(None);
        };
        let mut next = Controller::start_by(binary, cluster)?;
        std::mem::swap(controller, &mut next);
        next.stop()?;
        controller.await_done().map(Some)
    }
}

/// Chassis as ovn-controller would register them, from a node on.
pub(crate) fn add_chassis(cluster: &Cluster, first: u32) -> Result<(), Failure> {
    for number in first..cluster.nodes {
        let name = name_of_node(number);
        let encap = json!({
            "type": "geneve", "ip": place(number), "chassis_name": name,
            "options": ["map", [["csum", "true"]]],
        });
        let chassis = json!({
            "name": name, "hostname": name, "encaps": ["named-uuid", "encap"],
            "other_config": ["map", [["ct-no-masked-label", "true"], ["is-interconn", "false"]]],
        });
        cluster.central.southbound().transact(&[
            json!({ "op": "insert", "table": "Encap", "uuid-name": "encap", "row": encap }),
            json!({ "op": "insert", "table": "Chassis", "row": chassis }),
        ])?;
    }
    Ok(())
}
