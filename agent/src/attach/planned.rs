//! What an ADD will create: decided, checked and recorded beforehand.

use podwire_cni::spec::Dns;
use podwire_netns::Netns;

use super::assignment::Assignment;
use super::call::Add;
use super::metadata::PodMetadata;
use super::undo::Undo;
use super::{Error, bandwidth};
use crate::fault::fault_point;
use crate::journal::{self, State};
use crate::plan::{self, NodeFacts, PortPlan, ids, mac_text};

impl Add<'_> {
    /// Plans the ports of the pod, each with the possible names of its host end.
    pub(super) async fn planned(
        &self,
        pod: &PodMetadata,
        undo: &mut Undo,
    ) -> Result<(Vec<PortPlan>, Dns), Error> {
        let Assignment {
            mut interfaces,
            dns,
            from_annotation,
        } = self.assign(pod, undo).await?;
        bandwidth::limit(self.node, &mut interfaces, &self.call.conf).await;
        let of_network = self.call.conf.quiet_pods;
        let node = NodeFacts {
            quiet_pods: of_network.unwrap_or(self.node.config.quiet_pods),
            has_routers: of_network == Some(false),
            ..self
                .node
                .ports
                .node_facts(self.other_bridge(), self.node.default_mtu())?
        };
        let planned = plan::plan(&pod.subject(self.call), &interfaces, &node);
        let mut planned = planned.map_err(|source| Error::Plan {
            source,
            from_annotation,
        })?;
        if let Some(network) = self.physical_network()? {
            for port in &mut planned {
                let ids = &mut port.external_ids;
                ids.insert(ids::PHYSICAL_NETWORK.to_owned(), network.clone());
            }
        }
        self.mark_port_security(&mut planned);
        self.announce_what_moved(&mut planned, undo);
        self.refuse_taken(&interfaces, &planned, from_annotation)
            .await?;
        for port in &mut planned {
            let mut names = self.node.journal.unused_names(&port.link.host_names);
            names.retain(|name| !self.node.ports.is_name_taken(name));
            port.link.host_names = names;
        }
        fault_point!("add-planned");
        Ok((planned, dns))
    }

    /// Records what is about to be created, so that the next agent can undo it.
    pub(super) async fn note_plan(
        &self,
        netns: &Netns,
        planned: &[PortPlan],
        undo: &mut Undo,
    ) -> Result<(), Error> {
        self.note(netns, planned, undo)?;
        fault_point!("add-noted");
        Ok(())
    }

    /// Records that a delegated IPAM plugin is about to be called: if the agent is killed
    /// meanwhile, only this entry knows of the addresses.
    pub(super) fn note_delegation(&self, netns: &Netns, undo: &mut Undo) -> Result<(), Error> {
        match self.call.is_delegated() {
            true => self.note(netns, &[], undo),
            false => Ok(()),
        }
    }

    fn note(&self, netns: &Netns, planned: &[PortPlan], undo: &mut Undo) -> Result<(), Error> {
        self.node.journal.begin(&self.entry(netns, planned))?;
        undo.noted = Some(State::Adding);
        Ok(())
    }

    fn entry(&self, netns: &Netns, planned: &[PortPlan]) -> journal::Entry {
        let call = self.call;
        let pod = call.pod.as_ref().map(ToString::to_string);
        let bridge = self.other_bridge().unwrap_or(&self.node.config.bridge);
        let bridge = bridge.to_owned();
        let mut entry =
            journal::Entry::new(call.key.clone(), pod, call.invocation.netns.clone(), bridge);
        let id = netns.id();
        entry.netns_id = Some((id.dev, id.ino));
        entry.api_uid = call
            .pod
            .as_ref()
            .and_then(|pod| self.node.sources.api_uid(pod));
        entry.ipam_del = call.is_delegated().then(|| call.as_del());
        entry.ports = planned
            .iter()
            .map(|port| journal::EntryPort {
                host_names: port.link.host_names.clone(),
                host_mac: mac_text(port.link.host_mac),
                external_ids: port.external_ids.clone(),
                bandwidth: port.bandwidth,
                mtu: Some(port.link.mtu),
                routes: port.link.routes.clone(),
            })
            .collect();
        entry
    }
}
