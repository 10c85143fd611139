//! Pages for programs: metrics, and whether a service has endpoints here.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::{debug, warn};

/// Time limit for a request to arrive, and for a client to read its answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause before the next accept if no descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest header, in bytes.
const MOST_HEADER: usize = 16 << 10;

/// A page: status, media type and body.
pub(crate) type Page = (StatusCode, &'static str, String);

/// Serves `answer` for every path until it is dropped.
pub(crate) async fn serve<A>(listener: TcpListener, answer: A)
where
    A: Fn(&str) -> Page + Clone + Send + Sync + 'static,
{
    let mut clients = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(clients.spawn(client(stream, answer.clone()))),
                Err(error) => {
                    warn!(%error, "a client can't be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            _ = clients.join_next(), if !clients.is_empty() => {}
        }
    }
}

async fn client<A>(stream: TcpStream, answer: A)
where
    A: Fn(&str) -> Page + Clone + Send + Sync + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (status, kind, body) = answer(request.uri().path());
        let mut response = Response::new(Full::<Bytes>::from(body));
        *response.status_mut() = status;
        let kind = hyper::header::HeaderValue::from_static(kind);
        response
            .headers_mut()
            .insert(hyper::header::CONTENT_TYPE, kind);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LIMIT)
        .max_buf_size(MOST_HEADER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(2 * LIMIT, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a client's connection ended"),
        Err(_) => debug!("a client took too long"),
    }
}
