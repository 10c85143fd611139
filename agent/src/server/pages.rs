//! What the socket serves besides CNI: pages for operators, for their tools, and for monitoring.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Either, StreamBody};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use podwire_cni::spec::ErrorCode;
use podwire_cni::wire;
use podwire_daemon::http::Slot;
use tokio_util::sync::CancellationToken;

use super::{LONGEST_WAIT, Response, died, json, metrics_page, problem};
use crate::attach::{Agent, Error, Handles};
use crate::inspect::{self, Filter, Watchers};

/// Those who watch, and what ends it.
#[derive(Debug, Clone)]
pub(super) struct Watching {
    watchers: Watchers,
    /// Cancelled when the agent stops.
    pub(super) stop: CancellationToken,
}

impl Watching {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            watchers: Watchers::default(),
            stop,
        }
    }
}

/// Answers everything except `POST` of a CNI request.
pub(super) async fn respond(
    request: &hyper::Request<Incoming>,
    agent: Arc<Agent>,
    slot: &Slot,
    watching: &Watching,
) -> Response {
    let filter = match Filter::parse(request.uri().query()) {
        Ok(filter) => filter,
        Err(error) => {
            return problem(
                StatusCode::BAD_REQUEST,
                ErrorCode::DECODE,
                error.to_string(),
            );
        }
    };
    // There is no body to wait for, but who waits for the agent's health can make room as well.
    if filter.wait.is_none() {
        slot.completed();
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let page = metrics_page(&agent, request.headers()).await;
            page.map(Either::Left)
        }
        (&Method::GET, "/v1/health") => {
            let patience = Duration::from_secs(filter.wait.unwrap_or(0)).min(LONGEST_WAIT);
            json(StatusCode::OK, agent.health(patience).await)
        }
        (&Method::GET, "/v1/status") => view(inspect::status(&agent).await),
        (&Method::GET, "/v1/traces") => {
            json(StatusCode::OK, inspect::traces(&agent.recorder, &filter))
        }
        (&Method::GET, "/v1/ports") if filter.watch => {
            watch(Arc::clone(&agent.node), filter, watching)
        }
        (&Method::GET, "/v1/ports") => view(inspect::ports(&agent.node, &filter).await),
        (&Method::GET, "/v1/check") => view(inspect::check(&agent.node, &filter).await),
        (&Method::GET, "/v1/gc") => view(inspect::gc(&agent.node, false).await),
        (&Method::POST, "/v1/gc") => sweep(Arc::clone(&agent.node)).await,
        (_, wire::PATH) => problem(
            StatusCode::METHOD_NOT_ALLOWED,
            ErrorCode::DECODE,
            "CNI requests are POSTed",
        ),
        (method, path) => problem(
            StatusCode::NOT_FOUND,
            ErrorCode::DECODE,
            format!("the agent serves no {method} {path}"),
        ),
    }
}

fn watch(node: Arc<Handles>, filter: Filter, watching: &Watching) -> Response {
    let Some(place) = watching.watchers.enter() else {
        let msg = "too many watch the ports already; end one of them";
        return problem(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TRY_AGAIN, msg);
    };
    let changes = inspect::changes(node, filter, watching.stop.clone(), place);
    let body = UnsyncBoxBody::new(StreamBody::new(changes));
    let mut response = Response::new(Either::Right(body));
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Runs to completion even if nobody waits for the answer any more.
async fn sweep(node: Arc<Handles>) -> Response {
    let swept = tokio::spawn(async move { inspect::gc(&node, true).await });
    match swept.await {
        Ok(swept) => view(swept),
        Err(error) => died(&error),
    }
}

fn view(view: Result<impl serde::Serialize, Error>) -> Response {
    match view {
        Ok(view) => match serde_json::to_vec(&view) {
            Ok(text) => json(StatusCode::OK, text),
            Err(error) => problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                ErrorCode::INTERNAL,
                error.to_string(),
            ),
        },
        Err(error) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            error.code(),
            error.to_string(),
        ),
    }
}
