//! The namespace of `kubectl podwire connectivity`, and what is in it: made, waited for, removed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::iter;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::objects::{self, End};
use super::{AT_ONCE, Ends};
use crate::kubectl::Failure;
use crate::kubectl::exec::{Cluster, said};

/// The age at which another test's namespace was left behind, in seconds.
const LEFT_BEHIND: i64 = 900;
/// How long what was made has to be accepted for removal.
const REMOVAL: Duration = Duration::from_secs(10);

/// The API of a kind, in the test's namespace.
pub(super) fn api<K>(test: &Cluster) -> Api<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(test.client.clone(), &test.namespace)
}

async fn create<K>(test: &Cluster, api: &Api<K>, object: Value) -> Result<(), Failure>
where
    K: Clone + DeserializeOwned + Serialize + Debug,
{
    let object = serde_json::from_value(object);
    let object: K = object.map_err(|error| Failure::Unknown(error.to_string()))?;
    let how = PostParams::default();
    test.answered(api.create(&how, &object)).await.map(drop)
}

/// Makes the namespace.
///
/// # Errors
/// The API server's. It may be there all the same, if there was no answer.
pub(super) async fn make_namespace(test: &Cluster) -> Result<(), Failure> {
    let namespaces: Api<Namespace> = Api::all(test.client.clone());
    create(test, &namespaces, objects::namespace(&test.namespace)).await
}

/// Makes what is in it.
///
/// # Errors
/// The API server's.
pub(super) async fn make(
    test: &Cluster,
    ends: &[End],
    image: &str,
    has_policies: bool,
) -> Result<(), Failure> {
    create(test, &api::<ServiceAccount>(test), objects::account()).await?;
    if has_policies {
        create(test, &api::<NetworkPolicy>(test), objects::policy()).await?;
    }
    create(test, &api::<Service>(test), objects::service()).await?;
    let pods = api::<Pod>(test);
    let made = ends
        .iter()
        .map(|end| create(test, &pods, end.object(image)));
    let made: Vec<Result<(), Failure>> = iter(made).buffered(AT_ONCE).collect().await;
    made.into_iter().collect()
}

/// Waits until all ends run, for so long; with those that do not then, and why.
pub(super) async fn running(
    test: &Cluster,
    wanted: Vec<End>,
    seconds: u16,
) -> Result<(Ends, Vec<String>), Failure> {
    let pods = api::<Pod>(test);
    let mut missing: BTreeMap<String, End> = wanted
        .into_iter()
        .map(|end| (end.name.clone(), end))
        .collect();
    let mut ends = Ends::new();
    let mut why = BTreeMap::new();
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    let late = |missing: &BTreeMap<String, End>, why: &BTreeMap<String, String>| {
        let waiting = missing.values().map(|end| {
            let why = why
                .get(&end.name)
                .map_or("no kubelet has seen it", String::as_str);
            let (node, name) = (&end.node, &end.name);
            format!("node {node}: {name} not running in {seconds} s, half of --deadline: {why}")
        });
        waiting.collect::<Vec<_>>()
    };
    while !missing.is_empty() {
        let watch = WatchParams::default().timeout(60);
        let events = test.answered(pods.watch(&watch, "0")).await?;
        let mut events = std::pin::pin!(events);
        while !missing.is_empty() {
            let Ok(event) = timeout_at(deadline, events.next()).await else {
                return Ok((ends, late(&missing, &why)));
            };
            let pod = match event {
                None => break,
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => pod,
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    return Err(Failure::Server {
                        server: test.server.clone(),
                        problem: said(&error),
                    });
                }
            };
            let name = pod.metadata.name.clone().unwrap_or_default();
            let addresses = objects::addresses(&pod).map_err(Failure::Unknown)?;
            if addresses.is_empty() {
                why.insert(name, objects::waits(&pod));
            } else if let Some(end) = missing.remove(&name) {
                ends.insert(name, (end, addresses));
            }
        }
    }
    Ok((ends, Vec::new()))
}

/// Removes the test's namespace, and with it everything in it.
pub(super) async fn remove(test: &Cluster) -> Result<(), Failure> {
    let namespaces: Api<Namespace> = Api::all(test.client.clone());
    let how = DeleteParams::default();
    let removal = namespaces.delete(&test.namespace, &how);
    let removed = tokio::time::timeout(REMOVAL, removal).await;
    let problem = match removed {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Ok(()),
        Ok(Err(error)) => said(&error),
        Err(_) => format!("no answer within {} s", REMOVAL.as_secs()),
    };
    let namespace = &test.namespace;
    let what = format!("{problem}; remove what is left by kubectl delete namespace {namespace}");
    Err(Failure::Unknown(what))
}

/// Removes namespaces of tests that were killed.
pub(super) async fn remove_left_behind(cluster: &Cluster, now: i64) -> Result<(), Failure> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let label = format!("app.kubernetes.io/name={}", objects::LABEL);
    let (wanted, how) = (
        ListParams::default().labels(&label),
        DeleteParams::default(),
    );
    for namespace in cluster.answered(namespaces.list(&wanted)).await? {
        let metadata = namespace.metadata;
        let labels = metadata.labels.unwrap_or_default();
        let is_own = labels
            .get("app.kubernetes.io/name")
            .is_some_and(|it| it == objects::LABEL);
        let made = metadata.creation_timestamp.map(|it| it.0.as_second());
        let name = metadata.name.unwrap_or_default();
        if is_own && made.is_some_and(|made| now - made > LEFT_BEHIND) {
            cluster.answered(namespaces.delete(&name, &how)).await?;
        }
    }
    Ok(())
}
