//! This node's pods, as the Kubernetes API server tells them: listed once, then watched.
//!
//! Only metadata is asked for (PartialObjectMetadata), of the pods whose spec.nodeName is this
//! node. The watch goes on from the last resourceVersion it heard of, in an event or in a bookmark;
//! only when the server no longer has that version (410) is everything listed anew. Whatever fails
//! is tried again with a growing pause, and what was known stays known.

use std::error::Error;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod as PodKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::pods::{Pods, TooMuch};
use super::{Known, Pod, PodName};
use crate::apiserver::{self, bounds::PAGE};
use crate::config::KubeConfig;
use crate::duration;

/// How long the server is asked to keep one watch; most servers end it after 5 to 10 minutes
/// anyway.
const WATCH_SECONDS: u32 = 290;
/// A watch in which nothing comes for so long is taken for dead and begun anew. A server sends a
/// bookmark about every minute; without bookmarks this costs one request.
const SILENCE: Duration = Duration::from_secs(150);
/// How long the server may take to answer a request.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Pages of a list. Far more than a server needs for as many pods as are admitted; a chain without
/// end would be followed for ever.
const MOST_PAGES: usize = 1_000;
/// The longest resourceVersion, in bytes: it goes into a request's URL. Those of servers are
/// numbers.
const LONGEST_VERSION: usize = 256;
/// The longest token of a list's next page, in bytes. It holds the next pod's name.
const LONGEST_CONTINUE: usize = 8 << 10;
/// HTTP 410: the server no longer has the resourceVersion that was asked for.
const GONE: u16 = 410;
/// A watch that ends sooner than this, and without an event, is a failure.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// Watches until the runtime ends. `nudge` shortens a pause: an ADD waits for a pod.
pub(super) async fn watch(config: KubeConfig, known: Known, nudge: Arc<Notify>) {
    let mut watch = Watch {
        config,
        known,
        version: None,
        is_failing: false,
    };
    let mut pause = Pause::default();
    loop {
        let heard = match watch.connect_and_follow().await {
            Ok(heard) => heard,
            Err(failure) => {
                watch.failed(&failure);
                failure.heard
            }
        };
        if heard {
            pause.reset();
        }
        pause.wait(&nudge).await;
    }
}

/// Whether the server has the pod of this uid. A list without a resourceVersion is answered from
/// etcd, or as new (Kubernetes API concepts, "Semantics for get and list"); one of an older state
/// than `newest`, as of a server that lags, is no answer.
pub(super) async fn is_there(
    config: &KubeConfig,
    pod: &PodName,
    uid: &str,
    newest: u64,
) -> Result<bool, String> {
    let client = apiserver::client(&config.access)
        .await
        .map_err(|error| apiserver::with_causes(&error))?;
    let api = Api::<PodKind>::namespaced(client, &pod.namespace);
    let parameters = ListParams::default().fields(&format!("metadata.name={}", pod.name));
    let list = in_time(api.list_metadata(&parameters)).await;
    let list = list.map_err(|failure| failure.text)?;
    let version = list.metadata.resource_version.unwrap_or_default();
    if version.parse::<u64>().is_ok_and(|version| version < newest) {
        let version = apiserver::brief(&version);
        return Err(format!(
            "the server answered from resourceVersion {version}, and had been at {newest}"
        ));
    }
    let is_it = |metadata: &ObjectMeta| metadata.uid.as_deref() == Some(uid);
    Ok(list.items.iter().any(|item| is_it(&item.metadata)))
}

struct Watch {
    config: KubeConfig,
    known: Known,
    /// Where the watch goes on; none asks for a list.
    version: Option<String>,
    is_failing: bool,
}

/// Why a watch ended.
struct Failure {
    text: String,
    /// Whether it had delivered something, so that the server may be asked again at once.
    heard: bool,
    /// Whether the server no longer has the version that was asked for.
    gone: bool,
}

impl Watch {
    /// Follows one connection to its end; the answer is whether it was of any use.
    async fn connect_and_follow(&mut self) -> Result<bool, Failure> {
        // Made anew each time: the kubeconfig, its certificates and the CA may have been replaced
        // meanwhile.
        let client = apiserver::client(&self.config.access)
            .await
            .map_err(|error| Failure::of(&error))?;
        let mut heard = false;
        loop {
            let (version, is_fresh) = match &self.version {
                Some(version) => (version.clone(), false),
                None => (self.list(&client).await?, true),
            };
            let began = Instant::now();
            heard = match self.follow(&client, &version).await {
                Ok(news) => news,
                Err(failure) => {
                    return Err(Failure {
                        heard: heard || failure.heard,
                        ..failure
                    });
                }
            };
            if self.version.is_none() {
                // One that went on from an old version lists anew at once: an ADD may wait for what
                // came meanwhile, and has shortened this pause only. What was listed just now and
                // has expired already is not worth that haste.
                if is_fresh {
                    return Ok(heard);
                }
                continue;
            }
            if !heard && began.elapsed() < SHORTEST_WATCH {
                return Err(Failure::new("the server ended the watch at once"));
            }
        }
    }

    /// Lists the pods and takes them for all there are.
    async fn list(&mut self, client: &Client) -> Result<String, Failure> {
        let api = Api::<PodKind>::all(client.clone());
        let mut parameters = ListParams::default().fields(&self.selector()).limit(PAGE);
        let mut pods = Pods::default();
        for _ in 0..MOST_PAGES {
            let page = in_time(api.list_metadata(&parameters)).await?;
            for item in page.items {
                if let Some((name, pod)) = read(item.metadata) {
                    pods.insert(name, pod).map_err(Failure::from)?;
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if token.len() > LONGEST_CONTINUE => {
                    return Err(Failure::too_long("token of the next page", &token));
                }
                Some(token) => parameters.continue_token = Some(token),
                None => {
                    let version = page.metadata.resource_version.unwrap_or_default();
                    let version = bounded(version)?;
                    tracing::debug!(pods = pods.len(), version, "listed this node's pods");
                    self.known.came_to(&version);
                    self.known.replace(pods);
                    self.known.heard();
                    self.works();
                    self.version = Some(version.clone());
                    return Ok(version);
                }
            }
        }
        Err(Failure::new(format!(
            "the server's list does not end: {MOST_PAGES} pages with {} pods came",
            pods.len()
        )))
    }

    /// Follows one watch; the answer is whether anything came.
    async fn follow(&mut self, client: &Client, version: &str) -> Result<bool, Failure> {
        let api = Api::<PodKind>::all(client.clone());
        let parameters = WatchParams::default()
            .fields(&self.selector())
            .timeout(WATCH_SECONDS);
        let events = match in_time(api.watch_metadata(&parameters, version)).await {
            Ok(events) => events,
            Err(failure) => return self.expired_or(failure),
        };
        self.works();
        let mut events = pin!(events);
        let mut heard = false;
        loop {
            let Ok(event) = tokio::time::timeout(SILENCE, events.next()).await else {
                tracing::debug!(
                    "nothing came for {}; watching anew",
                    duration::text(SILENCE)
                );
                return Ok(heard);
            };
            let version = match event {
                None => return Ok(heard),
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                    let version = pod.metadata.resource_version.clone();
                    if let Some((name, pod)) = read(pod.metadata) {
                        self.known.apply(name, pod).map_err(Failure::from)?;
                    }
                    version
                }
                Some(Ok(WatchEvent::Deleted(pod))) => {
                    let version = pod.metadata.resource_version.clone();
                    if let Some((name, _)) = read(pod.metadata) {
                        self.known.delete(&name);
                    }
                    version
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    Some(bookmark.metadata.resource_version)
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    let gone = status.code == GONE;
                    let why = apiserver::brief(&status.message);
                    let text = format!("the server ended the watch: {why}");
                    return self.expired_or(Failure { text, heard, gone });
                }
                Some(Err(error)) => {
                    let failure = Failure::of(&error);
                    return Err(Failure { heard, ..failure });
                }
            };
            heard = true;
            self.known.heard();
            if let Some(version) = version {
                self.known.came_to(&version);
                self.version = Some(bounded(version)?);
            }
        }
    }

    /// A version that the server no longer has is no failure: everything is listed anew.
    fn expired_or(&mut self, failure: Failure) -> Result<bool, Failure> {
        if !failure.gone {
            return Err(failure);
        }
        tracing::debug!(version = self.version, "expired; listing anew");
        self.version = None;
        Ok(failure.heard)
    }

    fn selector(&self) -> String {
        format!("spec.nodeName={}", self.config.node)
    }

    fn works(&mut self) {
        if self.is_failing {
            tracing::info!(server = %self.config.access, "this node's pods are watched again");
        }
        self.is_failing = false;
        self.known.recovered();
    }

    /// Said once when it begins; the reason is in every ADD's error that comes of it.
    fn failed(&mut self, failure: &Failure) {
        if !self.is_failing {
            let server = &self.config.access;
            tracing::warn!(%server, error = failure.text, "can't watch this node's pods");
        }
        self.is_failing = true;
        self.known.fails(failure.text.clone());
    }
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            heard: false,
            gone: false,
        }
    }

    fn of(error: &dyn Error) -> Self {
        Self::new(apiserver::with_causes(error))
    }

    fn too_long(what: &str, value: &str) -> Self {
        Self::new(format!("the server sent a {what} of {} bytes", value.len()))
    }
}

impl From<TooMuch> for Failure {
    fn from(too_much: TooMuch) -> Self {
        Self::new(too_much.to_string())
    }
}

fn bounded(version: String) -> Result<String, Failure> {
    match version.len() > LONGEST_VERSION {
        true => Err(Failure::too_long("resourceVersion", &version)),
        false => Ok(version),
    }
}

async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER_DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let gone = matches!(&error, kube::Error::Api(status) if status.code == GONE);
            Err(Failure {
                gone,
                ..Failure::of(&error)
            })
        }
        Err(_) => Err(Failure::new(format!(
            "the server did not answer within {}",
            duration::text(ANSWER_DEADLINE)
        ))),
    }
}

/// What is kept of a pod's metadata.
fn read(metadata: ObjectMeta) -> Option<(PodName, Pod)> {
    let name = PodName {
        namespace: metadata.namespace?,
        name: metadata.name?,
    };
    let annotations = metadata.annotations.unwrap_or_default();
    Some((name, Pod::new(metadata.uid, annotations)))
}

/// The pause before the next try: it doubles with each failure, and half of it is chance, so that
/// the nodes of a cluster don't all come back at once.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
}

impl Pause {
    const SHORTEST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(30);
    /// What remains of it when somebody waits for the watch.
    const NUDGED: Duration = Duration::from_secs(1);

    fn reset(&mut self) {
        self.failures = 0;
    }

    async fn wait(&mut self, nudge: &Notify) {
        let pause = self.next(RandomState::new().hash_one(()));
        let at_least = pause.min(Self::NUDGED);
        tokio::time::sleep(at_least).await;
        tokio::select! {
            () = tokio::time::sleep(pause - at_least) => {}
            () = nudge.notified() => {}
        }
    }

    fn next(&mut self, chance: u64) -> Duration {
        let most = Self::SHORTEST
            .saturating_mul(1 << self.failures.min(16))
            .min(Self::LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = most / 2;
        half + half.mul_f64(chance as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests;
