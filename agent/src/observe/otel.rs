//! Export of operations as OpenTelemetry spans, in builds with the feature `otel`.
//!
//! OTLP over HTTP with JSON (opentelemetry-proto, "OTLP/HTTP Request", JSON encoding) is one POST
//! of a document, so the HTTP client that is here anyway will do. Operations go into a queue that
//! is never waited for; one task takes out what has gathered and sends it to the collector that the
//! environment names, as every OpenTelemetry SDK does (OTEL_EXPORTER_OTLP_ENDPOINT). What it does
//! not take is dropped: a collector that is away must not cost the node anything.

mod spans;

use std::error::Error;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::trace::Operation;

/// Operations that may wait to be sent.
const QUEUE: usize = 1024;
/// Operations that go in one request.
const BATCH: usize = 128;
/// How long a collector may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Where traces go below an endpoint (OTLP/HTTP, "default path").
const PATH: &str = "/v1/traces";

/// Where finished operations go.
#[derive(Debug)]
pub(super) struct Exporter(mpsc::Sender<Operation>);

/// A collector's address that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{variable}={value}: {problem}")]
struct EndpointError {
    variable: &'static str,
    value: String,
    problem: &'static str,
}

impl Exporter {
    /// Starts the task that sends to the collector that the environment names, on the current tokio
    /// runtime; None when it names none.
    pub(super) fn of_environment() -> Option<Self> {
        let collector = match collector(|name| std::env::var(name).ok()) {
            Ok(collector) => collector?,
            Err(error) => {
                tracing::error!(%error, "no spans are exported");
                return None;
            }
        };
        let (queue, operations) = mpsc::channel(QUEUE);
        tracing::info!(%collector, "exporting spans");
        tokio::spawn(run(collector, operations));
        Some(Self(queue))
    }

    /// Sends an operation when its trace is recorded at all: its caller said so, or there is none
    /// to ask.
    pub(super) fn offer(&self, operation: &Operation) {
        let parent = operation.traceparent.as_ref();
        if parent.is_none_or(|parent| parent.is_sampled()) {
            // Dropped when the queue is full.
            let _ = self.0.try_send(operation.clone());
        }
    }
}

/// The variable for traces is a whole URL, the one for all signals is what their paths are appended
/// to.
fn collector(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Uri>, EndpointError> {
    const OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let (name, value, url) = match (set(OF_TRACES), set(OF_ALL)) {
        (Some(url), _) => (OF_TRACES, url.clone(), url),
        (None, Some(base)) => {
            let url = format!("{}{PATH}", base.trim_end_matches('/'));
            (OF_ALL, base, url)
        }
        (None, None) => return Ok(None),
    };
    let bad = |problem| EndpointError {
        variable: name,
        value: value.clone(),
        problem,
    };
    let uri: Uri = url.parse().map_err(|_| bad("not a URL"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(Some(uri)),
        _ => Err(bad(
            "expected http://HOST:PORT, as of a collector on this node",
        )),
    }
}

async fn run(collector: Uri, mut operations: mpsc::Receiver<Operation>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut is_failing = false;
    while operations.recv_many(&mut batch, BATCH).await > 0 {
        let document = spans::document(&batch).to_string();
        batch.clear();
        let sent = tokio::time::timeout(DEADLINE, post(&collector, document)).await;
        let problem = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!(
                "no answer within {}",
                crate::duration::text(DEADLINE)
            )),
        };
        match problem {
            Some(error) if !is_failing => {
                tracing::warn!(%collector, error, "the collector takes no spans; they are dropped");
                is_failing = true;
            }
            Some(_) => {}
            None => is_failing = false,
        }
    }
}

/// One connection for each batch: operations come in bursts, with long times between.
async fn post(collector: &Uri, document: String) -> Result<(), Box<dyn Error + Send + Sync>> {
    let host = collector.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((address, collector.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let path = collector.path_and_query().map_or("/", |it| it.as_str());
    let request = Request::post(path)
        .header(HOST, host)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(document)))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        // Without it the connection would wait for another request.
        drop(sender);
        Ok::<_, hyper::Error>(status)
    };
    let (status, _) = tokio::join!(exchange, connection);
    match status? {
        status if status.is_success() => Ok(()),
        status => Err(format!("it answered {status}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(of_traces: Option<&str>, of_all: Option<&str>) -> Result<Option<String>, String> {
        let found = collector(|name| {
            let value = if name.contains("TRACES") {
                of_traces
            } else {
                of_all
            };
            value.map(str::to_owned)
        });
        found
            .map(|uri| uri.map(|uri| uri.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_collector_is_named_as_for_every_exporter() {
        let url = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(endpoint(None, None), Ok(None));
        assert_eq!(endpoint(Some(""), None), Ok(None));
        assert_eq!(
            endpoint(None, Some("http://127.0.0.1:4318/")),
            url("http://127.0.0.1:4318/v1/traces")
        );
        assert_eq!(
            endpoint(Some("http://a:1/x"), Some("http://b:2")),
            url("http://a:1/x")
        );
        let error = endpoint(None, Some("https://a:1")).unwrap_err();
        assert!(error.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT=https://a:1: expected http://"));
    }
}
