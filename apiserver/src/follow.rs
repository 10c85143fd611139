//! The changes of the objects of one kind, as its watch tells them: after a break it lists again,
//! and what is missing then is gone.

use std::collections::HashSet;
use std::hash::Hash;

use futures_util::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tracing::warn;

use crate::object::{Object, Reference};
use crate::unread::Unread;
use crate::watch::Event;

/// How a kind's objects become changes.
pub struct Follow<K, N, V, C> {
    /// An object's name.
    pub name: fn(&Reference) -> N,
    /// What is needed of it; None if nothing is.
    pub reduce: fn(&K) -> Option<V>,
    /// The change: without an object when it is gone, or no longer of interest.
    pub change: fn(N, Option<V>) -> C,
    /// The change when it can't be read any more, for whoever needs to know.
    pub unreadable: Option<fn(N) -> C>,
    /// Follows once, when all objects have been sent.
    pub listed: C,
}

impl<K: Object, N: Clone + Eq + Hash, V, C> Follow<K, N, V, C> {
    /// Sends each change of an object until nobody takes them. An object that can't be read is
    /// reported, and stays what it was.
    pub async fn run(
        self,
        events: impl Stream<Item = Event<K>>,
        changes: mpsc::Sender<C>,
        unread: Unread,
    ) {
        let mut listed = Some(self.listed);
        let mut known: HashSet<N> = HashSet::new();
        let mut missing: HashSet<N> = HashSet::new();
        let mut unreadable: HashSet<N> = HashSet::new();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let mut found = Vec::new();
            match event {
                Event::Listed(object) | Event::Applied(object) => {
                    let name = (self.name)(&object.metadata().into());
                    let object = (self.reduce)(&object);
                    missing.remove(&name);
                    let was_known = unreadable.remove(&name) | known.remove(&name);
                    if object.is_some() {
                        known.insert(name.clone());
                    }
                    if was_known || object.is_some() {
                        found.push((self.change)(name, object));
                    }
                }
                Event::Unreadable(what) => {
                    let name = (self.name)(&what.object);
                    missing.remove(&name);
                    if unreadable.insert(name.clone()) {
                        unread.report(what);
                        found.extend(self.unreadable.map(|change| change(name)));
                    }
                }
                Event::Deleted(object) => {
                    let name = (self.name)(&object);
                    if known.remove(&name) | unreadable.remove(&name) {
                        found.push((self.change)(name, None));
                    }
                }
                Event::Listing => missing.extend(known.union(&unreadable).cloned()),
                Event::AllListed(_) => {
                    for name in missing.drain() {
                        known.remove(&name);
                        unreadable.remove(&name);
                        found.push((self.change)(name, None));
                    }
                    found.extend(listed.take());
                }
                Event::Watching | Event::Bookmark(_) => {}
                Event::Failed(failure) => {
                    let kind = K::KIND;
                    warn!(kind, error = %failure, "the watch broke; it starts again");
                }
            }
            unread.count(K::KIND, unreadable.len());
            for one in found {
                if changes.send(one).await.is_err() {
                    return;
                }
            }
        }
    }
}
