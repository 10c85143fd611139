//! The changes of the objects of one kind, as its watch tells them: after a break it lists again,
//! and what is missing then is gone.

use std::collections::HashSet;
use std::hash::Hash;

use futures_util::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tracing::warn;

use crate::watch::Event;

/// Sends each change of an object, by its name, until nobody takes them; without an object when it
/// is gone, or no longer of interest. `listed` follows once, when all objects have been sent.
pub async fn follow<K, N, V, C>(
    events: impl Stream<Item = Event<K>>,
    changes: mpsc::Sender<C>,
    name: fn(&K) -> N,
    reduce: fn(&K) -> Option<V>,
    change: fn(N, Option<V>) -> C,
    listed: C,
) where
    N: Clone + Eq + Hash,
{
    let mut known: HashSet<N> = HashSet::new();
    let mut missing: HashSet<N> = HashSet::new();
    let mut listed = Some(listed);
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let mut found = Vec::new();
        match event {
            Event::Listed(object) | Event::Applied(object) => {
                let (name, object) = (name(&object), reduce(&object));
                missing.remove(&name);
                let is_known = match object {
                    Some(_) => !known.insert(name.clone()),
                    None => known.remove(&name),
                };
                if is_known || object.is_some() {
                    found.push(change(name, object));
                }
            }
            Event::Deleted(object) => {
                let name = name(&object);
                if known.remove(&name) {
                    found.push(change(name, None));
                }
            }
            Event::Listing => missing.clone_from(&known),
            Event::AllListed(_) => {
                for name in missing.drain() {
                    known.remove(&name);
                    found.push(change(name, None));
                }
                found.extend(listed.take());
            }
            Event::Watching | Event::Bookmark(_) => {}
            Event::Failed(failure) => {
                let kind = std::any::type_name::<K>().rsplit("::").next();
                warn!(kind, error = %failure, "the watch broke; it starts again");
            }
        }
        for one in found {
            if changes.send(one).await.is_err() {
                return;
            }
        }
    }
}
