//! Follows the objects. Each kind's watch lists, then receives changes; after an interruption it
//! lists again, and what is missing then is gone.

use futures_util::Stream;
use podwire_apiserver::object::{Object, Reference};
use podwire_apiserver::watch::{Event, Selection, Watch};
use podwire_apiserver::{Access, Follow, Unread};
use podwire_cluster::{api, endpoint_slices};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::{Key, Name, Node, ObjectName, Pod, Service, Slice};

/// A relevant change of an object; `None` if it is gone, or no longer relevant.
#[derive(Debug)]
pub(crate) enum Change {
    Node(Name, Option<Node>),
    Pod(ObjectName, Option<Pod>),
    Service(ObjectName, Option<Service>),
    /// With the name of its service.
    Slice(ObjectName, Option<(Name, Slice)>),
    /// It can't be read, and must stay as it is.
    Unreadable(Key),
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
pub(crate) fn start(server: &Access, unread: &Unread) -> (mpsc::Receiver<Change>, JoinSet<()>) {
    let (sender, changes) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    let nodes = Follow {
        name: |node| node.name.as_str().into(),
        reduce: |node| Some(Node::from(node)),
        change: Change::Node,
        unreadable: Some(|name| Change::Unreadable(Key::Node(name))),
        listed: Change::Listed,
    };
    tasks.spawn(nodes.run(all::<api::Node>(server), sender.clone(), unread.clone()));
    let pods = Follow {
        name: namespaced,
        reduce: Pod::of,
        change: Change::Pod,
        unreadable: Some(|(namespace, name)| Change::Unreadable(Key::Pod(namespace, name))),
        listed: Change::Listed,
    };
    tasks.spawn(pods.run(all(server), sender.clone(), unread.clone()));
    let services = Follow {
        name: namespaced,
        reduce: Service::of,
        change: Change::Service,
        unreadable: Some(|(namespace, name)| Change::Unreadable(Key::Service(namespace, name))),
        listed: Change::Listed,
    };
    tasks.spawn(services.run(all(server), sender.clone(), unread.clone()));
    let slices = Follow {
        name: namespaced,
        reduce: Slice::of,
        change: Change::Slice,
        unreadable: None,
        listed: Change::Listed,
    };
    tasks.spawn(slices.run(endpoint_slices(server.clone()), sender, unread.clone()));
    (changes, tasks)
}

fn namespaced(object: &Reference) -> ObjectName {
    (
        object.namespace.as_str().into(),
        object.name.as_str().into(),
    )
}

fn all<K: Object>(server: &Access) -> impl Stream<Item = Event<K>> + use<K> {
    let selection = Selection {
        page: PAGE,
        ..Selection::default()
    };
    Watch::new(server.clone(), selection).into_stream()
}
