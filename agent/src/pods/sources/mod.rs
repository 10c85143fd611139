//! The sources of annotations: the CNI request itself, the Kubernetes API server, a directory of
//! manifests.
//!
//! The sources are asked in the configured order, and the first that answers counts. If none
//! answers, but a watched one (API server, directory) may still do so, its next change is awaited,
//! up to a deadline. The error then names what was missing: the pod, the right pod with that name,
//! or its annotation.

mod dir;
mod error;
mod known;
mod kube;
pub mod manifest;
mod pods;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use error::{Missing, SourceError};
pub use known::{Health, Known, Pod, PodName};
use known::{Lookup, Waiter};
pub use state::SourceState;

use super::AnnotationError;
use crate::config::{KubeConfig, Need, Source, SourceConfig};
use crate::plan::PodRef;

/// Annotations by name.
pub type Annotations = BTreeMap<String, String>;

/// The enabled sources.
#[derive(Debug)]
pub struct Sources {
    order: Vec<Origin>,
    need: Need,
    /// Tells a source that pauses after a failure to retry, because an ADD waits.
    nudge: Arc<Notify>,
}

/// One of the sources.
#[derive(Debug)]
enum Origin {
    Request,
    Watched(Watched),
}

#[derive(Debug)]
struct Watched {
    source: Source,
    /// Its name in errors.
    place: String,
    known: Known,
}

/// The pod whose annotations are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The pod that the runtime passed.
    pub pod: Option<&'a PodRef>,
    /// The annotations in the request.
    pub request: &'a Annotations,
    /// The annotations that would do, for the error.
    pub wanted: &'a str,
}

/// What the sources know about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was parsed from its annotations; None if they contain nothing and need not.
    pub value: Option<T>,
    /// The annotations that it was parsed from.
    pub annotations: Annotations,
    /// The pod's uid in the API, if a watched source knows the pod. A static pod's runtime has
    /// another uid, but OVN's logical port has this one.
    pub uid: Option<String>,
    /// The watched source that knows the pod.
    known_by: Option<Source>,
    /// Whether it comes from the request, and so can't change any more.
    is_from_request: bool,
}

impl Sources {
    /// Starts watching, on the current tokio runtime.
    pub fn start(config: &SourceConfig) -> Self {
        let nudge = Arc::new(Notify::new());
        let start = |source: &Source| {
            let known = Known::default();
            let place = match source {
                Source::Cni => return Some(Origin::Request),
                Source::Kube => {
                    let config = config.kube.clone()?;
                    let place = format!("{} for node {}", config.access, config.node);
                    tokio::spawn(kube::watch(config, known.clone(), Arc::clone(&nudge)));
                    place
                }
                Source::Dir => {
                    let directory = config.dir.clone()?;
                    let place = directory.display().to_string();
                    tokio::spawn(dir::watch(directory, known.clone()));
                    place
                }
            };
            let source = *source;
            Some(Origin::Watched(Watched {
                source,
                place,
                known,
            }))
        };
        Self {
            order: config.order.iter().filter_map(start).collect(),
            need: config.annotations,
            nudge,
        }
    }

    /// Asks the sources until one answers; `read` finds the answer in annotations. Dropping the
    /// future ends the wait.
    ///
    /// # Errors
    /// An annotation is invalid, the pod was deleted during the wait, or nothing came in time.
    pub async fn ask<T>(
        &self,
        question: &Question<'_>,
        patience: Duration,
        read: impl Fn(&Annotations) -> Result<Option<T>, AnnotationError>,
    ) -> Result<Answer<T>, SourceError> {
        let started = Instant::now();
        let name = question.pod.map(PodName::of);
        let waiter = Arc::new(Waiter {
            is_asking: true,
            ..Waiter::default()
        });
        let wait = |name, watched: &Watched| watched.known.wait_on(name, &waiter);
        let _waits: Vec<_> = name
            .iter()
            .flat_map(|name| self.watched().map(|watched| wait(name, watched)))
            .collect();
        let mut changes = waiter.wake.subscribe();
        let mut is_told = false;
        loop {
            changes.mark_unchanged();
            let missing = match self.look(question, name.as_ref(), &read)? {
                Ok(answer) => return Ok(answer),
                Err(missing) => missing,
            };
            let can_come = name.is_some() && self.watched().next().is_some();
            self.nudge.notify_one();
            if can_come && !is_told {
                let (pod, wanted) = (name.as_ref().map(ToString::to_string), question.wanted);
                // Not at INFO: in OVN mode runtimes are often ahead of the controller.
                tracing::debug!(
                    pod,
                    wanted,
                    missing = missing.word(),
                    "an ADD awaits its pod's annotation"
                );
                is_told = true;
            }
            let deadline = started + patience;
            if !can_come
                || tokio::time::timeout_at(deadline, changes.changed())
                    .await
                    .is_err()
            {
                return Err(SourceError::Missing {
                    pod: name.map(|name| name.to_string()),
                    wanted: question.wanted.to_owned(),
                    missing,
                    waited: started.elapsed(),
                    failing: self.failing(),
                });
            }
        }
    }

    /// Completes when an answer no longer holds: the pod was deleted, another pod has its name, or
    /// its annotations changed. Never completes for a pod that no watched source knows.
    pub async fn overturned<T: PartialEq>(
        &self,
        question: &Question<'_>,
        answer: &Answer<T>,
        read: impl Fn(&Annotations) -> Result<Option<T>, AnnotationError>,
    ) -> SourceError {
        let watched = self
            .watched()
            .find(|watched| Some(watched.source) == answer.known_by);
        let (Some(watched), Some(pod)) = (watched, question.pod) else {
            return std::future::pending().await;
        };
        let name = PodName::of(pod);
        let waiter = Arc::<Waiter>::default();
        let _wait = watched.known.wait_on(&name, &waiter);
        let mut changes = waiter.wake.subscribe();
        let (pod, place) = (name.to_string(), watched.place.clone());
        loop {
            changes.mark_unchanged();
            match watched.known.see(&name) {
                Lookup::Unknown | Lookup::Gone(_) => {
                    let uid = answer.uid.clone();
                    return SourceError::PodDeleted { pod, uid, place };
                }
                Lookup::Pod(now) if now.uid != answer.uid => {
                    let (was, now) = (answer.uid.clone(), now.uid.clone());
                    return SourceError::PodReplaced {
                        pod,
                        was: was.unwrap_or_default(),
                        now: now.unwrap_or_default(),
                        place,
                    };
                }
                Lookup::Pod(now) => {
                    let says = || read(&now.annotations).ok().flatten();
                    if !answer.is_from_request
                        && now.annotations != answer.annotations
                        && says() != answer.value
                    {
                        return SourceError::AnnotationChanged { pod, place };
                    }
                }
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The annotations known now, for a caller that does not need them; never waits.
    pub fn glance(&self, question: &Question<'_>) -> Annotations {
        let name = question.pod.map(PodName::of);
        let uid = question.pod.and_then(|pod| pod.uid.as_deref());
        let mut annotations = Annotations::new();
        for origin in self.order.iter().rev() {
            match origin {
                Origin::Request => annotations.extend(question.request.clone()),
                Origin::Watched(watched) => {
                    let seen = name.as_ref().map(|name| watched.known.see(name));
                    if let Some(Lookup::Pod(pod)) = seen
                        && pod.is_meant_by(uid)
                    {
                        annotations.extend(pod.annotations.clone());
                    }
                }
            }
        }
        annotations
    }

    /// Why an ADD that needs a source would fail now. A failing source that was read once still
    /// serves the pods that it knows, and is no reason.
    pub fn problems(&self) -> Vec<String> {
        let problem = |watched: &Watched| {
            let health = watched.known.health().borrow().clone();
            let why = match health.failing {
                Some((_, problem)) => problem,
                None => "no answer yet".to_owned(),
            };
            (!health.is_read).then(|| format!("the pods of {} are not known: {why}", watched.place))
        };
        self.watched().filter_map(problem).collect()
    }

    /// Waits until each source was read or has failed once, at most for `patience`.
    pub async fn answered_within(&self, patience: Duration) {
        let all = async {
            for watched in self.watched() {
                let mut health = watched.known.health();
                let has_answered = |it: &Health| it.is_read || it.failing.is_some();
                let _ = health.wait_for(has_answered).await;
            }
        };
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// The pods of a watched source, if it is enabled.
    pub fn known(&self, source: Source) -> Option<&Known> {
        self.watched()
            .find(|watched| watched.source == source)
            .map(|watched| &watched.known)
    }

    /// Whether the API server has a pod with this name; None if it is not watched or can't be asked
    /// now.
    pub fn exists(&self, pod: &PodName) -> Option<bool> {
        let known = self.known(Source::Kube)?;
        let health = known.health().borrow().clone();
        let is_current = health.is_read && health.failing.is_none();
        is_current.then(|| matches!(known.see(pod), Lookup::Pod(_)))
    }

    /// The uid that a watched source has for the pod that the runtime means; a static pod's runtime
    /// has another.
    pub fn uid_meant(&self, pod: &PodRef) -> Option<String> {
        let meant = |watched: &Watched| watched.known.meant(pod);
        self.watched().find_map(meant)?.uid.clone()
    }

    /// How long ago the API server's watch told of a pod that has got its first interface now; None
    /// of one that was there when the watch began, or had one before.
    pub fn has_network(&self, pod: &PodRef) -> Option<Duration> {
        self.known(Source::Kube)?.has_network(&PodName::of(pod))
    }

    /// The uid of the pod that the runtime means, if the API server has it; None for a static pod.
    pub fn api_uid(&self, pod: &PodRef) -> Option<String> {
        let meant = self.known(Source::Kube)?.meant(pod)?;
        meant.uid.clone().filter(|_| !meant.is_mirror)
    }

    /// Notifies when pods may have been deleted from the API server; None if it is not watched.
    pub fn departures(&self) -> Option<watch::Receiver<()>> {
        Some(self.known(Source::Kube)?.departures())
    }

    /// Whether the API server is known to have the pod with this uid; None if that is unknown now.
    pub fn has(&self, pod: &PodName, uid: &str) -> Option<bool> {
        let known = self.known(Source::Kube)?;
        let health = known.health().borrow().clone();
        let is_current = health.is_read && health.failing.is_none();
        let is_it = |seen| matches!(seen, Lookup::Pod(pod) if pod.uid.as_deref() == Some(uid));
        is_current.then(|| is_it(known.see(pod)))
    }

    /// Asks the API server itself whether it has the pod with this uid, on any node.
    ///
    /// # Errors
    /// It did not answer, refused, or answered from an older state than one that it had sent
    /// before.
    pub async fn ask_whether_there(
        &self,
        config: &KubeConfig,
        pod: &PodName,
        uid: &str,
    ) -> Result<bool, String> {
        let newest = self.known(Source::Kube).map_or(0, Known::newest);
        kube::is_there(config, pod, uid, newest).await
    }

    /// A pod's uid in a watched source, which is that of the API object.
    pub fn uid_of(&self, pod: &PodRef) -> Option<String> {
        let name = PodName::of(pod);
        self.watched()
            .find_map(|watched| match watched.known.see(&name) {
                Lookup::Pod(pod) | Lookup::Gone(pod) => pod.uid.clone(),
                Lookup::Unknown => None,
            })
    }

    fn look<T>(
        &self,
        question: &Question<'_>,
        name: Option<&PodName>,
        read: &impl Fn(&Annotations) -> Result<Option<T>, AnnotationError>,
    ) -> Result<Result<Answer<T>, Missing>, SourceError> {
        let runtime_uid = question.pod.and_then(|pod| pod.uid.as_deref());
        let mut missing = Missing::at_first(name.is_some());
        let mut fallback = None;
        for origin in &self.order {
            let watched = match origin {
                Origin::Watched(watched) => watched,
                Origin::Request => {
                    if let Some(value) = read(question.request)? {
                        return Ok(Ok(Answer {
                            value: Some(value),
                            ..self.of_request(question, name, runtime_uid)
                        }));
                    }
                    continue;
                }
            };
            let Some(name) = name else { continue };
            let place = &watched.place;
            match watched.known.see(name) {
                Lookup::Pod(pod) if pod.is_meant_by(runtime_uid) => {
                    let value = read(&pod.annotations)?;
                    let is_answer = value.is_some();
                    let answer = Answer {
                        value,
                        annotations: pod.annotations.clone(),
                        uid: pod.uid.clone(),
                        known_by: Some(watched.source),
                        is_from_request: false,
                    };
                    if is_answer {
                        return Ok(Ok(answer));
                    }
                    fallback = fallback.or(Some(answer));
                    missing = missing.or(Missing::annotation(&pod.annotations));
                }
                Lookup::Pod(pod) => missing = missing.or(Missing::uid(runtime_uid, &pod, place)),
                Lookup::Gone(pod) if pod.is_meant_by(runtime_uid) => {
                    return Err(SourceError::PodDeleted {
                        pod: name.to_string(),
                        uid: pod.uid.clone(),
                        place: place.clone(),
                    });
                }
                Lookup::Gone(_) | Lookup::Unknown => missing = missing.or(Missing::pod(place)),
            }
        }
        if self.need == Need::Required {
            return Ok(Err(missing));
        }
        // Even if nothing is needed, the pod itself is awaited if a source could know it: its
        // annotations may differ.
        let is_watching = name.is_some() && self.watched().next().is_some();
        match fallback {
            Some(answer) => Ok(Ok(answer)),
            None if is_watching => Ok(Err(missing)),
            None => Ok(Ok(self.of_request(question, name, runtime_uid))),
        }
    }

    /// What came with the request, with the uid from a watched source if there is one.
    fn of_request<T>(
        &self,
        question: &Question<'_>,
        name: Option<&PodName>,
        runtime_uid: Option<&str>,
    ) -> Answer<T> {
        let knows = |watched: &Watched| match watched.known.see(name?) {
            Lookup::Pod(pod) if pod.is_meant_by(runtime_uid) => {
                Some((watched.source, pod.uid.clone()))
            }
            _ => None,
        };
        let (known_by, uid) = self.watched().find_map(knows).unzip();
        Answer {
            value: None,
            annotations: question.request.clone(),
            uid: uid.flatten(),
            known_by,
            is_from_request: true,
        }
    }

    fn failing(&self) -> Vec<(String, Duration, String)> {
        let failing = |watched: &Watched| {
            let (since, problem) = watched.known.health().borrow().failing.clone()?;
            Some((watched.place.clone(), since.elapsed(), problem))
        };
        self.watched().filter_map(failing).collect()
    }

    fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.order.iter().filter_map(|origin| match origin {
            Origin::Watched(watched) => Some(watched),
            Origin::Request => None,
        })
    }
}

#[cfg(test)]
mod tests;
