//! A question to a running agent: HTTP/1.1 on its socket, one connection each. Those who ask say for how long they wait, and what
//! an answer means.

use std::io;
use std::path::Path;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use podwire_cni::wire;
use tokio::net::UnixStream;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// Nobody listens there, or not to us.
    #[error("{0}")]
    Connect(io::Error),
    /// What was to be asked is no request.
    #[error("{0}")]
    Request(#[from] hyper::http::Error),
    /// The connection ended before an answer began.
    #[error("{0}")]
    Connection(#[from] hyper::Error),
}

/// Asks, and waits until the answer begins; its body may still be on the way. Needs a tokio runtime.
///
/// # Errors
/// There is no answer. One that refuses is an answer.
pub(crate) async fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Unanswered> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(Unanswered::Connect)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with the runtime.
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "podwire")
        .header(wire::WIRE_HEADER, wire::WIRE_VERSION)
        .body(Full::new(body))?;
    Ok(sender.send_request(request).await?)
}
