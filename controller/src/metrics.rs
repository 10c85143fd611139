//! GET /metrics, in the OpenMetrics text format; it contains no object's name.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::progress::Progress;

/// Concurrent connections; others wait.
const MOST: usize = 16;
/// Time limit of a connection.
const REQUEST: Duration = Duration::from_secs(10);
/// The pause after a failed accept, for example for lack of descriptors.
const PAUSE: Duration = Duration::from_secs(1);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, progress: watch::Receiver<Progress>) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let progress = progress.clone();
                tokio::spawn(async move {
                    let _place = place;
                    connection(TokioIo::new(stream), progress).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept of a metrics client failed; trying again shortly");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TokioIo<tokio::net::TcpStream>, progress: watch::Receiver<Progress>) {
    let service = service_fn(|request| {
        let answer = respond(&request, &progress.borrow());
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .keep_alive(false)
        .serve_connection(stream, service);
    // A client that does not read its page must not keep its slot.
    if timeout(2 * REQUEST, served).await.is_err() {
        tracing::debug!("a metrics client took too long");
    }
}

fn respond(request: &Request<Incoming>, progress: &Progress) -> Response<Full<Bytes>> {
    let answer = |status, text: String| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let mut response = answer(StatusCode::OK, page(progress));
            let value = hyper::header::HeaderValue::from_static(OPENMETRICS);
            response.headers_mut().insert(CONTENT_TYPE, value);
            response
        }
        (&Method::GET, "/healthz") => answer(StatusCode::OK, "ok\n".to_owned()),
        _ => answer(
            StatusCode::NOT_FOUND,
            "only /metrics and /healthz are served here\n".to_owned(),
        ),
    }
}

/// The page: what the leader has done, and the number of objects.
pub(crate) fn page(progress: &Progress) -> String {
    let mut registry = Registry::with_prefix("podwire_controller");
    let gauges = [
        (
            "leading",
            "1 while this controller leads",
            u64::from(progress.leads),
        ),
        (
            "ready",
            "1 once everything was compared with the database",
            u64::from(progress.is_ready),
        ),
        ("nodes", "Nodes that are known", progress.nodes),
        ("pods", "Pods on the pod network", progress.pods),
        ("services", "Services with cluster IPs", progress.services),
        (
            "problems",
            "Objects with a problem; each has an Event",
            progress.problems,
        ),
        (
            "retries",
            "Objects that are tried again in a moment",
            progress.retries,
        ),
    ];
    for (name, help, value) in gauges {
        registry.register(
            name,
            help,
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)),
        );
    }
    let counters = [
        (
            "passes",
            "Passes that had something to compare",
            progress.passes,
        ),
        (
            "compared_objects",
            "Objects compared with the database",
            progress.keys,
        ),
        (
            "operations",
            "Operations committed in the northbound database",
            progress.operations,
        ),
        ("writes", "Writes to the API server", progress.writes),
        (
            "write_failures",
            "Writes to the API server that failed",
            progress.write_failures,
        ),
        ("changes", "Changes of objects received", progress.changes),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_asks_for_numbers_that_are_on_the_page() {
        let page = page(&Progress::default());
        let dashboard = include_str!("../../deploy/grafana/podwire-controller.json");
        let is_part = |it: char| it.is_ascii_lowercase() || it == '_';
        let mut count = 0;
        for rest in dashboard.split("podwire_controller_").skip(1) {
            let name: String = rest.chars().take_while(|it| is_part(*it)).collect();
            assert!(
                page.contains(&format!("\npodwire_controller_{name} ")),
                "{name}\n{page}"
            );
            count += 1;
        }
        assert!(count > 10);
    }
}
