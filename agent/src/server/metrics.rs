//! GET /metrics over TCP, for monitoring systems that can't use a unix socket.
//!
//! Only on a loopback address, and only this page: it contains no pod's name and changes nothing.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Incoming;
use podwire_daemon::http;
use tokio_util::sync::CancellationToken;

use super::metrics_page;
use crate::attach::Agent;

/// Serves until `stop` is cancelled; a page in progress is dropped.
///
/// # Errors
/// The listener can't be registered.
pub async fn serve(
    listener: TcpListener,
    agent: Arc<Agent>,
    stop: CancellationToken,
) -> io::Result<()> {
    let pages = move |request: hyper::Request<Incoming>| {
        let agent = Arc::clone(&agent);
        async move {
            match request.uri().path() {
                "/metrics" => metrics_page(&agent, request.headers()).await,
                _ => http::text(StatusCode::NOT_FOUND, "only /metrics is served here\n"),
            }
        }
    };
    tokio::select! {
        served = http::serve(listener, Arc::default(), pages) => match served? {},
        () = stop.cancelled() => Ok(()),
    }
}
