//! The changes of the objects of one kind, as its watch tells them: after a break it lists again,
//! and what is missing then is gone.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::object::{Object, Reference, Unreadable};
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
    pub unreadable: Option<fn(N, &Unreadable) -> C>,
    /// Follows once, when all objects have been sent.
    pub listed: C,
    /// Follows once, when the server turns out not to have the kind, if that is no failure.
    pub absent: Option<C>,
}

/// How often a server without a kind is asked for it again.
const ABSENT: Duration = Duration::from_secs(60);

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
        let is_optional = self.absent.is_some();
        let mut absent = self.absent;
        let mut known: HashSet<N> = HashSet::new();
        let mut missing: HashSet<N> = HashSet::new();
        let mut unreadable: HashSet<N> = HashSet::new();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let (mut found, mut pause) = (Vec::new(), Duration::ZERO);
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
                        found.extend(self.unreadable.map(|change| change(name, &what)));
                        unread.report(what);
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
                Event::Failed(failure) if is_optional && failure.is_missing() => {
                    if let Some(change) = absent.take() {
                        let (kind, api) = (K::KIND, K::API);
                        info!(
                            kind,
                            api, "the API server does not have this kind; it may come"
                        );
                        found.push(change);
                    }
                    pause = ABSENT;
                }
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
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::iter;
    use tokio::time::Instant;

    use super::*;
    use crate::object::Metadata;
    use crate::watch::Failure;

    #[derive(Debug, serde::Deserialize)]
    struct Custom {
        metadata: Metadata,
    }

    impl Object for Custom {
        const API: &'static str = "example.com/v1";
        const KIND: &'static str = "Custom";
        const PLURAL: &'static str = "customs";

        fn metadata(&self) -> &Metadata {
            &self.metadata
        }
    }

    fn follow(is_optional: bool) -> Follow<Custom, String, (), &'static str> {
        Follow {
            name: |object| object.name.clone(),
            reduce: |_| Some(()),
            change: |_, object| if object.is_some() { "there" } else { "gone" },
            unreadable: None,
            listed: "listed",
            absent: is_optional.then_some("absent"),
        }
    }

    fn missing() -> Event<Custom> {
        Event::Failed(Failure::refused("refused the request", 404, "NotFound", ""))
    }

    fn object() -> Custom {
        let metadata = Metadata {
            name: "one".to_owned(),
            ..Metadata::default()
        };
        Custom { metadata }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_the_server_lacks_is_told_once_asked_for_rarely_and_followed_when_it_comes()
    {
        let (sender, mut changes) = mpsc::channel(16);
        let come = [
            Event::Listing,
            Event::Listed(object()),
            Event::AllListed("7".to_owned()),
        ];
        let events = iter((0..10).map(|_| missing()).chain(come));
        let began = Instant::now();
        follow(true).run(events, sender, Unread::default()).await;
        let mut told = Vec::new();
        while let Some(change) = changes.recv().await {
            told.push(change);
        }
        assert_eq!(told, ["absent", "there", "listed"]);
        assert_eq!(began.elapsed(), 10 * ABSENT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_every_server_has_is_not_absent_while_the_server_starts() {
        let (sender, mut changes) = mpsc::channel(16);
        follow(false)
            .run(iter([missing(), missing()]), sender, Unread::default())
            .await;
        assert_eq!(changes.recv().await, None);
    }
}
