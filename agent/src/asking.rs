//! Requests to a running agent: HTTP/1.1 on its socket, one connection each. The caller decides how
//! long to wait and what an answer means.

use std::error::Error;
use std::io;
use std::path::Path;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyperlocal::{UnixClientExt as _, Uri};
use podwire_cni::wire;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Nobody listens there, or the connection was refused.
    #[error("{0}")]
    Connect(io::Error),
    /// The request is invalid.
    #[error("{0}")]
    Request(#[from] hyper::http::Error),
    /// The connection ended before an answer began.
    #[error("{0}")]
    Connection(Box<dyn Error + Send + Sync>),
}

impl Unanswered {
    /// The client's own message only names the step that failed.
    fn of(error: hyper_util::client::legacy::Error) -> Self {
        let is_connect = error.is_connect();
        match error.source() {
            Some(cause) if is_connect => Self::Connect(errno_of(cause)),
            Some(cause) => Self::Connection(cause.to_string().into()),
            None => Self::Connection(error.into()),
        }
    }
}

/// The kernel's error from connect(2).
fn errno_of(cause: &(dyn Error + 'static)) -> io::Error {
    let errno = cause.downcast_ref().and_then(io::Error::raw_os_error);
    errno.map_or_else(
        || io::Error::other(cause.to_string()),
        io::Error::from_raw_os_error,
    )
}

/// Sends a request, and waits until the answer begins; its body may still be on the way. Needs a
/// tokio runtime.
///
/// # Errors
/// There is no answer. A refusal is an answer.
pub async fn ask(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Unanswered> {
    let request = Request::builder()
        .method(method)
        .uri(Uri::new(socket, path))
        .header(wire::WIRE_HEADER, wire::WIRE_VERSION)
        .body(Full::new(body))?;
    let client: Client<_, Full<Bytes>> = Client::unix();
    client.request(request).await.map_err(Unanswered::of)
}
