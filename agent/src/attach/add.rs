//! ADD: all or nothing.

use std::sync::Arc;

use futures_util::future::join_all;
use ipnet::IpNet;
use podwire_cni::spec::CniResult;

use super::deadline::Deadline;
use super::said::Said;
use super::turns::Cancel;
use super::undo::{Done, Undo};
use super::{Agent, Call, Error, READY_DEADLINE};
use crate::fault::fault_point;
use crate::journal::State;
use crate::netns::{Attaching, HostEnd, Netns, PodEnd};
use crate::observe::{Mended, Trace, WaitFor};
use crate::plan::{self, PortPlan};

impl Agent {
    /// Attaches a container; the text is what the plugin prints.
    pub(super) async fn add(
        &self,
        call: &Call,
        cancel: &Arc<Cancel>,
        trace: &mut Trace,
    ) -> Result<String, Error> {
        let deadline = Deadline::after(self.live.borrow().add_timeout);
        let prev_result = call
            .conf
            .prev_result()
            .map_err(|error| Error::Request(error.into()))?;
        let netns = Netns::open(&call.invocation.netns)?;
        let turn = trace
            .step("queue", self.turn(call, cancel, deadline))
            .await?;
        let netns = Arc::new(turn.still_there(call, netns)?);
        trace
            .step("agent: ready", self.made_ready(call, &netns, deadline))
            .await?;

        let mut undo = Undo::default();
        let wired = self.wire(call, &netns, cancel, deadline, &mut undo, trace);
        match wired.await {
            Ok(result) => {
                let result = match prev_result {
                    Some(prev) => result.merge(prev),
                    None => result,
                };
                Ok(result.to_json(call.conf.cni_version))
            }
            Err(error) => {
                trace.fail();
                self.roll_back(call, undo, trace).await;
                Err(error)
            }
        }
    }

    async fn wire(
        &self,
        call: &Call,
        netns: &Arc<Netns>,
        cancel: &Cancel,
        deadline: Deadline,
        undo: &mut Undo,
        trace: &mut Trace,
    ) -> Result<CniResult, Error> {
        let said = trace
            .step("annotations", self.said(call, cancel, deadline))
            .await?;
        self.note_delegation(call, netns, undo)?;
        let planning = self.planned(call, &said, deadline, undo);
        let (planned, dns) = trace.step("plan and addresses", planning).await?;
        cancel.check()?;
        let noting = self.note_plan(call, netns, &planned, undo);
        trace.step("intent log", noting).await?;

        // On their way to the switch while the links are made.
        let mut reserved = self.reserve_flows(call, &planned);
        let (hosts, pods) = self.make_pairs(netns, &planned, undo, trace).await?;
        let adding = self.add_rows(&planned, &hosts, &reserved, deadline, undo);
        let ports = trace.step("ovsdb: transaction", adding).await?;
        tokio::select! {
            taken_up = self.taken_up(&ports, &mut reserved, deadline, trace) => taken_up?,
            error = self.unwanted(call, &said, cancel) => return Err(error),
        }
        let addresses = planned.iter().flat_map(|port| &port.link.addresses);
        self.connections
            .forgotten(addresses.map(IpNet::addr), trace)
            .await;
        trace
            .step("announce and answer", self.conclude(call, &pods, undo))
            .await?;
        let names: Vec<String> = hosts.into_iter().map(|host| host.link.name).collect();
        let subject = said.subject(call);
        Ok(plan::result::result(&subject, &planned, &names, dns))
    }

    /// Waits until the agent can serve an ADD, and removes what is in the way of this one.
    async fn made_ready(
        &self,
        call: &Call,
        netns: &Arc<Netns>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let waiting = self.metrics.wait(WaitFor::Ready);
        let patience = || deadline.left().min(READY_DEADLINE);
        self.settled(patience()).await?;
        self.ports.ready(patience()).await?;
        drop(waiting);
        self.clear_leftovers(call, netns).await?;
        fault_point!("add-begun");
        Ok(())
    }

    /// Removes what an earlier attachment of the same key left behind, such as that of a container
    /// whose id came again after its namespace had been deleted. One that is whole stays, and the
    /// ADD is refused (CNI spec §2, ADD).
    async fn clear_leftovers(&self, call: &Call, netns: &Arc<Netns>) -> Result<(), Error> {
        if self.ports.find(&call.key).is_empty() && self.journal.find(&call.key)?.is_none() {
            return Ok(());
        }
        let name = &call.key.ifname;
        let found = self.netlink.observe(Arc::clone(netns), name).await?;
        if found.is_some() {
            let (name, netns) = (name.clone(), call.invocation.netns.clone().into());
            return Err(crate::netns::Error::PodInterfaceExists { name, netns }.into());
        }
        tracing::info!(attachment = %call.key, "removing what an earlier attachment of the same key left");
        self.metrics.mended(Mended::Leftover, 1);
        Error::gather(self.remove(&call.key).await)
    }

    /// Makes every pair and configures the pod's ends. All are waited for: those that are made are
    /// to be undone, whatever became of the others.
    async fn make_pairs(
        &self,
        netns: &Arc<Netns>,
        planned: &[PortPlan],
        undo: &mut Undo,
        trace: &mut Trace,
    ) -> Result<(Vec<HostEnd>, Vec<PodEnd>), Error> {
        trace.begin("make pair");
        // The netlink thread makes them in order, each whole.
        let attaching = planned
            .iter()
            .map(|port| self.netlink.attach(Arc::clone(netns), port.link.clone()));
        let attaching: Vec<Attaching> = attaching.collect();
        let done = join_all(attaching.into_iter().map(Attaching::done)).await;
        let made = done.iter().flatten().map(|(host, _)| host.link.clone());
        undo.push(Done::Links(made.collect()));
        let pairs: Vec<(HostEnd, PodEnd)> = done.into_iter().collect::<Result<_, _>>()?;
        let steps = pairs
            .iter()
            .flat_map(|(host, pod)| host.steps.iter().chain(&pod.steps));
        for step in steps {
            trace.span(step.name, step.start, step.took);
        }
        fault_point!("add-linked");
        Ok(pairs.into_iter().unzip())
    }

    /// Ends when nobody wants the attachment any more, or its annotations say something else.
    async fn unwanted(&self, call: &Call, said: &Said, cancel: &Cancel) -> Error {
        tokio::select! {
            error = self.overturned(call, said) => error,
            reason = cancel.cancelled() => Error::Cancelled(reason),
        }
    }

    /// Tells the pod's neighbours, removes the older sandboxes, and writes down that the attachment
    /// lives.
    async fn conclude(&self, call: &Call, pods: &[PodEnd], undo: &mut Undo) -> Result<(), Error> {
        for error in pods.iter().flat_map(PodEnd::announce) {
            tracing::debug!(attachment = %call.key, "{error}");
        }
        self.clear_replaced(std::mem::take(&mut undo.replaced))
            .await;
        self.journal
            .advance(&call.key, State::Adding, State::Live)?;
        undo.noted = Some(State::Live);
        fault_point!("add-live");
        Ok(())
    }
}
