//! A stand-in for the Kubernetes API server: it lists, pages, watches, creates and patches objects
//! over HTTP/1.1 like the real one, and accepts Events.
//!
//! It keeps a log of changes with a version for each. A watch begins at a version and gets later
//! changes that its field selector matches; a pod that leaves the selection is reported as deleted.
//! A compacted version is answered with 410, in the stream or as the answer's status; both occur.
//! Tests can do to it what happens to real servers: connections break, answers take long, tokens
//! expire, bookmarks come. It can also misbehave ([`Hostile`]).

mod cluster;
mod connection;
mod events;
mod exec;
mod hostile;
mod objects;
mod store;
mod tls;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Place;
use crate::failure::{OrFail, Step};
use store::Store;

pub use cluster::{endpoints, node, pod, pod_on, service};
pub use exec::{Ended, Exec};
pub use hostile::Hostile;
pub(crate) use tls::Identity;

/// Longer than any wait of a client under test.
const LIMIT: Duration = Duration::from_secs(30);

/// A running server. Dropping it closes its connections and ends its threads.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    ca: Option<String>,
    listener: TcpListener,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// State shared by all threads of a server.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    /// Without a list everybody may read.
    tokens: Option<Vec<String>>,
    /// Answers wait until this is false.
    held: bool,
    /// Answers about this resource wait.
    withheld: Option<&'static str>,
    /// Watches end right after their answer's head.
    ends_watches: bool,
    /// How the next watches of an expired version are answered.
    gone_as_status: bool,
    /// How it misbehaves.
    hostile: Option<Hostile>,
    /// What runs in pods' containers.
    kubelet: exec::Kubelet,
    /// The only version of discovery.k8s.io; without a word v1.
    discovery: Option<&'static str>,
    /// A group that it does not have.
    lacks: Option<&'static str>,
    /// New connections are closed as soon as they are made.
    away: bool,
    stopping: bool,
    /// In the order in which they were made.
    events: Vec<Value>,
    /// Whoever posts or patches an Event lacks the right.
    forbids_events: bool,
    requests: Vec<Request>,
    streams: Vec<TcpStream>,
    /// How often all connections were broken.
    breaks: usize,
    watches: usize,
}

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was read.
    pub at: Instant,
    /// `GET`, `POST` or `PATCH`.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query's parameters, decoded.
    pub query: Vec<(String, String)>,
    /// The header `Accept`.
    pub accept: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The header `Content-Type`.
    pub content_type: String,
    /// The header `Sec-WebSocket-Key`.
    pub websocket_key: String,
    /// The body, when it is JSON.
    pub body: Option<Value>,
}

impl Request {
    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether it begins a watch.
    pub fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("1" | "true"))
    }
}

impl ApiServer {
    /// A server on a port of 127.0.0.1 that the kernel chooses, without TLS.
    #[track_caller]
    pub fn start() -> ApiServer {
        ApiServer::start_in(&Place::here())
    }

    /// One in another network namespace.
    #[track_caller]
    pub fn start_in(place: &Place) -> ApiServer {
        ApiServer::start_at(place, Ipv4Addr::LOCALHOST.into())
    }

    /// One on an address of another network namespace, for whoever reaches that.
    #[track_caller]
    pub fn start_at(place: &Place, address: IpAddr) -> ApiServer {
        ApiServer::listen(place, address, None)
    }

    /// A server that speaks TLS, by a certificate that its own CA signed.
    #[track_caller]
    pub fn start_tls() -> ApiServer {
        ApiServer::start_tls_in(&Place::here())
    }

    /// As [`ApiServer::start_tls`], in another network namespace.
    #[track_caller]
    pub fn start_tls_in(place: &Place) -> ApiServer {
        let address = Ipv4Addr::LOCALHOST.into();
        ApiServer::listen(place, address, Some(tls::Identity::new(address).or_fail()))
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    #[track_caller]
    fn listen(place: &Place, address: IpAddr, identity: Option<tls::Identity>) -> ApiServer {
        let listener = place
            .run(|| TcpListener::bind((address, 0)))
            .step(|| "listen for the API server's clients")
            .or_fail();
        let address = listener
            .local_addr()
            .step(|| "find the server's port")
            .or_fail();
        let shared = Arc::new(Shared::default());
        let (ca, config) = match identity {
            Some(identity) => (Some(identity.ca), Some(identity.config)),
            None => (None, None),
        };
        let accepting = listener.try_clone().step(|| "duplicate a socket").or_fail();
        let acceptor = thread::Builder::new()
            .name("apiserver".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || accept(&accepting, &shared, config.as_ref())
            })
            .step(|| "start the API server's thread")
            .or_fail();
        ApiServer {
            address,
            ca,
            listener,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The certificate of its CA, PEM; empty without TLS.
    pub fn ca(&self) -> &str {
        self.ca.as_deref().unwrap_or_default()
    }

    /// Creates an object or changes it; one without a kind is a pod.
    pub fn apply(&self, object: Value) {
        self.change(|state| state.store.apply(object));
    }

    /// Deletes a pod.
    pub fn delete(&self, namespace: &str, name: &str) {
        self.delete_object("Pod", namespace, name);
    }

    /// Deletes an object, or marks it if it has finalizers; the namespace of one without is empty.
    pub fn delete_object(&self, kind: &str, namespace: &str, name: &str) {
        let (resource, key) = (objects::resource_of(kind), format!("{namespace}/{name}"));
        self.change(|state| state.store.delete(resource, &key));
    }

    /// An object as it is now.
    pub fn object(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let (resource, key) = (objects::resource_of(kind), format!("{namespace}/{name}"));
        self.shared.lock().store.get(resource, &key).cloned()
    }

    /// Waits until an object is as wanted, and returns it.
    #[track_caller]
    pub fn await_object(
        &self,
        (kind, namespace, name): (&str, &str, &str),
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let (resource, key) = (objects::resource_of(kind), format!("{namespace}/{name}"));
        let awaited = format!("{kind} {key} as wanted");
        self.await_state(&awaited, |state| {
            state.store.get(resource, &key).is_some_and(&wanted)
        });
        self.object(kind, namespace, name).unwrap_or_default()
    }

    /// Waits until there is no such object.
    #[track_caller]
    pub fn await_missing(&self, (kind, namespace, name): (&str, &str, &str)) {
        let (resource, key) = (objects::resource_of(kind), format!("{namespace}/{name}"));
        self.await_state(&format!("no {kind} {key}"), |state| {
            state.store.get(resource, &key).is_none()
        });
    }

    /// Sends a bookmark to every watch that asked for them.
    pub fn bookmark(&self) {
        self.change(|state| state.store.bookmark());
    }

    /// Compacts the log, so that watches must begin anew; open ones get an event.
    pub fn compact(&self) {
        self.change(|state| {
            state.gone_as_status = false;
            state.store.compact();
        });
    }

    /// As [`ApiServer::compact`], but a watch of an old version is answered with status 410.
    pub fn compact_with_status(&self) {
        self.change(|state| {
            state.gone_as_status = true;
            state.store.compact();
        });
    }

    /// Breaks every connection.
    pub fn break_connections(&self) {
        self.change(|state| {
            state.breaks += 1;
            for stream in state.streams.drain(..) {
                // One that is closed already needs no more.
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    /// Stops serving and closes every connection, or serves again; changes are kept in between.
    pub fn go_away(&self, away: bool) {
        self.change(|state| state.away = away);
        if away {
            self.break_connections();
        }
    }

    /// Whether watches end as soon as they have begun.
    pub fn end_watches(&self, end: bool) {
        self.change(|state| state.ends_watches = end);
    }

    /// Only these tokens are good from now on; `None` asks for none. Watches under way go on, as on
    /// the real one.
    pub fn accept_tokens(&self, tokens: Option<&[&str]>) {
        let tokens = tokens.map(|tokens| tokens.iter().map(|token| (*token).to_owned()).collect());
        self.change(|state| state.tokens = tokens);
    }

    /// Has EndpointSlices of one version alone: `v1`, or `v1beta1` as Kubernetes before 1.21; or of
    /// `all`, as it had until 1.25.
    pub fn has_slices_of(&self, version: &'static str) {
        self.change(|state| state.discovery = Some(version));
    }

    /// Has no resource of this group.
    pub fn lacks(&self, group: &'static str) {
        self.change(|state| state.lacks = Some(group));
    }

    /// Answers requests wrongly from now on, or rightly again. A watch under way goes on.
    pub fn misbehave(&self, hostile: Option<Hostile>) {
        self.change(|state| state.hostile = hostile);
    }

    /// Runs what is asked for in pods' containers; an error is the kubelet's refusal.
    pub fn runs(&self, run: impl Fn(&Exec) -> Result<Ended, String> + Send + Sync + 'static) {
        self.change(|state| state.kubelet = exec::Kubelet::new(Arc::new(run)));
    }

    /// Whether answers wait. Those that wait when it ends are given.
    pub fn hold(&self, hold: bool) {
        self.change(|state| state.held = hold);
    }

    /// The resource about which answers wait. Those that wait when it changes are given.
    pub fn withhold(&self, resource: Option<&'static str>) {
        self.change(|state| state.withheld = resource);
    }

    /// The Events that were created and not removed since.
    pub fn events(&self) -> Vec<Value> {
        self.shared.lock().events.clone()
    }

    /// Waits until there are Events as wanted.
    #[track_caller]
    pub fn await_events(&self, awaited: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.await_state(awaited, |state| wanted(&state.events));
        self.events()
    }

    /// Whether creating and changing Events is forbidden, as without the role for it.
    pub fn forbid_events(&self, forbid: bool) {
        self.change(|state| state.forbids_events = forbid);
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// Waits until a request came that is wanted, and returns how many came before and with it.
    #[track_caller]
    pub fn await_requests(
        &self,
        awaited: &str,
        wanted: impl Fn(&[Request]) -> bool,
    ) -> Vec<Request> {
        self.await_state(awaited, |state| wanted(&state.requests));
        self.requests()
    }

    /// Waits until so many watches are open at once.
    #[track_caller]
    pub fn await_watches(&self, count: usize) {
        self.await_state(&format!("{count} open watches"), |state| {
            state.watches == count
        })
    }

    #[track_caller]
    fn await_state(&self, awaited: &str, wanted: impl Fn(&State) -> bool) {
        let began = Instant::now();
        let mut state = self.shared.lock();
        while !wanted(&state) {
            let left = LIMIT.saturating_sub(began.elapsed());
            if left.is_zero() {
                let seen = (state.watches, &state.requests);
                panic!("waited {LIMIT:?} for {awaited}; watches and requests: {seen:?}");
            }
            state = self.shared.wait(state, left);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.shared.lock());
        self.shared.changed.notify_all();
        changed
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.change(|state| {
            state.stopping = true;
            state.held = false;
        });
        self.break_connections();
        // accept(2) returns EINVAL on a listening socket that was shut down.
        let _ =
            nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let woken = self.changed.wait_timeout(state, limit);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    config: Option<&Arc<rustls::ServerConfig>>,
) {
    let mut connections = Vec::new();
    while let Ok((stream, _)) = listener.accept() {
        let Ok(handle) = stream.try_clone() else {
            continue;
        };
        {
            let mut state = shared.lock();
            if state.stopping {
                break;
            }
            if state.away {
                continue;
            }
            state.streams.push(handle);
        }
        let (shared, config) = (Arc::clone(shared), config.cloned());
        connections.push(thread::spawn(move || {
            // A client that goes away is its own affair.
            let _: io::Result<()> = match config {
                None => connection::serve(stream, &shared),
                Some(config) => tls::accept(stream, config)
                    .and_then(|stream| connection::serve(stream, &shared)),
            };
        }));
    }
    for connection in connections {
        let _ = connection.join();
    }
}
