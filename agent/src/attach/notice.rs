//! Reports a failed ADD to the pod's owner, if they can fix the reason; if it is the node, on that.
//!
//! The runtime's error contains every failure, and kubelet makes an Event of that. But it is one of
//! the sandbox's many problems, cut short and without a keyword to search for. The reasons here
//! have one each, which stays the same across retries.

use std::sync::Arc;

use podwire_apiserver::event::Warning;
use podwire_cni::spec::Command;

use super::physical::ADDRESS;
use super::status::Health;
use super::{Call, Error, Handles};
use crate::ipam::pool::PoolError;
use crate::journal::Entry;
use crate::observe::events::Events;
use crate::plan::{PlanError, PodRef, ids};
use crate::pods::settings;
use crate::pods::sources::{Missing, PodName, SourceError, Sources};
use crate::ports::PortError;

/// Reports it, without waiting.
pub(super) fn report(events: &Events, node: &Arc<Handles>, call: &Call, error: &Error) {
    if call.verb != Command::Add {
        return;
    }
    match (&call.pod, reason(error)) {
        (Some(pod), Some(reason)) => report_on_pod(events, &node.sources, (pod, reason), error),
        _ => drop(tokio::spawn(report_on_node(
            events.clone(),
            Arc::clone(node),
        ))),
    }
}

/// Reports why no ADD would be served, if that is so.
async fn report_on_node(events: Events, node: Arc<Handles>) {
    let Some(_look) = events.look() else {
        return;
    };
    let reasons = Health::check(&node).await.reasons();
    if reasons.is_empty() {
        return;
    }
    let name = events.node().to_owned();
    events.report(Warning {
        api: "v1",
        kind: "Node",
        // As the kubelet's Events have it, which `kubectl describe node` shows.
        uid: name.clone(),
        namespace: String::new(),
        name,
        reason: "NetworkNotReady",
        message: format!("pods get no network here: {}", reasons.join("; ")),
    });
}

/// Reports that another host claims an address of a pod's, without waiting.
pub(super) fn address_claimed(events: &Events, entry: &Entry, message: String) {
    let Some((namespace, name)) = entry.pod.as_ref().and_then(|pod| pod.split_once('/')) else {
        return;
    };
    let mut ids = entry.ports.iter().map(|port| &port.external_ids);
    let uid = ids.find_map(|ids| ids.get(ids::IFACE_ID_VER).cloned());
    events.report(Warning {
        api: "v1",
        kind: "Pod",
        uid: uid.unwrap_or_default(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        reason: "AddressConflict",
        message,
    });
}

fn report_on_pod(
    events: &Events,
    sources: &Sources,
    (pod, reason): (&PodRef, &'static str),
    error: &Error,
) {
    let name = PodName::of(pod);
    let uid = sources.uid_of(pod).or_else(|| pod.uid.clone());
    events.report(Warning {
        api: "v1",
        kind: "Pod",
        uid: uid.unwrap_or_default(),
        namespace: name.namespace,
        name: name.name,
        reason,
        message: error.to_string(),
    });
}

/// The reason, if the pod's owner or whoever annotates pods can do something about it.
fn reason(error: &Error) -> Option<&'static str> {
    match error {
        Error::Annotation(error) | Error::Source(SourceError::Annotation(error)) => {
            Some(match error.annotation {
                settings::MTU => "MTURefused",
                _ => "InvalidNetworkAnnotation",
            })
        }
        Error::NotAnnotated { .. } => Some("NetworkAnnotationMissing"),
        Error::Source(SourceError::Missing { missing, .. }) => match missing {
            Missing::Annotation { .. } => Some("NetworkAnnotationMissing"),
            Missing::Uid { .. } => Some("PodUIDMismatch"),
            Missing::PodName | Missing::Pod { .. } => None,
        },
        Error::Plan {
            source,
            from_annotation: true,
        } => Some(match source {
            PlanError::Mtu { .. } => "MTURefused",
            _ => "InvalidNetworkAnnotation",
        }),
        Error::Address(PoolError::Taken { .. })
        | Error::NotForPod {
            field: ADDRESS,
            is_taken: true,
            ..
        } => Some("AddressInUse"),
        Error::Address(PoolError::Reserved { .. } | PoolError::OutsideSubnets { .. }) => {
            Some("AddressRefused")
        }
        Error::Address(PoolError::Exhausted { .. }) => Some("NoAddressLeft"),
        Error::Port(PortError::IfaceIdForeign { .. }) => Some("PortNameInUse"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn lacking(missing: Missing) -> Error {
        Error::Source(SourceError::Missing {
            pod: None,
            wanted: String::new(),
            missing,
            waited: Duration::ZERO,
            failing: Vec::new(),
        })
    }

    fn plan(from_annotation: bool) -> Error {
        Error::Plan {
            source: PlanError::Mtu {
                interface: "eth0".into(),
                mtu: 1,
                least: 68,
            },
            from_annotation,
        }
    }

    #[test]
    fn only_what_the_pods_owner_can_fix_is_told_on_the_pod() {
        let has = Missing::Annotation { has: Vec::new() };
        assert_eq!(reason(&lacking(has)), Some("NetworkAnnotationMissing"));
        assert_eq!(reason(&lacking(Missing::PodName)), None);
        assert_eq!(reason(&plan(true)), Some("MTURefused"));
        assert_eq!(
            reason(&plan(false)),
            None,
            "the configuration's is the node's affair"
        );
        assert_eq!(reason(&Error::Busy { limit: 1 }), None);
        let foreign = PortError::IfaceIdForeign {
            iface_id: "a_b".into(),
            holder: "a/b".into(),
        };
        assert_eq!(reason(&Error::Port(foreign)), Some("PortNameInUse"));
    }
}
