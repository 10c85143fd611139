//! The API server's objects: listed once, then watched.
//!
//! A watch continues from the last resourceVersion received, in an event or in a bookmark; only if
//! the server no longer has that version (410), everything is listed again. Failures are retried
//! with a growing pause, each time with a new client, because credentials and certificates may have
//! been replaced. docs/decisions/0025 says what kube's own watcher lacks.

mod pause;

use std::collections::VecDeque;
use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt as _, unfold};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{Access, AccessError, brief, client, with_causes};
use pause::Pause;

/// How long the server is asked to keep a watch; most servers end it after 5 to 10 minutes anyway.
const WATCH_SECONDS: u32 = 290;
/// A watch in which nothing arrives for this long counts as dead and is started anew. A server
/// sends a bookmark about every minute; without bookmarks this costs one request.
const SILENCE: Duration = Duration::from_secs(150);
/// Time limit for the server's answer to a request.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// The maximum number of pages in a list: far more than a server needs. An endless chain would be
/// followed for ever.
pub const MOST_PAGES: usize = 1_000;
/// The longest resourceVersion, in bytes: it is part of a request's URL. Servers use numbers.
const LONGEST_VERSION: usize = 256;
/// The longest token of a list's next page, in bytes. It contains the next object's name.
const LONGEST_CONTINUE: usize = 8 << 10;
/// HTTP 410: the server no longer has the requested resourceVersion.
const GONE: u16 = 410;
/// A watch that ends sooner is not restarted at once; without an event, it counts as a failure.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// The source of a watch's client.
pub trait Connect: Send + Sync {
    /// A client, created anew if possible.
    fn connect(&self) -> impl Future<Output = Result<Client, AccessError>> + Send;
}

impl Connect for Access {
    async fn connect(&self) -> Result<Client, AccessError> {
        client(self).await
    }
}

impl Connect for Client {
    async fn connect(&self) -> Result<Client, AccessError> {
        Ok(self.clone())
    }
}

/// The objects to watch.
#[derive(Debug, Clone)]
pub struct Selection {
    /// A field selector; empty for all objects.
    pub fields: String,
    /// The namespace, for a watch of one namespace.
    pub namespace: String,
    /// Number of objects per page of the list.
    pub page: u32,
}

impl Default for Selection {
    /// All objects; an answer has room for a page of the largest endpoint slices, some 300 KB each.
    fn default() -> Self {
        Self {
            fields: String::new(),
            namespace: String::new(),
            page: 100,
        }
    }
}

impl Selection {
    /// The object with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            fields: format!("metadata.name={name}"),
            ..Self::default()
        }
    }
}

/// An event of a watch.
#[derive(Debug)]
pub enum Event<K> {
    /// A list begins. Objects that it does not contain are gone.
    Listing,
    /// An object of the list.
    Listed(K),
    /// The list ends; it has this resourceVersion.
    AllListed(String),
    /// The server accepted a watch for changes from here on.
    Watching,
    /// An object was created or modified.
    Applied(K),
    /// An object was deleted, or is no longer selected.
    Deleted(K),
    /// Nothing changed up to this resourceVersion.
    Bookmark(String),
    /// The server could not be reached, refused, or sent something unusable. The watch retries.
    Failed(Failure),
}

/// Why a list or a watch ended.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    text: String,
    /// The HTTP status of the server's refusal.
    status: Option<u16>,
}

impl<K> Event<K> {
    /// The same event with its object converted.
    pub fn map<T>(self, form: impl FnOnce(K) -> T) -> Event<T> {
        match self {
            Self::Listing => Event::Listing,
            Self::Listed(object) => Event::Listed(form(object)),
            Self::AllListed(version) => Event::AllListed(version),
            Self::Watching => Event::Watching,
            Self::Applied(object) => Event::Applied(form(object)),
            Self::Deleted(object) => Event::Deleted(form(object)),
            Self::Bookmark(version) => Event::Bookmark(version),
            Self::Failed(failure) => Event::Failed(failure),
        }
    }
}

/// A watch of the objects of one kind. For a `PartialObjectMeta`, only metadata is requested.
pub struct Watch<K, C> {
    connect: C,
    api: fn(Client, &Selection) -> Api<K>,
    selection: Selection,
    /// Shortens a pause to a second: somebody waits for an object.
    nudge: Option<Arc<Notify>>,
    pause: Pause,
    /// Where the watch continues; None for a list.
    version: Option<String>,
    /// The version of the event last reported, until it is accepted.
    reported: Option<String>,
    state: State<K>,
}

enum State<K> {
    Disconnected,
    Paused,
    Connected(Api<K>),
    Listing(Api<K>, Listing<K>),
    /// The flag tells whether the list is current.
    Listed(Api<K>, bool),
    Watching(Api<K>, Watching<K>),
}

struct Listing<K> {
    parameters: ListParams,
    page: VecDeque<K>,
    pages: usize,
    /// From the last page.
    version: Option<String>,
}

struct Watching<K> {
    events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
    began: Instant,
    heard: bool,
    is_fresh: bool,
}

impl<K, C> Watch<K, C>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    C: Connect,
{
    /// In all namespaces. The server is contacted when the first event is requested.
    pub fn new(connect: C, selection: Selection) -> Self {
        Self {
            connect,
            api: |client, _| Api::all(client),
            selection,
            nudge: None,
            pause: Pause::default(),
            version: None,
            reported: None,
            state: State::Disconnected,
        }
    }

    /// In the selection's namespace only.
    #[must_use]
    pub fn namespaced(self) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        Self {
            api: |client, selection| Api::namespaced(client, &selection.namespace),
            ..self
        }
    }

    /// Shortens pauses to a second when it is notified.
    #[must_use]
    pub fn nudged_by(mut self, nudge: Arc<Notify>) -> Self {
        self.nudge = Some(nudge);
        self
    }

    /// The events, without end; a wait for one may be dropped.
    pub fn into_stream(self) -> impl Stream<Item = Event<K>> + Send {
        unfold(self, |mut watch| async move {
            let event = watch.next().await;
            Some((event, watch))
        })
    }

    /// The next event. Dropping this future repeats the request.
    pub async fn next(&mut self) -> Event<K> {
        if let Some(version) = self.reported.take() {
            self.version = Some(version);
        }
        loop {
            match self.step().await {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(failure) => {
                    self.state = State::Paused;
                    return Event::Failed(failure);
                }
            }
        }
    }

    /// Refuses the last event: after a pause, the server is asked for it again.
    pub fn refuse(&mut self) {
        self.reported = None;
        self.state = State::Paused;
    }

    async fn step(&mut self) -> Result<Option<Event<K>>, Failure> {
        match std::mem::replace(&mut self.state, State::Disconnected) {
            State::Paused => {
                self.pause.wait(self.nudge.as_deref()).await;
                Ok(None)
            }
            State::Disconnected => {
                let client = self.connect.connect().await;
                let client = client.map_err(|error| Failure::of(&error))?;
                self.state = State::Connected((self.api)(client, &self.selection));
                Ok(None)
            }
            State::Connected(api) if self.version.is_some() => {
                self.state = State::Listed(api, false);
                Ok(None)
            }
            State::Connected(api) => {
                let parameters = ListParams::default()
                    .fields(&self.selection.fields)
                    .limit(self.selection.page);
                let listing = Listing {
                    parameters,
                    page: VecDeque::new(),
                    pages: 0,
                    version: None,
                };
                self.state = State::Listing(api, listing);
                Ok(Some(Event::Listing))
            }
            State::Listing(api, listing) => self.list(api, listing).await,
            State::Listed(api, is_fresh) => self.begin(api, is_fresh).await,
            State::Watching(api, watching) => self.follow(api, watching).await,
        }
    }

    async fn list(
        &mut self,
        api: Api<K>,
        mut listing: Listing<K>,
    ) -> Result<Option<Event<K>>, Failure> {
        if let Some(object) = listing.page.pop_front() {
            self.state = State::Listing(api, listing);
            return Ok(Some(Event::Listed(object)));
        }
        if let Some(version) = listing.version {
            self.reported = Some(version.clone());
            self.state = State::Listed(api, true);
            return Ok(Some(Event::AllListed(version)));
        }
        if listing.pages == MOST_PAGES {
            return Err(Failure::new(format!(
                "the server's list does not end: it has more than {MOST_PAGES} pages"
            )));
        }
        let page = in_time(api.list(&listing.parameters)).await?;
        listing.pages += 1;
        listing.page = page.items.into();
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if token.len() > LONGEST_CONTINUE => {
                return Err(Failure::too_long("token of the next page", &token));
            }
            Some(token) => listing.parameters.continue_token = Some(token),
            None => {
                let version = page.metadata.resource_version.unwrap_or_default();
                listing.version = Some(bounded(version)?);
            }
        }
        self.state = State::Listing(api, listing);
        Ok(None)
    }

    async fn begin(&mut self, api: Api<K>, is_fresh: bool) -> Result<Option<Event<K>>, Failure> {
        let parameters = WatchParams::default()
            .fields(&self.selection.fields)
            .timeout(WATCH_SECONDS);
        let version = self.version.clone().unwrap_or_default();
        match in_time(api.watch(&parameters, &version)).await {
            Ok(events) => {
                let watching = Watching {
                    events: events.boxed(),
                    began: Instant::now(),
                    heard: false,
                    is_fresh,
                };
                self.state = State::Watching(api, watching);
                Ok(Some(Event::Watching))
            }
            Err(failure) => self.expired_or(api, is_fresh, failure),
        }
    }

    async fn follow(
        &mut self,
        api: Api<K>,
        mut watching: Watching<K>,
    ) -> Result<Option<Event<K>>, Failure> {
        let Ok(event) = tokio::time::timeout(SILENCE, watching.events.next()).await else {
            let kind = K::kind(&());
            let seconds = SILENCE.as_secs();
            tracing::debug!(%kind, "nothing arrived for {seconds} s; watching again");
            self.state = State::Listed(api, false);
            return Ok(None);
        };
        let event = match event {
            Some(event) => event.map_err(|error| Failure::of(&error))?,
            None => {
                let is_short = watching.began.elapsed() < SHORTEST_WATCH;
                if is_short && !watching.heard {
                    return Err(Failure::new("the server ended the watch at once"));
                }
                self.state = match is_short {
                    true => State::Paused,
                    false => State::Listed(api, false),
                };
                return Ok(None);
            }
        };
        let (version, event) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (
                object.meta().resource_version.clone(),
                Event::Applied(object),
            ),
            WatchEvent::Deleted(object) => (
                object.meta().resource_version.clone(),
                Event::Deleted(object),
            ),
            WatchEvent::Bookmark(bookmark) => {
                let version = bookmark.metadata.resource_version;
                (Some(version.clone()), Event::Bookmark(version))
            }
            WatchEvent::Error(status) => {
                let failure = Failure {
                    status: Some(status.code),
                    ..Failure::new(format!(
                        "the server ended the watch: {}",
                        brief(&status.message)
                    ))
                };
                return self.expired_or(api, watching.is_fresh && !watching.heard, failure);
            }
        };
        self.pause.reset();
        watching.heard = true;
        self.reported = version.map(bounded).transpose()?;
        self.state = State::Watching(api, watching);
        Ok(Some(event))
    }

    /// If the server no longer has the version, that is no failure: everything is listed again. At
    /// once, because somebody may wait for what came meanwhile; after a pause if it was listed just
    /// now.
    fn expired_or(
        &mut self,
        api: Api<K>,
        is_fresh: bool,
        failure: Failure,
    ) -> Result<Option<Event<K>>, Failure> {
        if failure.status != Some(GONE) {
            return Err(failure);
        }
        tracing::debug!(kind = %K::kind(&()), version = self.version, "expired; listing again");
        self.version = None;
        self.state = match is_fresh {
            true => State::Paused,
            false => State::Connected(api),
        };
        Ok(None)
    }
}

impl Failure {
    /// Whether the server does not have this kind of objects.
    pub fn is_missing(&self) -> bool {
        self.status == Some(404)
    }

    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: None,
        }
    }

    fn of(error: &dyn Error) -> Self {
        Self::new(with_causes(error))
    }

    fn too_long(what: &str, value: &str) -> Self {
        Self::new(format!("the server sent a {what} of {} bytes", value.len()))
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
            let status = match &error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            };
            Err(Failure {
                status,
                ..Failure::of(&error)
            })
        }
        Err(_) => Err(Failure::new(format!(
            "the server did not answer within {} s",
            ANSWER_DEADLINE.as_secs()
        ))),
    }
}
