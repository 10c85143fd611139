//! ADD: all or nothing.

use std::sync::Arc;

use futures_util::future::join_all;
use ipnet::IpNet;
use podwire_cni::spec::CniResult;
use podwire_netns::{Attaching, HostEnd, Netns, PodEnd};

use super::call::Add;
use super::deadline::Deadline;
use super::metadata::PodMetadata;
use super::on_bridge::OnBridge;
use super::removal::remove;
use super::turns::Cancel;
use super::undo::{Done, Undo};
use super::{Call, Error, Handles, READY_DEADLINE, ovs_cni, physical};
use crate::config::Mode;
use crate::fault::fault_point;
use crate::journal::State;
use crate::observe::{Repair, Trace, WaitFor};
use crate::plan::{self, PortPlan, is_physical};

/// Attaches a container; returns what the plugin prints.
pub(super) async fn add(
    node: &Handles,
    call: &Call,
    cancel: &Arc<Cancel>,
    trace: &mut Trace,
) -> Result<String, Error> {
    let on_bridge = OnBridge::of(node, &call.conf, &call.args)?;
    let add = Add {
        node,
        call,
        cancel,
        on_bridge: on_bridge.as_ref(),
        deadline: Deadline::after(node.live.borrow().add_timeout),
    };
    call.confirm_lease(on_bridge.as_ref())?;
    let prev_result = call
        .conf
        .prev_result()
        .map_err(|error| Error::Request(error.into()))?;
    let netns = Netns::open(&call.invocation.netns)?;
    let turn = trace.step("queue", add.turn()).await?;
    let netns = Arc::new(turn.still_there(call, netns)?);
    trace.step("agent: ready", add.made_ready(&netns)).await?;

    let mut undo = Undo::default();
    match add.wire(&netns, &mut undo, trace).await {
        Ok(result) => {
            let result = match prev_result {
                Some(prev) => result.merge(prev),
                None => result,
            };
            Ok(result.to_json(call.conf.cni_version))
        }
        Err(error) => {
            trace.fail();
            trace.timed("roll back", add.roll_back(undo)).await;
            Err(error)
        }
    }
}

impl Add<'_> {
    async fn wire(
        &self,
        netns: &Arc<Netns>,
        undo: &mut Undo,
        trace: &mut Trace,
    ) -> Result<CniResult, Error> {
        let pod = trace.step("annotations", self.metadata()).await?;
        self.note_delegation(netns, undo)?;
        let planning = self.planned(&pod, undo);
        let (mut planned, mut dns) = trace.step("plan and addresses", planning).await?;
        self.cancel.check()?;
        // On another bridge, the same address is another pod's.
        let own = planned.iter().filter(|port| !port.is_elsewhere());
        let addresses = own.flat_map(|port| &port.link.addresses);
        let addresses = addresses.map(IpNet::addr);
        self.node.connections.hurry(addresses.clone());
        let noting = self.note_plan(netns, &planned, undo);
        trace.step("intent log", noting).await?;

        // Sent to the switch while the links are created.
        let mut reserved = self.reserve_flows(&planned);
        let (hosts, pod_ends) = self.make_pairs(netns, &planned, undo, trace).await?;
        let adding = self.add_rows(&planned, &hosts, &reserved, undo);
        let ports = trace.step("ovsdb: transaction", adding).await?;
        tokio::select! {
            taken_up = self.taken_up(&ports, &mut reserved, trace) => taken_up?,
            error = self.unwanted(&pod) => return Err(error),
        }
        if let Some(forgotten) = self.node.connections.forgotten(addresses) {
            trace.timed("connections forgotten", forgotten).await;
        }
        if self.call.wants_lease() {
            let leasing = self.lease(netns, &mut planned, &mut dns, undo);
            tokio::select! {
                leased = trace.step("dhcp", leasing) => leased?,
                error = self.unwanted(&pod) => return Err(error),
            }
        } else if planned.iter().any(physical::is_probed) {
            let taking = self.take_addresses(netns, &planned);
            tokio::select! {
                taken = trace.step("address probes", taking) => taken?,
                error = self.unwanted(&pod) => return Err(error),
            }
        }
        let concluding = self.conclude(&planned, &pod_ends, undo);
        trace.step("announce and answer", concluding).await?;
        let names: Vec<String> = hosts.into_iter().map(|host| host.link.name).collect();
        let subject = pod.subject(self.call);
        Ok(plan::result::result(&subject, &planned, &names, dns))
    }

    /// Waits until the agent can serve an ADD, and removes what is in its way.
    async fn made_ready(&self, netns: &Arc<Netns>) -> Result<(), Error> {
        let waiting = self.node.metrics.wait(WaitFor::Ready);
        let patience = || self.deadline.left().min(READY_DEADLINE);
        self.node.settled_within(patience()).await?;
        match self.on_bridge {
            Some(on_bridge) => on_bridge.ready(self.node, patience()).await?,
            None => self.node.ports.ready(patience()).await?,
        }
        self.physical_network()?;
        drop(waiting);
        self.clear_leftovers(netns).await?;
        if let Some(on_bridge) = self.on_bridge {
            if ovs_cni::is_for(self.call) {
                ovs_cni::clear_logical_port(self.node, on_bridge).await?;
            }
            on_bridge.refuse_taken_ofport(self.node, &self.call.key.ifname)?;
        }
        fault_point!("add-begun");
        Ok(())
    }

    /// The physical network of the attachment, as the node's mappings name it. One that this node
    /// does not connect would be waited for in vain.
    pub(super) fn physical_network(&self) -> Result<Option<String>, Error> {
        let conf = &self.call.conf;
        if !conf.is_localnet || self.node.config.ovn.mode != Mode::Ovn {
            return Ok(None);
        }
        let own = conf.physical_network_name.as_deref().unwrap_or(&conf.name);
        // ovn-kubernetes' name for it before there was physicalNetworkName.
        let older = format!("{}_br-localnet", conf.name.replace(['-', '/'], "."));
        Ok(Some(self.node.ports.confirm_mapping(&[own, &older])?))
    }

    /// Removes what an earlier attachment with the same key left behind, for example one whose
    /// namespace was deleted before its container id was used again. If that attachment is intact,
    /// it stays and the ADD is refused (CNI spec §2, ADD).
    async fn clear_leftovers(&self, netns: &Arc<Netns>) -> Result<(), Error> {
        let (node, key) = (self.node, &self.call.key);
        if node.ports.find(key).is_empty() && node.journal.state(key).is_none() {
            return Ok(());
        }
        let name = &key.ifname;
        let found = node.netlink.observe(Arc::clone(netns), name).await?;
        if found.is_some() {
            let (name, netns) = (name.clone(), self.call.invocation.netns.clone().into());
            return Err(podwire_netns::Error::PodInterfaceExists { name, netns }.into());
        }
        tracing::info!(
            attachment = %key,
            "removing leftovers of an earlier attachment with the same key"
        );
        node.metrics.repaired(Repair::Leftover, 1);
        remove(node, key).await
    }

    /// Creates every pair and configures the pod's ends. Waits for all of them: those that exist
    /// have to be undone, whatever happened to the others.
    async fn make_pairs(
        &self,
        netns: &Arc<Netns>,
        planned: &[PortPlan],
        undo: &mut Undo,
        trace: &mut Trace,
    ) -> Result<(Vec<HostEnd>, Vec<PodEnd>), Error> {
        trace.begin("make pair");
        // The netlink thread creates them one after the other.
        let attaching = planned.iter().map(|port| {
            let link = self.first_link(port);
            self.node.netlink.attach(Arc::clone(netns), link)
        });
        let attaching: Vec<Attaching> = attaching.collect();
        let done = join_all(attaching.into_iter().map(Attaching::done)).await;
        let made = done.iter().flatten().map(|(host, _)| host.link.clone());
        undo.push(Done::Links(made.collect()));
        let pairs: Vec<(HostEnd, PodEnd)> = done.into_iter().collect::<Result<_, _>>()?;
        let steps = pairs
            .iter()
            .flat_map(|(host, pod)| host.steps.iter().chain(&pod.steps));
        let mut made = None;
        for step in steps {
            trace.span(step.name, step.start, step.took);
            made = Some(step.start + step.took);
        }
        if let Some(made) = made {
            // The netlink thread had finished; the agent's one thread has other operations too.
            trace.phase("agent: queue", made);
        }
        fault_point!("add-linked");
        Ok(pairs.into_iter().unzip())
    }

    /// Completes when the attachment is no longer wanted, or its annotations have changed.
    async fn unwanted(&self, pod: &PodMetadata) -> Error {
        tokio::select! {
            error = self.overturned(pod) => error,
            reason = self.cancel.cancelled() => reason.into(),
        }
    }

    /// Announces the pod to its neighbours, removes the older sandboxes, and records the attachment
    /// as live.
    async fn conclude(
        &self,
        planned: &[PortPlan],
        pods: &[PodEnd],
        undo: &mut Undo,
    ) -> Result<(), Error> {
        for error in pods.iter().flat_map(PodEnd::announce) {
            tracing::debug!(attachment = %self.call.key, "{error}");
        }
        self.clear_replaced(std::mem::take(&mut undo.replaced))
            .await;
        self.node
            .journal
            .advance(&self.call.key, State::Adding, State::Live)?;
        undo.noted = Some(State::Live);
        if planned.iter().any(|port| is_physical(&port.external_ids)) {
            self.node.kept.keep(&self.call.key);
        }
        fault_point!("add-live");
        Ok(())
    }
}
