//! GET /metrics over TCP, for monitoring systems that can't use a unix socket.
//!
//! Only on a loopback address, and only this page: it contains no pod's name and changes nothing.

use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{ACCEPT_BACKOFF, MAX_HEADER, REQUEST_DEADLINE, Response, metrics_page, text};
use crate::attach::Agent;

/// Concurrent connections. Further ones wait until one ends, which takes no longer than a request
/// may.
const MOST: usize = 16;

/// Serves until `stop` is cancelled; a page in progress is dropped.
///
/// # Errors
/// The listener can't be registered.
pub async fn serve(
    listener: StdListener,
    agent: Arc<Agent>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MOST));
    let serving = async {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let agent = Arc::clone(&agent);
                    tokio::spawn(async move {
                        let _place = place;
                        connection(TokioIo::new(stream), agent).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "accept of a metrics client failed; trying again shortly"
                    );
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = stop.cancelled() => {}
    }
    Ok(())
}

async fn connection(stream: TokioIo<tokio::net::TcpStream>, agent: Arc<Agent>) {
    let service = service_fn(|request| {
        let agent = Arc::clone(&agent);
        async move { Ok::<_, Infallible>(respond(&request, &agent).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_DEADLINE)
        .max_buf_size(MAX_HEADER)
        .keep_alive(false)
        .serve_connection(stream, service);
    // A client that does not read its page must not keep its slot.
    match tokio::time::timeout(2 * REQUEST_DEADLINE, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a metrics client's connection ended"),
        Err(_) => tracing::debug!("a metrics client took too long"),
    }
}

async fn respond(request: &hyper::Request<Incoming>, agent: &Agent) -> Response {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => metrics_page(agent, request.headers()).await,
        (_, "/metrics") => text(StatusCode::METHOD_NOT_ALLOWED, "metrics are for GET\n"),
        _ => text(StatusCode::NOT_FOUND, "only /metrics is served here\n"),
    }
}
