//! Follows the objects. Each kind's watch lists, then receives changes; after an interruption it
//! lists again, and what is missing then is gone.

use std::fmt::Debug;

use futures_util::Stream;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod as ApiPod, Service as ApiService};
use kube::{Client, Resource};
use podwire_apiserver::follow;
use podwire_apiserver::watch::{Event, Selection, Watch};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::{Name, Node, ObjectName, Pod, Service, Slice};

/// A relevant change of an object; `None` if it is gone, or no longer relevant.
#[derive(Debug)]
pub(crate) enum Change {
    Node(Name, Option<Node>),
    Pod(ObjectName, Option<Pod>),
    Service(ObjectName, Option<Service>),
    Slice((Name, Name, Name), Option<Slice>),
    /// One more kind has been listed.
    Listed,
}

/// Number of kinds.
pub(crate) const KINDS: usize = 4;

/// The number of queued changes.
const QUEUE: usize = 4096;
/// Objects per page of a list.
const PAGE: u32 = 500;

/// Follows all kinds until the set of tasks is dropped.
pub(crate) fn start(client: &Client) -> (mpsc::Receiver<Change>, JoinSet<()>) {
    let (sender, changes) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow(
        all::<ApiNode>(client),
        sender.clone(),
        name_of,
        |node| Some(Node::from(node)),
        Change::Node,
        Change::Listed,
    ));
    tasks.spawn(follow(
        all::<ApiPod>(client),
        sender.clone(),
        namespaced,
        Pod::of,
        Change::Pod,
        Change::Listed,
    ));
    tasks.spawn(follow(
        all::<ApiService>(client),
        sender.clone(),
        namespaced,
        Service::of,
        Change::Service,
        Change::Listed,
    ));
    tasks.spawn(follow(
        podwire_apiserver::endpoint_slices(client.clone()),
        sender,
        |slice| {
            let service = Slice::of(slice).map(|slice| slice.service);
            let (namespace, name) = namespaced(slice);
            (namespace, service.unwrap_or_default(), name)
        },
        Slice::of,
        Change::Slice,
        Change::Listed,
    ));
    (changes, tasks)
}

fn name_of<K: Resource>(object: &K) -> Name {
    object.meta().name.as_deref().unwrap_or_default().into()
}

fn namespaced<K: Resource>(object: &K) -> ObjectName {
    let namespace = object.meta().namespace.as_deref();
    (namespace.unwrap_or_default().into(), name_of(object))
}

fn all<K>(client: &Client) -> impl Stream<Item = Event<K>> + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let selection = Selection {
        page: PAGE,
        ..Selection::default()
    };
    Watch::new(client.clone(), selection).into_stream()
}
