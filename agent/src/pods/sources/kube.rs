//! This node's pods, as the Kubernetes API server reports them.
//!
//! Only the metadata (PartialObjectMetadata) of pods whose spec.nodeName is this node is requested.
//! Failures are retried (`podwire_apiserver::watch`), and what is known stays known.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as PodKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use podwire_apiserver::bounds::PAGE;
use podwire_apiserver::event::{Poster, Source};
use podwire_apiserver::object::{Metadata, MetadataOf, Reference};
use podwire_apiserver::watch::{Event, Selection, Watch};
use podwire_apiserver::{Access, Unread, brief, client, with_causes};
use podwire_cluster::api;
use tokio::sync::Notify;

use super::known::Lookup;
use super::pods::{Pods, TooMuch};
use super::{Known, Pod, PodName};
use crate::config::KubeConfig;
use crate::duration;

/// Time limit for the server's answer about one pod.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Watches until the runtime ends. `nudge` shortens a pause, because an ADD waits for a pod.
pub(super) async fn watch(config: KubeConfig, known: Known, nudge: Arc<Notify>) {
    let selection = Selection {
        fields: format!("spec.nodeName={}", config.node),
        page: PAGE,
        ..Selection::default()
    };
    let source = Source {
        component: "podwire",
        host: Some(config.node.clone()),
    };
    let unread = Unread::posting(Poster::start(config.access.clone(), source));
    let mut events = Watch::new(config.access.clone(), selection).nudged_by(nudge);
    let mut reflector = Reflector {
        access: config.access,
        known,
        listed: Pods::default(),
        unread,
        is_failing: false,
    };
    loop {
        let event = events.next().await;
        if let Err(too_much) = reflector.apply(event) {
            events.refuse();
            reflector.failed(too_much.to_string());
        }
    }
}

/// Whether the server has the pod with this uid. A list without a resourceVersion reads from etcd,
/// or as recently (Kubernetes API concepts, "Semantics for get and list"). An answer older than
/// `newest`, from a server that lags, does not count.
pub(super) async fn is_there(
    config: &KubeConfig,
    pod: &PodName,
    uid: &str,
    newest: u64,
) -> Result<bool, String> {
    let client = client(&config.access)
        .await
        .map_err(|error| with_causes(&error))?;
    let api = Api::<PodKind>::namespaced(client, &pod.namespace);
    let parameters = ListParams::default().fields(&format!("metadata.name={}", pod.name));
    let answer = api.list_metadata(&parameters);
    let list = match tokio::time::timeout(ANSWER_DEADLINE, answer).await {
        Ok(list) => list.map_err(|error| with_causes(&error))?,
        Err(_) => {
            let waited = duration::text(ANSWER_DEADLINE);
            return Err(format!("the server did not answer within {waited}"));
        }
    };
    let version = list.metadata.resource_version.unwrap_or_default();
    if version.parse::<u64>().is_ok_and(|version| version < newest) {
        let version = brief(&version);
        return Err(format!(
            "the server answered from resourceVersion {version}, and had been at {newest}"
        ));
    }
    let is_it = |metadata: &ObjectMeta| metadata.uid.as_deref() == Some(uid);
    Ok(list.items.iter().any(|item| is_it(&item.metadata)))
}

/// Copies the server's state into `Known`.
struct Reflector {
    access: Access,
    known: Known,
    /// The pods listed so far.
    listed: Pods,
    unread: Unread,
    is_failing: bool,
}

impl Reflector {
    fn apply(&mut self, event: Event<MetadataOf<api::Pod>>) -> Result<(), TooMuch> {
        match event {
            Event::Listing => self.listed = Pods::default(),
            Event::Listed(pod) => {
                if let Some((name, pod)) = read(pod.metadata) {
                    self.listed.insert(name, pod)?;
                }
            }
            Event::AllListed(version) => {
                let pods = std::mem::take(&mut self.listed);
                tracing::debug!(pods = pods.len(), version, "listed this node's pods");
                self.known.came_to(&version);
                self.known.replace(pods);
                self.known.answered();
                self.works();
            }
            Event::Watching => self.works(),
            Event::Applied(pod) => {
                let version = pod.metadata.resource_version.clone();
                if let Some((name, pod)) = read(pod.metadata) {
                    self.known.apply(name, pod)?;
                }
                self.answered(&version);
            }
            Event::Deleted(pod) => {
                if let Some(name) = name(&pod) {
                    self.known.delete(&name);
                }
                self.answered(&pod.resource_version);
            }
            Event::Bookmark(version) => self.answered(&version),
            Event::Unreadable(pod) => {
                let version = pod.object.resource_version.clone();
                if let Some(name) = name(&pod.object)
                    && let Lookup::Pod(known) = self.known.see(&name)
                {
                    self.listed.insert(name, Pod::clone(&known))?;
                }
                self.unread.report(pod);
                self.answered(&version);
            }
            Event::Failed(failure) => self.failed(failure.to_string()),
        }
        Ok(())
    }

    fn answered(&self, version: &str) {
        self.known.answered();
        self.known.came_to(version);
    }

    fn works(&mut self) {
        if self.is_failing {
            tracing::info!(server = %self.access, "this node's pods are watched again");
        }
        self.is_failing = false;
        self.known.recovered();
    }

    /// Logged once per outage; the error of every ADD that fails because of it gives the reason.
    fn failed(&mut self, problem: String) {
        if !self.is_failing {
            tracing::warn!(server = %self.access, error = problem, "can't watch this node's pods");
        }
        self.is_failing = true;
        self.known.fails(problem);
    }
}

/// The part of a pod's metadata that is kept.
fn read(metadata: Metadata) -> Option<(PodName, Pod)> {
    let name = name(&Reference::from(&metadata))?;
    let uid = Some(metadata.uid).filter(|uid| !uid.is_empty());
    Some((name, Pod::new(uid, metadata.annotations)))
}

fn name(pod: &Reference) -> Option<PodName> {
    let Reference {
        namespace, name, ..
    } = pod;
    let is_named = !namespace.is_empty() && !name.is_empty();
    is_named.then(|| PodName {
        namespace: namespace.clone(),
        name: name.clone(),
    })
}

#[cfg(test)]
mod tests;
