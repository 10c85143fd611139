//! The pod's metadata in the API: awaited when an ADD begins, and watched until it ends.

use super::call::Add;
use super::{Call, Error};
use crate::config::Mode;
use crate::observe::WaitFor;
use crate::plan::{InterfaceSpec, PodRef, Subject, ids};
use crate::pods::sources::{Annotations, Answer, Question};
use crate::pods::{self, Attaching, NetworkKey};
use crate::ports::PortRecord;

/// The metadata of a call's pod, and what follows from it.
#[derive(Debug)]
pub(super) struct PodMetadata {
    /// The annotations; if none was needed, those that were known.
    pub(super) annotations: Annotations,
    /// The network of the call.
    pub(super) network: NetworkKey,
    /// The pod, with its uid in the API.
    pod: Option<PodRef>,
    /// None if the addresses come from elsewhere.
    answer: Option<Answer<Vec<InterfaceSpec>>>,
    /// The networks that the sandbox was attached to before this ADD.
    attached: Vec<NetworkKey>,
}

impl PodMetadata {
    /// The interfaces, if annotations define them.
    pub(super) fn interfaces(&self) -> Option<&[InterfaceSpec]> {
        self.answer.as_ref()?.value.as_deref()
    }

    /// What the plan needs of the call.
    pub(super) fn subject<'a>(&'a self, call: &'a Call) -> Subject<'a> {
        Subject {
            pod: self.pod.as_ref(),
            ..call.subject()
        }
    }
}

impl Add<'_> {
    /// A network of OVN has no addresses from a plugin: its logical port, which the controller
    /// makes, would not have them.
    fn refuse_ipam(&self) -> Result<(), Error> {
        let conf = &self.call.conf;
        let is_of_ovn = self.node.config.ovn.mode == Mode::Ovn && self.on_bridge.is_none();
        if conf.ipam.is_none() || !is_of_ovn || !conf.others.contains_key("topology") {
            return Ok(());
        }
        Err(Error::of_configuration(
            "ipam is not for a network of OVN (topology), which has addresses from subnets, or \
             none: leave it out",
        ))
    }

    /// Finds the pod's annotations; if they are needed and missing, waits for them until the ADD's
    /// deadline.
    pub(super) async fn metadata(&self) -> Result<PodMetadata, Error> {
        let call = self.call;
        self.refuse_ipam()?;
        let network = network(call)?;
        let wanted = pods::wanted(&network);
        let question = question(call, &wanted);
        let attached = self.attached_to(&call.key.container_id);
        if call.conf.ipam.is_some() || self.on_bridge.is_some() {
            return Ok(PodMetadata {
                annotations: self.node.sources.glance(&question),
                network,
                pod: call.pod.clone().map(|pod| PodRef {
                    uid: self.node.sources.uid_meant(&pod).or(pod.uid),
                    ..pod
                }),
                answer: None,
                attached,
            });
        }
        let attaching = attaching(call, &network, &attached);
        let read = |annotations: &Annotations| pods::interfaces(annotations, &attaching);
        let _waiting = self.node.metrics.wait(WaitFor::Annotation);
        let answer = tokio::select! {
            answer = self.node.sources.ask(&question, self.deadline.left(), read) => answer?,
            reason = self.cancel.cancelled() => return Err(reason.into()),
        };
        let pod = call.pod.clone().map(|pod| PodRef {
            uid: answer.uid.clone().or(pod.uid),
            ..pod
        });
        Ok(PodMetadata {
            annotations: answer.annotations.clone(),
            network,
            pod,
            answer: Some(answer),
            attached,
        })
    }

    /// Completes when the metadata that the ADD is based on no longer holds.
    pub(super) async fn overturned(&self, pod: &PodMetadata) -> Error {
        let Some(answer) = &pod.answer else {
            return std::future::pending().await;
        };
        let attaching = attaching(self.call, &pod.network, &pod.attached);
        let read = |annotations: &Annotations| pods::interfaces(annotations, &attaching);
        let question = question(self.call, "");
        Error::Source(self.node.sources.overturned(&question, answer, read).await)
    }

    /// The networks that a sandbox is attached to, according to the definitions in its rows.
    fn attached_to(&self, container_id: &str) -> Vec<NetworkKey> {
        let definition = |record: &PortRecord| record.external_ids.get(ids::OVN_NAD)?.parse().ok();
        let records = self.node.ports.of_sandbox(container_id);
        records.iter().filter_map(definition).collect()
    }
}

fn question<'a>(call: &'a Call, wanted: &'a str) -> Question<'a> {
    Question {
        pod: call.pod.as_ref(),
        request: &call.conf.runtime.pod_annotations,
        wanted,
    }
}

fn attaching<'a>(
    call: &'a Call,
    network: &'a NetworkKey,
    attached: &'a [NetworkKey],
) -> Attaching<'a> {
    Attaching {
        network,
        ifname: &call.key.ifname,
        attached,
    }
}

/// The network of a call: that of the definition that its configuration comes from, or the
/// cluster's default one.
fn network(call: &Call) -> Result<NetworkKey, Error> {
    let Some(name) = &call.conf.net_attach_def_name else {
        return Ok(NetworkKey::Default);
    };
    name.parse().map_err(|problem| {
        Error::of_configuration(format_args!("netAttachDefName {name:?}: {problem}"))
    })
}
