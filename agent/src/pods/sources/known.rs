//! The pods that a watched source knows: the watch writes them, and ADDs read them and wait for
//! them.
//!
//! Only what podwire reads of a pod is kept, a few hundred bytes: an API server sends all metadata,
//! and managedFields alone may be several KB.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Annotations;
use super::pods::{Pods, TooMuch};
use crate::plan::PodRef;

/// A pod's name in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PodName {
    /// The name of the pod that a runtime means; without a namespace (podman) it is in the default
    /// one.
    pub fn of(pod: &PodRef) -> Self {
        Self {
            namespace: pod.namespace.clone().unwrap_or_else(|| "default".into()),
            name: pod.name.clone(),
        }
    }

    /// Reads what [`PodName`] displays.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Some(Self { namespace, name })
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is known about a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its uid; a manifest may lack it.
    pub uid: Option<String>,
    /// Whether it is the mirror of a static pod, for which a runtime has another uid.
    pub is_mirror: bool,
    /// Those of its annotations that podwire reads.
    pub annotations: Annotations,
}

/// The annotations by which kubelet marks a mirror pod (kubelet/types/pod_update.go).
const MIRROR_MARKS: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

impl Pod {
    /// A pod with all these annotations.
    pub fn new(
        uid: Option<String>,
        annotations: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let mut pod = Self {
            uid,
            ..Self::default()
        };
        for (name, value) in annotations {
            pod.is_mirror |= MIRROR_MARKS.contains(&name.as_str());
            if crate::pods::READ.contains(&name.as_str()) {
                pod.annotations.insert(name, value);
            }
        }
        pod
    }

    /// Whether a runtime that passes `uid`, or none, means this pod.
    pub(super) fn is_meant_by(&self, uid: Option<&str>) -> bool {
        match (uid, &self.uid) {
            (Some(said), Some(own)) => said == own || self.is_mirror,
            _ => true,
        }
    }
}

/// The state of a source.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Whether it was read completely at least once.
    pub is_read: bool,
    /// Since when it has been failing, and why.
    pub failing: Option<(Instant, String)>,
    /// Number of failures.
    pub failures: u64,
}

/// The pods that one source knows. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Known {
    inner: Arc<Mutex<Inner>>,
    health: watch::Sender<Health>,
    /// Notified when pods may have been deleted.
    departures: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Inner {
    pods: Pods,
    /// Deleted pods that somebody waits for: two changes in a row may arrive as one.
    gone: HashMap<PodName, Arc<Pod>>,
    waits: HashMap<PodName, Vec<Arc<Waiter>>>,
    /// When pods came that have no network yet; not of those that were there at the first look.
    came: HashMap<PodName, Instant>,
    /// When the source last answered.
    answered: Option<Instant>,
    /// The newest resourceVersion received.
    newest: u64,
}

/// What a source knows about one pod.
#[derive(Debug, Clone)]
pub(super) enum Lookup {
    Unknown,
    Pod(Arc<Pod>),
    /// It was deleted during a wait for it.
    Gone(Arc<Pod>),
}

/// Woken by a change of its pod, in every source in which it waits.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    /// Whether it can't continue without the pod's annotation.
    pub(super) is_asking: bool,
    pub(super) wake: watch::Sender<()>,
}

impl Known {
    /// A pod exists or has changed.
    ///
    /// # Errors
    /// [`TooMuch`]; the pods stay unchanged then.
    pub(super) fn apply(&self, name: PodName, pod: Pod) -> Result<(), TooMuch> {
        let mut inner = self.lock();
        let is_new = inner.pods.get(&name).is_none();
        if inner.pods.insert(name.clone(), pod)? {
            inner.changed(&name, None);
        }
        if is_new {
            inner.came.insert(name, Instant::now());
        }
        Ok(())
    }

    /// How long ago a pod came that has got its first interface now.
    pub(super) fn has_network(&self, name: &PodName) -> Option<Duration> {
        Some(self.lock().came.remove(name)?.elapsed())
    }

    /// A pod was deleted.
    pub(super) fn delete(&self, name: &PodName) {
        let mut inner = self.lock();
        inner.came.remove(name);
        if let Some(pod) = inner.pods.remove(name) {
            inner.changed(name, Some(&pod));
            drop(inner);
            self.departures.send_replace(());
        }
    }

    /// Replaces all pods.
    pub(super) fn replace(&self, pods: Pods) {
        let mut inner = self.lock();
        let before = mem::replace(&mut inner.pods, pods);
        let Inner { pods, came, .. } = &mut *inner;
        came.retain(|name, _| pods.get(name).is_some());
        let mut names: Vec<PodName> = inner.waits.keys().cloned().collect();
        names.retain(|name| before.get(name) != inner.pods.get(name));
        for name in &names {
            inner.changed(name, before.get(name));
        }
        drop(inner);
        self.departures.send_replace(());
        self.note(|health| !mem::replace(&mut health.is_read, true));
    }

    /// The source works again.
    pub(super) fn recovered(&self) {
        self.note(|health| health.failing.take().is_some());
    }

    /// The source fails; the pods stay known.
    pub(super) fn fails(&self, problem: String) {
        self.note(|health| {
            let since = health.failing.take().map(|(since, _)| since);
            health.failing = Some((since.unwrap_or_else(Instant::now), problem));
            health.failures += 1;
            since.is_none()
        });
    }

    /// Notifies all watchers if `change` returns that the state differs.
    fn note(&self, change: impl FnOnce(&mut Health) -> bool) {
        let mut is_other = false;
        self.health.send_modify(|health| is_other = change(health));
        if is_other {
            let inner = self.lock();
            let waiters = inner.waits.values().flatten();
            waiters.for_each(|waiter| waiter.wake.send_replace(()));
        }
    }

    /// The source answered, even if only to say that nothing has changed.
    pub(super) fn answered(&self) {
        self.lock().answered = Some(Instant::now());
    }

    /// The source has reached this resourceVersion. Servers increment them, which Kubernetes
    /// promises since 1.35 (KEP-5504); anything but a number is not compared.
    pub(super) fn came_to(&self, version: &str) {
        let newest = &mut self.lock().newest;
        *newest = version.parse().unwrap_or(0).max(*newest);
    }

    /// The newest resourceVersion received; 0 without one.
    pub(super) fn newest(&self) -> u64 {
        self.lock().newest
    }

    /// Notifies when pods may have been deleted.
    pub(super) fn departures(&self) -> watch::Receiver<()> {
        self.departures.subscribe()
    }

    /// The pod that a runtime means.
    pub(super) fn meant(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        match self.see(&PodName::of(pod)) {
            Lookup::Pod(known) if known.is_meant_by(pod.uid.as_deref()) => Some(known),
            _ => None,
        }
    }

    /// The possible age of the data: the time since the source last answered.
    pub fn lag(&self) -> Option<Duration> {
        self.lock().answered.map(|answered| answered.elapsed())
    }

    /// The state of the source, and each change of it.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Number of pods.
    pub fn len(&self) -> usize {
        self.lock().pods.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pods whose annotation an ADD needs to continue.
    pub(super) fn awaited(&self) -> Vec<PodName> {
        let inner = self.lock();
        let is_asking = |waiters: &[Arc<Waiter>]| waiters.iter().any(|waiter| waiter.is_asking);
        let awaited = inner.waits.iter().filter(|(_, waiters)| is_asking(waiters));
        awaited.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn see(&self, name: &PodName) -> Lookup {
        let inner = self.lock();
        match (inner.pods.get(name), inner.gone.get(name)) {
            (Some(pod), _) => Lookup::Pod(Arc::clone(pod)),
            (None, Some(pod)) => Lookup::Gone(Arc::clone(pod)),
            (None, None) => Lookup::Unknown,
        }
    }

    /// From now on, until the wait is dropped, a change of this pod wakes the waiter, and its
    /// deletion is remembered.
    pub(super) fn wait_on(&self, name: &PodName, waiter: &Arc<Waiter>) -> Wait {
        let mut inner = self.lock();
        let waiters = inner.waits.entry(name.clone()).or_default();
        waiters.push(Arc::clone(waiter));
        Wait {
            known: self.clone(),
            name: name.clone(),
            waiter: Arc::clone(waiter),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Wakes those who wait for the pod, and keeps its last state for them if it is gone.
    fn changed(&mut self, name: &PodName, before: Option<&Arc<Pod>>) {
        let Some(waiters) = self.waits.get(name) else {
            return;
        };
        waiters
            .iter()
            .for_each(|waiter| waiter.wake.send_replace(()));
        self.gone.remove(name);
        if self.pods.get(name).is_none()
            && let Some(pod) = before
        {
            self.gone.insert(name.clone(), Arc::clone(pod));
        }
    }
}

/// A wait for a pod.
#[derive(Debug)]
pub(super) struct Wait {
    known: Known,
    name: PodName,
    waiter: Arc<Waiter>,
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut inner = self.known.lock();
        if let Some(waiters) = inner.waits.get_mut(&self.name) {
            waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            if waiters.is_empty() {
                inner.waits.remove(&self.name);
                inner.gone.remove(&self.name);
            }
        }
    }
}
