//! What an ADD is to make: decided, checked and written down before anything is made.

use podwire_cni::spec::Dns;

use super::deadline::Deadline;
use super::intent::Intent;
use super::said::Said;
use super::undo::Undo;
use super::{Agent, Call, Error, bandwidth};
use crate::fault::fault_point;
use crate::journal::{self, State};
use crate::netns::Netns;
use crate::plan::{self, PortPlan, mac_text};

impl Agent {
    /// Plans the ports of the pod, each with the names that its host end may get.
    pub(super) async fn planned(
        &self,
        call: &Call,
        said: &Said,
        deadline: Deadline,
        undo: &mut Undo,
    ) -> Result<(Vec<PortPlan>, Dns), Error> {
        let Intent {
            mut interfaces,
            dns,
            from_annotation,
        } = self.intent(call, said, deadline, undo).await?;
        bandwidth::limit(&mut interfaces, &call.conf);
        let node = self.ports.node_facts(self.default_mtu())?;
        let planned = plan::plan(&said.subject(call), &interfaces, &node);
        let mut planned = planned.map_err(|source| Error::Plan {
            source,
            from_annotation,
        })?;
        self.mark_port_security(call, &mut planned);
        self.refuse_taken(call, &interfaces, &planned, from_annotation)
            .await?;
        for port in &mut planned {
            let mut names = self.journal.unused_names(&port.link.host_names);
            names.retain(|name| !self.ports.is_name_taken(name));
            port.link.host_names = names;
        }
        fault_point!("add-planned");
        Ok((planned, dns))
    }

    /// Writes down what is about to be made, so that the next agent can undo it.
    pub(super) async fn note_plan(
        &self,
        call: &Call,
        netns: &Netns,
        planned: &[PortPlan],
        undo: &mut Undo,
    ) -> Result<(), Error> {
        self.note(call, netns, planned, undo)?;
        fault_point!("add-noted");
        Ok(())
    }

    /// Writes down that a delegated IPAM plugin is about to be asked: what it gives to an agent
    /// that is killed meanwhile is known to this entry alone.
    pub(super) fn note_delegation(
        &self,
        call: &Call,
        netns: &Netns,
        undo: &mut Undo,
    ) -> Result<(), Error> {
        match call.conf.ipam {
            Some(_) => self.note(call, netns, &[], undo),
            None => Ok(()),
        }
    }

    fn note(
        &self,
        call: &Call,
        netns: &Netns,
        planned: &[PortPlan],
        undo: &mut Undo,
    ) -> Result<(), Error> {
        self.journal.begin(&self.entry(call, netns, planned))?;
        undo.noted = Some(State::Adding);
        Ok(())
    }

    fn entry(&self, call: &Call, netns: &Netns, planned: &[PortPlan]) -> journal::Entry {
        let pod = call.pod.as_ref().map(ToString::to_string);
        let bridge = self.config.bridge.clone();
        let mut entry =
            journal::Entry::new(call.key.clone(), pod, call.invocation.netns.clone(), bridge);
        let id = netns.id();
        entry.netns_id = Some((id.dev, id.ino));
        entry.ipam_del = call.conf.ipam.is_some().then(|| call.as_del());
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
