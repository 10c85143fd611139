//! The API server's objects: listed once, then watched.
//!
//! A watch continues from the last resourceVersion received, in an event or in a bookmark; only if
//! the server no longer has that version (410), everything is listed again. Failures are retried
//! with a growing pause, each time with a new client, because credentials and certificates may have
//! been replaced. docs/decisions/0025 says what kube's own watcher lacks.

mod failure;
mod line;
mod pause;

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use futures_util::stream::{BoxStream, Stream, StreamExt as _, unfold};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bounds::{LONGEST_LINE, PAGE};
use crate::object::{Object, Reference, Unreadable, or_default, path, read};
use crate::{Access, AccessError, brief, connected};
pub use failure::Failure;
use failure::{bounded, in_time};
use pause::Pause;

/// How long the server is asked to keep a watch; most servers end it after 5 to 10 minutes anyway.
const WATCH_SECONDS: u32 = 290;
/// A watch in which nothing arrives for this long counts as dead and is started anew. A server
/// sends a bookmark about every minute; without bookmarks this costs one request.
const SILENCE: Duration = Duration::from_secs(150);
/// The maximum number of pages in a list: far more than a server needs. An endless chain would be
/// followed for ever.
pub const MOST_PAGES: usize = 1_000;
/// The longest token of a list's next page, in bytes. It contains the next object's name.
const LONGEST_CONTINUE: usize = 8 << 10;
/// A watch that ends sooner is not restarted at once; without an event, it counts as a failure.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// The source of a watch's client.
pub trait Connect: Send + Sync {
    /// A client, created anew if possible.
    fn connect(&self) -> impl Future<Output = Result<Client, AccessError>> + Send;
}

impl Connect for Access {
    async fn connect(&self) -> Result<Client, AccessError> {
        connected(self).await
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
    /// The only namespace; empty for all.
    pub namespace: String,
    /// Another version of the objects' API, whose fields are the same.
    pub api: Option<&'static str>,
    /// Number of objects per page of the list.
    pub page: u32,
}

impl Default for Selection {
    /// All objects; an answer has room for a page of the largest endpoint slices, some 300 KB each.
    fn default() -> Self {
        Self {
            fields: String::new(),
            namespace: String::new(),
            api: None,
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
    Deleted(Reference),
    /// An object of the list, or one that was created or modified, can't be read. The watch goes on
    /// behind it.
    Unreadable(Unreadable),
    /// Nothing changed up to this resourceVersion.
    Bookmark(String),
    /// The server could not be reached, refused, or sent something unusable. The watch retries.
    Failed(Failure),
}

/// A watch of the objects of one kind.
pub struct Watch<K, C> {
    connect: C,
    selection: Selection,
    /// Shortens a pause to a second: somebody waits for an object.
    nudge: Option<Arc<Notify>>,
    pause: Pause,
    /// Where the watch continues; None for a list.
    version: Option<String>,
    /// The version of the event last reported, until it is accepted.
    reported: Option<String>,
    state: State,
    kind: PhantomData<fn() -> K>,
}

enum State {
    Disconnected,
    Paused,
    Connected(Client),
    Listing(Client, Listing),
    /// The flag tells whether the list is current.
    Listed(Client, bool),
    Watching(Client, Watching),
}

struct Listing {
    parameters: ListParams,
    page: IntoIter<Box<RawValue>>,
    pages: usize,
    /// From the last page.
    version: Option<String>,
}

struct Watching {
    lines: BoxStream<'static, io::Result<Vec<u8>>>,
    began: Instant,
    heard: bool,
    is_fresh: bool,
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default, deserialize_with = "or_default")]
    metadata: PageMetadata,
    #[serde(default, deserialize_with = "or_default")]
    items: Vec<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    #[serde(deserialize_with = "or_default")]
    resource_version: String,
    /// Empty on the last page.
    #[serde(rename = "continue", deserialize_with = "or_default")]
    next: String,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Box<RawValue>,
}

impl<K: Object, C: Connect> Watch<K, C> {
    /// The server is contacted when the first event is requested.
    pub fn new(connect: C, selection: Selection) -> Self {
        Self {
            connect,
            selection,
            nudge: None,
            pause: Pause::default(),
            version: None,
            reported: None,
            state: State::Disconnected,
            kind: PhantomData,
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
                self.state = State::Connected(client);
                Ok(None)
            }
            State::Connected(client) if self.version.is_some() => {
                self.state = State::Listed(client, false);
                Ok(None)
            }
            State::Connected(client) => {
                let parameters = ListParams::default()
                    .fields(&self.selection.fields)
                    .limit(self.selection.page);
                let listing = Listing {
                    parameters,
                    page: Vec::new().into_iter(),
                    pages: 0,
                    version: None,
                };
                self.state = State::Listing(client, listing);
                Ok(Some(Event::Listing))
            }
            State::Listing(client, listing) => self.list(client, listing).await,
            State::Listed(client, is_fresh) => self.begin(client, is_fresh).await,
            State::Watching(client, watching) => self.follow(client, watching).await,
        }
    }

    fn requests(&self) -> Request {
        let api = self.selection.api.unwrap_or(K::API);
        Request::new(path::<K>(api, &self.selection.namespace))
    }

    async fn list(
        &mut self,
        client: Client,
        mut listing: Listing,
    ) -> Result<Option<Event<K>>, Failure> {
        if let Some(object) = listing.page.next() {
            self.state = State::Listing(client, listing);
            return Ok(Some(match read(&object) {
                Ok(object) => Event::Listed(object),
                Err(unreadable) => Event::Unreadable(unreadable),
            }));
        }
        if let Some(version) = listing.version {
            self.reported = Some(version.clone());
            self.state = State::Listed(client, true);
            return Ok(Some(Event::AllListed(version)));
        }
        if listing.pages == MOST_PAGES {
            return Err(Failure::new(format!(
                "the server's list does not end: it has more than {MOST_PAGES} pages"
            )));
        }
        let request = match K::IS_METADATA {
            true => self.requests().list_metadata(&listing.parameters),
            false => self.requests().list(&listing.parameters),
        };
        let request = request.map_err(|error| Failure::of(&error))?;
        let limit = listing.parameters.limit.unwrap_or(self.selection.page);
        let page = match in_time(client.request_text(request)).await {
            // Objects may be large; then there are fewer of them in a page.
            Err(failure) if failure.is_too_large() && limit > 1 => {
                listing.parameters.limit = Some(if limit > PAGE { PAGE } else { limit / 2 });
                self.state = State::Listing(client, listing);
                return Ok(None);
            }
            page => page?,
        };
        listing.parameters.limit = Some(limit.saturating_mul(2).min(self.selection.page));
        let page: Page = serde_json::from_str(&page)
            .map_err(|error| Failure::new(format!("not a list: {}", brief(&error))))?;
        listing.pages += 1;
        listing.page = page.items.into_iter();
        let next = page.metadata.next;
        match next.len() {
            0 => listing.version = Some(bounded(page.metadata.resource_version)?),
            1..=LONGEST_CONTINUE => listing.parameters.continue_token = Some(next),
            _ => return Err(Failure::too_long("token of the next page", &next)),
        }
        self.state = State::Listing(client, listing);
        Ok(None)
    }

    async fn begin(&mut self, client: Client, is_fresh: bool) -> Result<Option<Event<K>>, Failure> {
        let parameters = WatchParams::default()
            .fields(&self.selection.fields)
            .timeout(WATCH_SECONDS);
        let version = self.version.clone().unwrap_or_default();
        let request = match K::IS_METADATA {
            true => self.requests().watch_metadata(&parameters, &version),
            false => self.requests().watch(&parameters, &version),
        };
        let request = request.map_err(|error| Failure::of(&error))?;
        match in_time(client.request_stream(request)).await {
            Ok(answer) => {
                let watching = Watching {
                    lines: line::lines(answer),
                    began: Instant::now(),
                    heard: false,
                    is_fresh,
                };
                self.state = State::Watching(client, watching);
                Ok(Some(Event::Watching))
            }
            Err(failure) => self.expired_or(client, is_fresh, failure),
        }
    }

    async fn follow(
        &mut self,
        client: Client,
        mut watching: Watching,
    ) -> Result<Option<Event<K>>, Failure> {
        let Ok(line) = tokio::time::timeout(SILENCE, watching.lines.next()).await else {
            let seconds = SILENCE.as_secs();
            tracing::debug!(
                kind = K::KIND,
                "nothing arrived for {seconds} s; watching again"
            );
            self.state = State::Listed(client, false);
            return Ok(None);
        };
        let line = line.transpose().map_err(|error| Failure::of(&error))?;
        if let Some(cut) = line.as_deref().filter(|line| line.len() > LONGEST_LINE) {
            let (version, event) = line::cut(cut)?;
            return self.report(client, watching, version, event);
        }
        let line = match line.map(|line| serde_json::from_slice::<Line>(&line)) {
            Some(Ok(line)) => line,
            Some(Err(error)) if !error.is_eof() => {
                return Err(Failure::new(format!("not a watch: {}", brief(&error))));
            }
            // The end, perhaps within a line.
            _ => {
                let is_short = watching.began.elapsed() < SHORTEST_WATCH;
                if is_short && !watching.heard {
                    return Err(Failure::new("the server ended the watch at once"));
                }
                self.state = match is_short {
                    true => State::Paused,
                    false => State::Listed(client, false),
                };
                return Ok(None);
            }
        };
        let (version, event) = match &*line.r#type {
            "ADDED" | "MODIFIED" => match read::<K>(&line.object) {
                Ok(object) => {
                    let version = object.metadata().resource_version.clone();
                    (version, Event::Applied(object))
                }
                Err(unreadable) => {
                    let version = unreadable.object.resource_version.clone();
                    (version, Event::Unreadable(unreadable))
                }
            },
            "DELETED" => {
                let object = Reference::of(&line.object);
                (object.resource_version.clone(), Event::Deleted(object))
            }
            "BOOKMARK" => {
                let version = Reference::of(&line.object).resource_version;
                (version.clone(), Event::Bookmark(version))
            }
            "ERROR" => {
                let failure = Failure::of_status(&line.object);
                return self.expired_or(client, watching.is_fresh && !watching.heard, failure);
            }
            other => {
                return Err(Failure::new(format!(
                    "the server sent an event of unknown type {}",
                    brief(&other)
                )));
            }
        };
        self.report(client, watching, version, event)
    }

    fn report(
        &mut self,
        client: Client,
        mut watching: Watching,
        version: String,
        event: Event<K>,
    ) -> Result<Option<Event<K>>, Failure> {
        self.pause.reset();
        watching.heard = true;
        self.reported = Some(bounded(version)?).filter(|version| !version.is_empty());
        self.state = State::Watching(client, watching);
        Ok(Some(event))
    }

    /// If the server no longer has the version, that is no failure: everything is listed again. At
    /// once, because somebody may wait for what came meanwhile; after a pause if it was listed just
    /// now.
    fn expired_or(
        &mut self,
        client: Client,
        is_fresh: bool,
        failure: Failure,
    ) -> Result<Option<Event<K>>, Failure> {
        if !failure.is_gone() {
            return Err(failure);
        }
        tracing::debug!(
            kind = K::KIND,
            version = self.version,
            "expired; listing again"
        );
        self.version = None;
        self.state = match is_fresh {
            true => State::Paused,
            false => State::Connected(client),
        };
        Ok(None)
    }
}
