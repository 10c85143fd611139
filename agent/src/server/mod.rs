//! The HTTP/1.1 server on the agent's unix socket, one task per connection.
//!
//! A connection is checked before a byte of it is read: only root is accepted. What one client can
//! cost the others is limited: connections, header and body, in size and time. Each verb runs in
//! its own task, and the connection only waits for it: if the client disconnects (the runtime
//! killed the plugin), the operation is cancelled and undoes itself.

mod client;
pub mod metrics;
mod pages;
pub mod socket;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use podwire_cni::spec::{CniVersion, ErrorCode, SpecError};
use podwire_cni::wire;
use podwire_daemon::http::{self, ConnectionLimit, Listener, REQUEST_DEADLINE, Slot};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use client::Client;
use pages::Watching;
use socket::AgentSocket;

use crate::attach::{Agent, Cancel, Reason, Reply};
use crate::observe::PageFormat;

/// Connections that may wait at once.
const MOST_WAITING: usize = 1024;
/// The longest time for which an answer about the agent's health is held back.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
type BodyError = Box<dyn std::error::Error + Send + Sync>;
type Response = hyper::Response<Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>>;

/// Serves until `stop` is cancelled, then serves those already connected, and waits for operations
/// in progress.
pub async fn serve(socket: &mut AgentSocket, agent: Arc<Agent>, stop: CancellationToken) {
    let limit = Arc::new(ConnectionLimit::new(MOST_WAITING));
    let connections = TaskTracker::new();
    let watching = Watching::new(stop.clone());
    let mut welcome = |stream: UnixStream, slot: Slot| {
        let (agent, watching) = (Arc::clone(&agent), watching.clone());
        connections.spawn(connection(stream, agent, Arc::new(slot), watching));
    };
    tokio::select! {
        never = http::accept(socket, &limit, &mut welcome) => match never {},
        () = stop.cancelled() => {}
    }
    for stream in socket.close().into_iter().filter(is_root) {
        welcome(stream, limit.enter());
    }
    connections.close();
    connections.wait().await;
}

impl Listener for AgentSocket {
    type Stream = UnixStream;

    /// The next connection of root.
    async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            let stream = Self::accept(self).await?;
            if is_root(&stream) {
                return Ok(stream);
            }
        }
    }
}

/// Whether the peer is root, by the credentials that the kernel recorded when it connected
/// (SO_PEERCRED, unix(7)).
fn is_root(stream: &UnixStream) -> bool {
    let problem = match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => return true,
        Ok(peer) => format!(
            "uid {} (pid {}) is not root",
            peer.uid(),
            peer.pid().unwrap_or(0)
        ),
        Err(error) => format!("peer credentials: {error}"),
    };
    tracing::warn!("connection refused: {problem}");
    false
}

async fn connection(stream: UnixStream, agent: Arc<Agent>, slot: Arc<Slot>, watching: Watching) {
    let stop = watching.stop.clone();
    let begun = CancellationToken::new();
    let service = service_fn(|request| {
        begun.cancel();
        let (agent, slot) = (Arc::clone(&agent), Arc::clone(&slot));
        let watching = watching.clone();
        async move {
            let response = respond(request, agent, &slot, &watching).await;
            slot.waits();
            Ok::<_, Infallible>(response)
        }
    });
    let client = Client::new(stream);
    let stream = TokioIo::new(client.clone());
    let mut connection = std::pin::pin!(http::http1().serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // The connection takes its request along: nobody waits for the answer.
        () = client.gone() => {
            tracing::trace!("the client disconnected");
            return;
        }
        () = slot.evicted() => {
            tracing::debug!("connection closed: it had waited longest when another came");
            return;
        }
        () = stop.cancelled() => {
            // hyper would immediately close a connection from which it has read nothing, although
            // the request may be on its way.
            tokio::select! {
                _ = connection.as_mut() => return,
                () = begun.cancelled() => {}
            }
            // A request in progress is answered; an idle connection is closed.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    agent: Arc<Agent>,
    slot: &Slot,
    watching: &Watching,
) -> Response {
    if (request.method(), request.uri().path()) == (&Method::POST, wire::PATH) {
        return cni(request, agent, slot).await;
    }
    pages::respond(&request, agent, slot, watching).await
}

async fn cni(request: hyper::Request<Incoming>, agent: Arc<Agent>, slot: &Slot) -> Response {
    let body = whole(request.into_body(), slot);
    let body = match tokio::time::timeout(REQUEST_DEADLINE, body).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let limit = wire::MAX_REQUEST;
            let msg = format!("request body can't be read (the limit is {limit} bytes): {error}");
            return problem(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::IO, msg);
        }
        Err(_) => {
            let limit = crate::duration::text(REQUEST_DEADLINE);
            let msg = format!("request body did not arrive within {limit}");
            return problem(StatusCode::REQUEST_TIMEOUT, ErrorCode::IO, msg);
        }
    };
    slot.completed();
    let cancel = Arc::new(Cancel::default());
    let on_disconnect = CancelOnDrop(Some(Arc::clone(&cancel)));
    // tokio moves a future of this size several times.
    let reply = tokio::spawn(Box::pin(agent.serve(body, cancel))).await;
    on_disconnect.disarm();
    match reply {
        Ok(Reply {
            answer: Ok(result),
            stderr,
        }) => with_stderr(StatusCode::OK, result, &stderr),
        Ok(Reply {
            answer: Err(error),
            stderr,
        }) => with_stderr(StatusCode::INTERNAL_SERVER_ERROR, error, &stderr),
        Err(error) => died(&error),
    }
}

/// A request's complete body.
async fn whole(body: Incoming, slot: &Slot) -> Result<Bytes, BodyError> {
    let mut body = Limited::new(body, wire::MAX_REQUEST);
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        // A frame without data is a trailer, which is ignored.
        if let Ok(data) = frame?.into_data() {
            slot.grew(data.len());
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.into())
}

/// Tells an operation that its client has disconnected, when hyper drops the request's future.
struct CancelOnDrop(Option<Arc<Cancel>>);

impl CancelOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel.cancel(Reason::ClientGone);
        }
    }
}

fn died(error: &tokio::task::JoinError) -> Response {
    tracing::error!(%error, "an operation's task died");
    let msg = "the agent met an error of its own; its log has more";
    problem(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::INTERNAL, msg)
}

fn problem(status: StatusCode, code: ErrorCode, msg: impl Into<String>) -> Response {
    json(
        status,
        SpecError::new(code, msg).to_json(CniVersion::LATEST),
    )
}

async fn metrics_page(agent: &Agent, headers: &HeaderMap) -> http::Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = PageFormat::accepted(accept);
    let page = format.of(agent.metrics_page().await);
    http::typed(StatusCode::OK, format.media_type(), page)
}

/// An answer to the plugin, with the text for its standard error at the body's end. The answer has
/// priority: if it leaves no room, it goes alone.
fn with_stderr(status: StatusCode, mut answer: String, stderr: &str) -> Response {
    if stderr.is_empty() || answer.len() + stderr.len() > wire::MAX_REPLY {
        return json(status, answer);
    }
    answer.push_str(stderr);
    let mut response = json(status, answer);
    response
        .headers_mut()
        .insert(wire::STDERR_HEADER, HeaderValue::from(stderr.len()));
    response
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    http::typed(status, "application/json", body).map(Either::Left)
}
