//! ADD: all or nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use ipnet::IpNet;
use podwire_cni::spec::CniResult;

use super::bandwidth;
use super::deadline::Deadline;
use super::intent::{Intent, owner};
use super::turns::{Cancel, Place};
use super::{Agent, Call, Error, READY_DEADLINE, Reason};
use crate::fault::fault_point;
use crate::flows::Reservation;
use crate::ipam::Owner;
use crate::journal::{self, State};
use crate::netns::{Attaching, HostEnd, HostLink, Netns, PodEnd};
use crate::observe::{Mended, Trace, WaitFor};
use crate::plan::{self, AttachmentKey, PortPlan, mac_text};
use crate::ports::{NewPort, PortRecord};

/// What an ADD has done so far, in the order in which it would have to be done again.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// Addresses held for it in the node's own subnets, and the older sandbox of the pod that each was taken from.
    pub(super) addresses: Vec<(IpAddr, Option<Owner>)>,
    /// A delegated IPAM plugin was asked.
    pub(super) delegated: bool,
    /// The intent log has an entry.
    journal: bool,
    /// The entry says that the attachment lives.
    live: bool,
    /// Links that were made.
    links: Vec<HostLink>,
    /// The rows were sent, and may be there whatever the answer was.
    rows: bool,
    /// Ports of older sandboxes that had to give way.
    replaced: Vec<PortRecord>,
}

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
        let key = &call.key;
        let line = self.pod_lines.join_add(
            call.pod_line(),
            &key.container_id,
            &key.ifname,
            Arc::clone(cancel),
        );
        let sandbox = self.sandbox_lines.join_add(
            call.sandbox_line(),
            &key.container_id,
            &key.ifname,
            Arc::clone(cancel),
        );
        let queued = trace.begin("queue");
        let waiting = self.metrics.wait(WaitFor::Turn);
        let has_waited = wait_for_turn(&line, cancel, deadline).await?
            | wait_for_turn(&sandbox, cancel, deadline).await?;
        if let Some(by) = line.newer_sandbox() {
            return Err(Error::Cancelled(Reason::Superseded { by }));
        }
        drop(waiting);
        trace.phase("queue", queued);
        let netns = match has_waited {
            true => self.still_there(call, netns)?,
            false => netns,
        };
        let netns = Arc::new(netns);

        let ready = trace.begin("agent: ready");
        let waiting = self.metrics.wait(WaitFor::Ready);
        let patience = || deadline.left().min(READY_DEADLINE);
        self.settled(patience()).await?;
        self.ports.ready(patience()).await?;
        drop(waiting);
        self.clear_leftovers(call, &netns).await?;
        trace.phase("agent: ready", ready);
        fault_point!("add-begun");

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
                let undoing = Instant::now();
                self.roll_back(call, undo).await;
                trace.phase("roll back", undoing);
                Err(error)
            }
        }
    }

    /// The namespace, if the path still leads to it: while an ADD waits its sandbox may be removed, and another pod's
    /// namespace may get its path.
    fn still_there(&self, call: &Call, opened: Netns) -> Result<Netns, Error> {
        let now = Netns::open(&call.invocation.netns)?;
        if now.id() == opened.id() {
            return Ok(opened);
        }
        Err(Error::NetnsReplaced {
            path: call.invocation.netns.clone(),
        })
    }

    /// Removes what an earlier attachment of the same key left behind, such as that of a container whose id came again after
    /// its namespace had been deleted. One that is whole stays, and the ADD is refused (CNI spec §2, ADD).
    async fn clear_leftovers(&self, call: &Call, netns: &Arc<Netns>) -> Result<(), Error> {
        if self.ports.find(&call.key).is_empty() && self.journal.find(&call.key)?.is_none() {
            return Ok(());
        }
        if self
            .netlink
            .observe(Arc::clone(netns), &call.key.ifname)
            .await?
            .is_some()
        {
            let (name, netns) = (
                call.key.ifname.clone(),
                call.invocation.netns.clone().into(),
            );
            return Err(crate::netns::Error::PodInterfaceExists { name, netns }.into());
        }
        tracing::info!(attachment = %call.key, "removing what an earlier attachment of the same key left");
        self.metrics.mended(Mended::Leftover, 1);
        Error::gather(self.remove(&call.key).await)
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
        let asking = trace.begin("annotations");
        let said = self.said(call, cancel, deadline).await?;
        trace.phase("annotations", asking);
        if call.conf.ipam.is_some() {
            // What the plugin gives to an agent that is killed meanwhile is known to this entry alone.
            self.note(call, netns, &[], undo)?;
        }
        let asking = trace.begin("plan and addresses");
        let Intent {
            mut interfaces,
            dns,
            from_annotation,
        } = self.intent(call, &said, deadline, undo).await?;
        bandwidth::limit(&mut interfaces, &call.conf);
        let subject = said.subject(call);
        let node = self.ports.node_facts(self.default_mtu())?;
        let mut planned =
            plan::plan(&subject, &interfaces, &node).map_err(|source| Error::Plan {
                source,
                from_annotation,
            })?;
        self.mark_port_security(call, &mut planned);
        self.refuse_taken(call, &interfaces, &planned, from_annotation)
            .await?;
        for port in &mut planned {
            port.link.host_names = self.journal.unused_names(&port.link.host_names);
            port.link
                .host_names
                .retain(|name| !self.ports.is_name_taken(name));
        }
        trace.phase("plan and addresses", asking);
        ended_early(cancel)?;
        fault_point!("add-planned");

        let writing = trace.begin("intent log");
        self.note(call, netns, &planned, undo)?;
        trace.phase("intent log", writing);
        fault_point!("add-noted");

        // On their way to the switch while the links are made.
        let mut reserved = self.reserve_flows(call, &planned);
        // The netlink thread makes the pairs in order, each whole.
        let attaching: Vec<Attaching> = planned
            .iter()
            .map(|port| self.netlink.attach(Arc::clone(netns), port.link.clone()))
            .collect();
        trace.begin("make pair");
        let (hosts, pods) = pairs(attaching, undo, trace).await?;
        fault_point!("add-linked");
        trace.begin("ovsdb: transaction");
        let rows = self
            .add_rows(&planned, &hosts, &reserved, deadline, undo)
            .await?;
        trace.span("ovsdb: transaction", rows.sent, rows.took);

        fault_point!("add-rows");
        tokio::select! {
            taken_up = self.wait_taken_up(&rows.ports, cancel, deadline, trace) => taken_up?,
            error = self.overturned(call, &said) => return Err(error),
        }
        tokio::select! {
            installed = self.flows_installed(&rows.ports, &mut reserved, deadline, trace) => installed?,
            reason = cancel.cancelled() => return Err(Error::Cancelled(reason)),
        }
        fault_point!("add-ofport");
        let addresses = planned.iter().flat_map(|port| &port.link.addresses);
        self.connections
            .forgotten(addresses.map(IpNet::addr), trace)
            .await;
        let finishing = Instant::now();
        for error in pods.iter().flat_map(PodEnd::announce) {
            tracing::debug!(attachment = %call.key, "{error}");
        }
        self.clear_replaced(std::mem::take(&mut undo.replaced))
            .await;
        self.journal
            .advance(&call.key, State::Adding, State::Live)?;
        undo.live = true;
        fault_point!("add-live");
        let names: Vec<String> = hosts.into_iter().map(|host| host.link.name).collect();
        let result = plan::result::result(&subject, &planned, &names, dns);
        trace.phase("announce and answer", finishing);
        Ok(result)
    }

    async fn add_rows(
        &self,
        planned: &[PortPlan],
        hosts: &[HostEnd],
        reserved: &[Reservation],
        deadline: Deadline,
        undo: &mut Undo,
    ) -> Result<crate::ports::Added, Error> {
        let new: Vec<NewPort<'_>> = planned
            .iter()
            .zip(hosts)
            .enumerate()
            .map(|(number, (plan, host))| NewPort {
                plan,
                host_name: &host.link.name,
                ofport: reserved.get(number).map(Reservation::ofport),
            })
            .collect();
        undo.rows = true;
        let mut added = self.ports.add(&new, deadline.at()).await?;
        undo.replaced = std::mem::take(&mut added.replaced);
        Ok(added)
    }

    /// Gives older sandboxes their ports back, those that still have a link: this ADD was not to take their place after all.
    async fn put_back(&self, replaced: Vec<PortRecord>) {
        for record in replaced {
            let Some(key) = &record.key else { continue };
            if self.has_no_link(&record.name).await {
                continue;
            }
            match self.ports.put_back(&record).await {
                Ok(()) => {
                    tracing::info!(attachment = %key, "an older sandbox of the same pod has its port again")
                }
                Err(error) => {
                    tracing::warn!(attachment = %key, %error, "an older sandbox of the same pod has lost its port")
                }
            }
            // A DEL that came in between found no row to remove.
            if self.has_no_link(&record.name).await
                && let Err(error) = self.remove_rows(key).await
            {
                tracing::warn!(attachment = %key, %error, "a port without a link stays until GC");
            }
        }
    }

    async fn has_no_link(&self, name: &str) -> bool {
        matches!(self.netlink.host_link(name).await, Ok(None))
    }

    /// Removes the links and addresses of older sandboxes whose rows this ADD replaced.
    async fn clear_replaced(&self, replaced: Vec<PortRecord>) {
        for record in replaced {
            if let Some(key) = &record.key {
                tracing::info!(attachment = %key, "replaced by a newer sandbox of the same pod");
                self.metrics.mended(Mended::OlderSandbox, 1);
                for error in self.remove(key).await {
                    tracing::warn!(attachment = %key, %error, "an older sandbox's leftovers stay until its DEL");
                }
            }
            self.remove_link(&record.name)
                .await
                .unwrap_or_else(|error| tracing::warn!(%error, "link stays"));
        }
    }

    fn is_wired(&self, owner: &Owner) -> bool {
        let key = AttachmentKey {
            network: owner.network.clone(),
            container_id: owner.container_id.clone(),
            ifname: owner.ifname.clone(),
        };
        !self.ports.find(&key).is_empty()
    }

    /// Writes down what is about to be done, so that the next agent can undo it.
    fn note(
        &self,
        call: &Call,
        netns: &Netns,
        planned: &[PortPlan],
        undo: &mut Undo,
    ) -> Result<(), journal::Error> {
        self.journal.begin(&self.entry(call, netns, planned))?;
        undo.journal = true;
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

    /// Takes back what an ADD did. What can't be taken back now stays in the intent log, and is when OVSDB is there again.
    async fn roll_back(&self, call: &Call, undo: Undo) {
        let mut errors: Vec<Error> = Vec::new();
        if undo.rows {
            errors.extend(self.remove_rows(&call.key).await.err().map(Error::from));
            self.put_back(undo.replaced).await;
        }
        if !undo.links.is_empty() {
            let names: Vec<&str> = undo.links.iter().map(|link| link.name.as_str()).collect();
            self.journal.retire_names(&names);
            errors.extend(self.netlink.delete(undo.links).await.err().map(Error::from));
        }
        if undo.delegated {
            errors.extend(self.delegated_del(call).await.err());
        }
        let owner = owner(call);
        for (address, older) in undo.addresses {
            match older.filter(|older| self.is_wired(older)) {
                Some(older) => self.addresses.hand_back(address, &owner, &older),
                None => self.addresses.release(address, &owner),
            }
        }
        if undo.journal {
            let closed = match errors.is_empty() {
                true if undo.live => self.journal.forget(&call.key),
                true => self.journal.abandon(&call.key),
                false => self
                    .journal
                    .advance(&call.key, State::Adding, State::Deleting),
            };
            errors.extend(closed.err().map(Error::from));
        }
        for error in errors {
            tracing::warn!(attachment = %call.key, %error, "roll-back is not complete");
        }
    }
}

/// Waits for a turn, or ends with the reason not to. Returns whether it had to be waited for.
async fn wait_for_turn<K: Eq + std::hash::Hash + Clone>(
    place: &Place<K>,
    cancel: &Cancel,
    deadline: Deadline,
) -> Result<bool, Error> {
    ended_early(cancel)?;
    if place.turn().now_or_never().is_some() {
        return Ok(false);
    }
    tokio::select! {
        biased;
        reason = cancel.cancelled() => Err(Error::Cancelled(reason)),
        () = place.turn() => Ok(true),
        () = tokio::time::sleep_until(deadline.at()) => Err(Error::Queued { waited: deadline.waited() }),
    }
}

/// Both ends of every pair, once all are made. On failure those that were made are in `undo`.
async fn pairs(
    attaching: Vec<Attaching>,
    undo: &mut Undo,
    trace: &mut Trace,
) -> Result<(Vec<HostEnd>, Vec<PodEnd>), Error> {
    let mut pairs = Vec::with_capacity(attaching.len());
    let mut failed = None;
    for pair in attaching {
        match pair.done().await {
            Ok((host, pod)) => {
                undo.links.push(host.link.clone());
                pairs.push((host, pod));
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    let (hosts, pods): (Vec<HostEnd>, Vec<PodEnd>) = pairs.into_iter().unzip();
    let of_hosts = hosts.iter().flat_map(|host| &host.steps);
    for step in of_hosts.chain(pods.iter().flat_map(|pod| &pod.steps)) {
        trace.span(step.name, step.start, step.took);
    }
    Ok((hosts, pods))
}

fn ended_early(cancel: &Cancel) -> Result<(), Error> {
    match cancel.reason() {
        None => Ok(()),
        Some(reason) => Err(Error::Cancelled(reason.clone())),
    }
}
