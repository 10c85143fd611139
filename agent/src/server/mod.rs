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
mod waiting;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use podwire_cni::spec::{CniVersion, ErrorCode, SpecError};
use podwire_cni::wire;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use client::Client;
use pages::Watching;
use socket::AgentSocket;
use waiting::{Presence, Waiting};

use crate::attach::{Agent, Cancel, Reason, Reply};
use crate::observe::PageFormat;

/// A plugin sends its whole request at once; a client that takes longer is none.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// After accept(2) failed for lack of descriptors or memory, no event tells when there are some
/// again.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The longest time for which an answer about the agent's health is held back.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Largest header; the plugin's has three fields.
const MAX_HEADER: usize = 16 * 1024;

type BodyError = Box<dyn std::error::Error + Send + Sync>;
type Response = hyper::Response<Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>>;

/// Serves until `stop` is cancelled, then serves those already connected, and waits for operations
/// in progress.
///
/// # Errors
/// The limit of open descriptors can't be read.
pub async fn serve(
    socket: &mut AgentSocket,
    agent: Arc<Agent>,
    stop: CancellationToken,
) -> io::Result<()> {
    let waiting = Arc::new(Waiting::for_this_process()?);
    let connections = TaskTracker::new();
    let watching = Watching::new(stop.clone());
    let welcome = |stream: UnixStream| {
        if let Err(refused) = is_root(&stream) {
            tracing::warn!("connection refused: {refused}");
            return;
        }
        let presence = Arc::new(waiting.enter());
        let (agent, watching) = (Arc::clone(&agent), watching.clone());
        connections.spawn(connection(stream, agent, presence, watching));
    };
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok(stream) => {
                let is_full = waiting.is_full();
                welcome(stream);
                if is_full {
                    // The connection that has to go holds its descriptor until its task has run.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed; trying again shortly");
                waiting.end_oldest();
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    socket.close().into_iter().for_each(welcome);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// Whether the peer is root, by the credentials that the kernel recorded when it connected
/// (SO_PEERCRED, unix(7)).
fn is_root(stream: &UnixStream) -> Result<(), String> {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => Ok(()),
        Ok(peer) => Err(format!(
            "uid {} (pid {}) is not root",
            peer.uid(),
            peer.pid().unwrap_or(0)
        )),
        Err(error) => Err(format!("peer credentials: {error}")),
    }
}

async fn connection(
    stream: UnixStream,
    agent: Arc<Agent>,
    presence: Arc<Presence>,
    watching: Watching,
) {
    let stop = watching.stop.clone();
    let begun = CancellationToken::new();
    let service = service_fn(|request| {
        begun.cancel();
        let (agent, presence) = (Arc::clone(&agent), Arc::clone(&presence));
        let watching = watching.clone();
        async move {
            let response = respond(request, agent, &presence, &watching).await;
            presence.waits();
            Ok::<_, Infallible>(response)
        }
    });
    let client = Client::new(stream);
    let mut connection = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_DEADLINE)
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(client.clone()), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // The connection takes its request along: nobody waits for the answer.
        () = client.gone() => {
            tracing::trace!("the client disconnected");
            return;
        }
        () = presence.ended() => {
            tracing::debug!(
                "connection closed: it had waited longest when another needed its place"
            );
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
    presence: &Presence,
    watching: &Watching,
) -> Response {
    if (request.method(), request.uri().path()) == (&Method::POST, wire::PATH) {
        return cni(request, agent, presence).await;
    }
    // The requests below have no body to wait for.
    presence.completed();
    pages::respond(&request, agent, watching).await
}

async fn cni(
    request: hyper::Request<Incoming>,
    agent: Arc<Agent>,
    presence: &Presence,
) -> Response {
    let body = whole(request.into_body(), presence);
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
    presence.completed();
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
async fn whole(body: Incoming, presence: &Presence) -> Result<Bytes, BodyError> {
    let mut body = Limited::new(body, wire::MAX_REQUEST);
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        // A frame without data is a trailer, which is ignored.
        if let Ok(data) = frame?.into_data() {
            presence.grew(data.len());
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

async fn metrics_page(agent: &Agent, headers: &HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = PageFormat::accepted(accept);
    let page = format.of(agent.metrics_page().await);
    typed(StatusCode::OK, format.media_type(), page)
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

fn text(status: StatusCode, body: &'static str) -> Response {
    typed(status, "text/plain; charset=utf-8", body)
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    typed(status, "application/json", body)
}

fn typed(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Raises the soft limit of open descriptors to the hard one: each pod being wired holds a few.
///
/// # Errors
/// The limit can't be read or set.
pub fn raise_descriptor_limit() -> io::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
