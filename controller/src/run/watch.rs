//! Follows the objects. Each kind's watch lists, then receives changes; after an interruption it
//! lists again, and what is missing then is gone.

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt as _};
use podwire_apiserver::object::{Object, Reference, Unreadable};
use podwire_apiserver::watch::{Event, Selection, Watch};
use podwire_apiserver::{Access, Follow, Unread};
use podwire_cluster::ObjectName;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::State;
use crate::key::{Key, Of};

/// What the watches tell.
pub(crate) enum Change {
    /// An object changed, or is gone: when that was reported, and what it means for the state.
    Object(Instant, Box<dyn FnOnce(&mut State) + Send>),
    /// The object of this key can't be read, and its rows must stay as they are.
    Unreadable(Key),
    /// More is known of a kind, by its number in the list.
    Kind(usize, ListState),
}

/// What is known of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListState {
    /// Not all of its objects.
    #[default]
    Listing,
    /// All of them.
    Listed,
    /// The API server does not have the kind, and so no objects.
    Absent,
}

/// How a kind of objects is followed: `K` are the API's objects, `V` what is kept of them.
pub(crate) struct Followed<K, N, V> {
    /// The events of a server.
    pub(crate) events: fn(&Access) -> BoxStream<'static, Event<K>>,
    /// An object's name.
    pub(crate) name: fn(&Reference) -> N,
    /// The relevant part of an object; `None` if it has none.
    pub(crate) reduce: fn(&K) -> Option<V>,
    /// The change of an object; without a part, it is gone, or no longer relevant.
    pub(crate) change: fn(N, Option<V>) -> Change,
    /// An object that can't be read, if its rows must stay as they are.
    pub(crate) unreadable: Option<fn(N, &Unreadable) -> Change>,
    /// The keys that can't be processed before the kind is listed: what depends on its objects.
    pub(crate) holds: &'static [Of],
    /// Whether API servers without this kind are served, too: a custom resource. Any other kind
    /// that is not there comes later, with the rest of a server that starts.
    pub(crate) is_optional: bool,
}

/// A kind of objects that is followed.
pub(crate) trait Kind: Sync {
    /// Its name in the API.
    fn kind(&self) -> &'static str;

    /// See [`Followed::holds`].
    fn holds(&self) -> &'static [Of];

    /// Sends the changes as long as somebody takes them.
    fn follow(
        &self,
        number: usize,
        server: &Access,
        sender: mpsc::Sender<Change>,
        unread: Unread,
    ) -> BoxFuture<'static, ()>;
}

impl<K, N, V> Kind for Followed<K, N, V>
where
    K: Object,
    N: Clone + Eq + std::hash::Hash + Send + 'static,
    V: Send + 'static,
{
    fn kind(&self) -> &'static str {
        K::KIND
    }

    fn holds(&self) -> &'static [Of] {
        self.holds
    }

    fn follow(
        &self,
        number: usize,
        server: &Access,
        sender: mpsc::Sender<Change>,
        unread: Unread,
    ) -> BoxFuture<'static, ()> {
        let absent = Change::Kind(number, ListState::Absent);
        let follow = Follow {
            name: self.name,
            reduce: self.reduce,
            change: self.change,
            unreadable: self.unreadable,
            listed: Change::Kind(number, ListState::Listed),
            absent: self.is_optional.then_some(absent),
        };
        Box::pin(follow.run((self.events)(server), sender, unread))
    }
}

/// The number of queued changes.
const QUEUE: usize = 4096;
/// Objects per page of a list.
const PAGE: u32 = 500;

/// Follows these kinds until the set of tasks is dropped.
pub(crate) fn start(
    kinds: &[&dyn Kind],
    server: &Access,
    unread: &Unread,
) -> (mpsc::Receiver<Change>, JoinSet<()>) {
    let (sender, changes) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    for (number, kind) in kinds.iter().enumerate() {
        tasks.spawn(kind.follow(number, server, sender.clone(), unread.clone()));
    }
    (changes, tasks)
}

/// The name of an object in a namespace.
pub(super) fn namespaced(object: &Reference) -> ObjectName {
    (
        object.namespace.as_str().into(),
        object.name.as_str().into(),
    )
}

/// All objects of a kind.
pub(super) fn all<K: Object>(server: &Access) -> BoxStream<'static, Event<K>> {
    let selection = Selection {
        page: PAGE,
        ..Selection::default()
    };
    Watch::new(server.clone(), selection).into_stream().boxed()
}
