//! How long changes take, stage by stage: the controller, from the event of an object's watch until
//! the northbound database has what it causes; then, of new pods alone, ovn-northd, from the commit
//! of a pod's row until the southbound database has its `Port_Binding`; and its node, from the
//! claim of ovn-controller until the flows are installed (`up`).
//!
//! Those of OVN come from ordinary changes alone. `nb_cfg` would tell as much for a full run of
//! ovn-northd on OVN 23.03 and a write of each chassis.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use podwire_ovs::value::Uuid;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How many of the last pods the percentiles are of.
const LAST: usize = 100;

/// In seconds.
const BUCKETS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// A pod that waits so long is told of: few pods may wait longer by podwire's objective.
pub(crate) const LATE: Duration = Duration::from_secs(10);

/// By the kind of the changed object.
pub(crate) type ByKind = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// The delays of a controller's terms; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delays {
    inner: Arc<Mutex<Inner>>,
    /// A chassis has claimed a port.
    claimed: Arc<Notify>,
}

#[derive(Debug)]
struct Inner {
    /// Of the controller, in seconds.
    programming: ByKind,
    /// Ports whose rows are committed and not yet in the southbound database.
    committed: HashMap<SmolStr, Wait>,
    /// Ports that are there and not up.
    bound: HashMap<Uuid, Bound>,
    northd: Series,
    nodes: Series,
}

#[derive(Debug)]
struct Bound {
    port: SmolStr,
    /// Since a chassis was first seen to have claimed it.
    claimed: Option<Wait>,
}

/// That something is waited for.
#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    /// Whether [`Delays::late`] has told it.
    is_told: bool,
}

/// Who is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Northd,
    Node,
}

/// One kind of delay.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// All of them, in seconds.
    pub(crate) all: Histogram,
    last: VecDeque<Duration>,
}

/// What is told of the delays, in the leader's Lease and by `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DelayReport {
    /// From a row's commit until the southbound database has its port.
    pub(crate) northd: Option<Last>,
    /// From the claim of ovn-controller until it has installed the flows.
    pub(crate) nodes: Option<Last>,
    /// Pods that wait for ovn-northd now.
    pub(crate) waiting: usize,
    /// How long the first of them has waited, in milliseconds.
    pub(crate) longest_ms: u64,
}

/// The last delays of a kind, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Last {
    /// How many: at most [`LAST`].
    pub(crate) pods: usize,
    pub(crate) p50_ms: u64,
    pub(crate) p99_ms: u64,
}

/// A port in the southbound database that is not up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnboundPort<'a> {
    pub(crate) port: &'a str,
    /// A chassis has claimed it.
    pub(crate) claimed: bool,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            programming: Family::new_with_constructor(histogram),
            committed: HashMap::new(),
            bound: HashMap::new(),
            northd: Series::default(),
            nodes: Series::default(),
        }
    }
}

impl Default for Series {
    fn default() -> Self {
        Self {
            all: histogram(),
            last: VecDeque::with_capacity(LAST),
        }
    }
}

impl Wait {
    fn new(since: Instant) -> Self {
        Self {
            since,
            is_told: false,
        }
    }

    /// Whether it is to be told now; if it will be, when.
    fn is_late(&mut self, at: Instant, next: &mut Option<Instant>) -> bool {
        let late = self.since + LATE;
        if self.is_told {
            return false;
        }
        self.is_told = late <= at;
        if !self.is_told {
            *next = next.map_or(Some(late), |next| Some(next.min(late)));
        }
        self.is_told
    }
}

impl Series {
    fn record(&mut self, delay: Duration) {
        self.all.observe(delay.as_secs_f64());
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(delay);
    }

    fn last(&self) -> Option<Last> {
        let mut sorted: Vec<_> = self.last.iter().map(|it| millis(*it)).collect();
        sorted.sort_unstable();
        // By nearest rank.
        let percentile = |part: usize| sorted.get((sorted.len() * part).div_ceil(100) - 1).copied();
        (!sorted.is_empty()).then(|| Last {
            pods: sorted.len(),
            p50_ms: percentile(50).unwrap_or_default(),
            p99_ms: percentile(99).unwrap_or_default(),
        })
    }
}

impl Delays {
    /// Everything that changes cause was committed at this time: of a kind each, reported then.
    pub(crate) fn programmed(&self, changes: Vec<(&'static str, Instant)>, at: Instant) {
        let inner = self.lock();
        for (kind, reported) in changes {
            let took = at.saturating_duration_since(reported);
            let of_kind = inner.programming.get_or_create(&[("kind", kind)]);
            of_kind.observe(took.as_secs_f64());
        }
    }

    /// A pod's row was committed.
    pub(crate) fn committed(&self, port: &str, at: Instant) {
        self.lock().committed.insert(port.into(), Wait::new(at));
    }

    /// What the southbound database shows in a row now: a port that is not up, or, with None, that
    /// the port is up or gone. `exists` tells whether a port still has its row in the northbound
    /// database.
    pub(crate) fn observe(
        &self,
        row: Uuid,
        seen: Option<UnboundPort<'_>>,
        at: Instant,
        exists: impl Fn(&str) -> bool,
    ) {
        let mut inner = self.lock();
        let Inner {
            committed,
            bound,
            northd,
            nodes,
            ..
        } = &mut *inner;
        let Some(seen) = seen else {
            if let Some(Bound {
                port,
                claimed: Some(claimed),
            }) = bound.remove(&row)
                && exists(&port)
            {
                nodes.record(at.saturating_duration_since(claimed.since));
            }
            return;
        };
        if let Some(wait) = committed.remove(seen.port) {
            northd.record(at.saturating_duration_since(wait.since));
            let port = seen.port.into();
            bound.insert(
                row,
                Bound {
                    port,
                    claimed: None,
                },
            );
        }
        if let Some(bound) = bound.get_mut(&row).filter(|_| seen.claimed)
            && bound.claimed.is_none()
        {
            bound.claimed = Some(Wait::new(at));
            self.claimed.notify_one();
        }
    }

    /// Waits until a chassis has claimed a port since the last call: what [`Delays::late`] said of
    /// the time to ask again is old.
    pub(crate) async fn claimed(&self) {
        self.claimed.notified().await;
    }

    /// Ports that have waited for [`LATE`], each once, and when to ask again.
    pub(crate) fn late(&self, at: Instant) -> (Vec<(SmolStr, Stage)>, Option<Instant>) {
        let (mut late, mut next) = (Vec::new(), None);
        let mut inner = self.lock();
        for (port, wait) in &mut inner.committed {
            if wait.is_late(at, &mut next) {
                late.push((port.clone(), Stage::Northd));
            }
        }
        for Bound { port, claimed } in inner.bound.values_mut() {
            if claimed
                .as_mut()
                .is_some_and(|wait| wait.is_late(at, &mut next))
            {
                late.push((port.clone(), Stage::Node));
            }
        }
        (late, next)
    }

    /// Forgets the ports that wait and no longer exist.
    pub(crate) fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.lock().committed.retain(|port, _| exists(port));
    }

    /// Forgets what is under way: the southbound database can't be read, or the term has ended.
    pub(crate) fn forget(&self) {
        let mut inner = self.lock();
        inner.committed.clear();
        inner.bound.clear();
    }

    pub(crate) fn report(&self) -> DelayReport {
        let inner = self.lock();
        let first = inner.committed.values().map(|wait| wait.since).min();
        DelayReport {
            northd: inner.northd.last(),
            nodes: inner.nodes.last(),
            waiting: inner.committed.len(),
            longest_ms: first.map_or(0, |first| millis(first.elapsed())),
        }
    }

    /// All delays of the controller.
    pub(crate) fn programming(&self) -> ByKind {
        self.lock().programming.clone()
    }

    /// All delays, of ovn-northd and of the nodes.
    pub(crate) fn series(&self) -> [Histogram; 2] {
        let inner = self.lock();
        [inner.northd.all.clone(), inner.nodes.all.clone()]
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is one insertion or removal, so a panic leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
