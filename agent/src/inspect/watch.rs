//! The ports as they change: the first message has all ports that the filter admits, each later one
//! those that are new, changed or gone.
//!
//! A message is sent only when the replica or a host link has changed. Bursts are combined, because
//! a person can't read more than a few updates a second and the agent has better things to do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use hyper::body::{Bytes, Frame};
use podwire_ovs::client::Version;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::ports::ports_after;
use super::{Filter, PortView};
use crate::attach::Handles;

/// The number of concurrent watchers.
const MOST_WATCHERS: usize = 8;
/// The shortest time between two messages to one watcher.
const PICTURE: Duration = Duration::from_millis(100);

/// One line of `GET /v1/ports?watch=1`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Whether the agent's replica of Open vSwitch's database is current.
    pub current: bool,
    /// New or changed ports.
    pub changed: Vec<PortView>,
    /// Names of ports that are gone, or that the filter no longer admits.
    pub removed: Vec<String>,
}

/// The limit on watchers.
#[derive(Debug, Clone)]
pub struct Watchers(Arc<Semaphore>);

impl Default for Watchers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST_WATCHERS)))
    }
}

impl Watchers {
    /// A slot; None if all are taken.
    pub fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

static NONE: BTreeMap<String, PortView> = BTreeMap::new();

struct Watching {
    node: Arc<Handles>,
    filter: Filter,
    versions: watch::Receiver<Version>,
    links: watch::Receiver<()>,
    stop: CancellationToken,
    shown: Option<(bool, BTreeMap<String, PortView>)>,
    _place: OwnedSemaphorePermit,
}

/// The changes, one JSON object per line, until the agent stops.
pub fn changes(
    node: Arc<Handles>,
    filter: Filter,
    stop: CancellationToken,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let (versions, links) = (node.ports.subscribe(), node.netlink.link_changes());
    let watching = Watching {
        node,
        filter,
        versions,
        links,
        stop,
        shown: None,
        _place: place,
    };
    unfold(watching, async |mut watching| {
        let change = watching.next().await?;
        let mut line = serde_json::to_vec(&change).unwrap_or_default();
        line.push(b'\n');
        Some((Ok(Frame::data(line.into())), watching))
    })
}

impl Watching {
    async fn next(&mut self) -> Option<Change> {
        let is_first = self.shown.is_none();
        loop {
            if !is_first {
                let pause_and_change = async {
                    tokio::time::sleep(PICTURE).await;
                    tokio::select! {
                        changed = self.versions.changed() => changed,
                        changed = self.links.changed() => changed,
                    }
                };
                tokio::select! {
                    changed = pause_and_change => changed.ok()?,
                    () = self.stop.cancelled() => return None,
                }
            }
            self.versions.mark_unchanged();
            self.links.mark_unchanged();
            let (current, _) = self.node.ports.connection();
            let before = self.shown.take();
            let known = before.as_ref().map_or(&NONE, |(_, ports)| ports);
            let seen = match ports_after(&self.node, &self.filter, known).await {
                Ok(seen) => seen,
                Err(error) => {
                    tracing::warn!(%error, "the watch of the ports has ended");
                    return None;
                }
            };
            let now: BTreeMap<String, PortView> = seen
                .ports
                .into_iter()
                .map(|port| (port.name.clone(), port))
                .collect();
            self.shown = Some((current, now.clone()));
            let (was_current, before) = before.unwrap_or_default();
            let change = difference(current, &before, now);
            let says_nothing = change.changed.is_empty() && change.removed.is_empty();
            if is_first || !says_nothing || was_current != current {
                return Some(change);
            }
        }
    }
}

fn difference(
    current: bool,
    before: &BTreeMap<String, PortView>,
    now: BTreeMap<String, PortView>,
) -> Change {
    let removed = before.keys().filter(|name| !now.contains_key(*name));
    Change {
        current,
        removed: removed.cloned().collect(),
        changed: now
            .into_values()
            .filter(|port| before.get(&port.name) != Some(port))
            .collect(),
    }
}
