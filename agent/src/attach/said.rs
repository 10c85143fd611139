//! What a pod's annotations say, for as long as an ADD goes by it: awaited at its beginning, and watched until its end.

use podwire_cni::spec::{ErrorCode, SpecError};

use super::deadline::Deadline;
use super::turns::Cancel;
use super::{Agent, Call, Error};
use crate::observe::WaitFor;
use crate::plan::{InterfaceSpec, PodRef, Subject, ids};
use crate::pods::sources::{Annotations, Answer, Question};
use crate::pods::{self, Attaching, NetworkKey};
use crate::ports::PortRecord;

/// What the sources say of a call's pod.
#[derive(Debug)]
pub(super) struct Said {
    /// The annotations; those that were there, when none was needed.
    pub(super) annotations: Annotations,
    /// The network that the call is for.
    pub(super) network: NetworkKey,
    /// The pod, of the uid that it has in the API.
    pod: Option<PodRef>,
    /// None when somebody else gives the addresses.
    answer: Option<Answer<Vec<InterfaceSpec>>>,
    /// What the sandbox was attached to before this ADD.
    attached: Vec<NetworkKey>,
}

impl Said {
    /// The interfaces, when annotations say which.
    pub(super) fn interfaces(&self) -> Option<&[InterfaceSpec]> {
        self.answer.as_ref()?.said.as_deref()
    }

    /// What the plan needs to know of the call.
    pub(super) fn subject<'a>(&'a self, call: &'a Call) -> Subject<'a> {
        Subject {
            pod: self.pod.as_ref(),
            ..call.subject()
        }
    }
}

impl Agent {
    /// Finds the pod's annotations; where they are needed and missing they are awaited as long as an ADD may take.
    pub(super) async fn said(
        &self,
        call: &Call,
        cancel: &Cancel,
        deadline: Deadline,
    ) -> Result<Said, Error> {
        let network = network(call)?;
        let wanted = pods::wanted(&network);
        let question = question(call, &wanted);
        let attached = self.attached(&call.key.container_id);
        if call.conf.ipam.is_some() {
            return Ok(Said {
                annotations: self.sources.glance(&question),
                network,
                pod: call.pod.clone(),
                answer: None,
                attached,
            });
        }
        let attaching = attaching(call, &network, &attached);
        let read = |annotations: &Annotations| pods::interfaces(annotations, &attaching);
        let _waiting = self.metrics.wait(WaitFor::Annotation);
        let answer = tokio::select! {
            answer = self.sources.ask(&question, deadline.left(), read) => answer?,
            reason = cancel.cancelled() => return Err(Error::Cancelled(reason)),
        };
        let pod = call.pod.clone().map(|pod| PodRef {
            uid: answer.uid.clone().or(pod.uid),
            ..pod
        });
        Ok(Said {
            annotations: answer.annotations.clone(),
            network,
            pod,
            answer: Some(answer),
            attached,
        })
    }

    /// Ends when what the ADD goes by no longer holds.
    pub(super) async fn overturned(&self, call: &Call, said: &Said) -> Error {
        let Some(answer) = &said.answer else {
            return std::future::pending().await;
        };
        let attaching = attaching(call, &said.network, &said.attached);
        let read = |annotations: &Annotations| pods::interfaces(annotations, &attaching);
        let question = question(call, "");
        Error::Source(self.sources.overturned(&question, answer, read).await)
    }

    /// What a sandbox is attached to, by the definitions that its rows name.
    fn attached(&self, container_id: &str) -> Vec<NetworkKey> {
        let definition = |record: &PortRecord| record.external_ids.get(ids::OVN_NAD)?.parse().ok();
        let records = self.ports.of_sandbox(container_id);
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

/// The network that a call is for: that of the definition its configuration is from, or the cluster's default one.
fn network(call: &Call) -> Result<NetworkKey, Error> {
    let Some(name) = &call.conf.net_attach_def_name else {
        return Ok(NetworkKey::Default);
    };
    name.parse().map_err(|problem| {
        let text = format!("network configuration: netAttachDefName {name:?}: {problem}");
        Error::Request(SpecError::new(ErrorCode::INVALID_CONFIG, text))
    })
}
