//! Requests to the agent's socket: whether it can serve an ADD, which ports exist, and DELs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use podwire_cni::env::Invocation;
use podwire_cni::spec::{Command, SpecError};
use podwire_cni::wire::{self, Request};
use podwire_daemon::files::FileEvents;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::asking::{self, Unanswered};
use crate::config::usual::PLUGIN_NAMES;
use crate::plan::AttachmentKey;

/// Time limit for an answer that the agent does not hold back.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// The same for its health, which it knows.
const HEALTH_DEADLINE: Duration = Duration::from_secs(5);
/// The largest answer accepted, in bytes: that of a node full of ports.
const LARGEST: usize = 64 << 20;

/// Why a request to the agent failed.
#[derive(Debug, thiserror::Error)]
#[error("podwire agent at {}: {problem}", .socket.display())]
pub struct AskError {
    socket: PathBuf,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    NotThere(io::Error),
    #[error("{0}")]
    Connection(Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer within {}", crate::duration::text(*.0))]
    Expired(Duration),
    #[error("it answered {status}: {body}")]
    Refused { status: StatusCode, body: String },
    #[error("watch its directory: {0}")]
    Watch(io::Error),
}

impl From<Unanswered> for Problem {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Connect(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Self::NotThere(error)
            }
            other => Self::Connection(other.into()),
        }
    }
}

impl AskError {
    /// Whether no agent listens; one may start later.
    fn is_not_there(&self) -> bool {
        matches!(self.problem, Problem::NotThere(_))
    }
}

/// The answer to `GET /v1/health`.
#[derive(Debug, Deserialize)]
pub(super) struct Health {
    /// Whether the agent would serve an ADD.
    pub(super) ready: bool,
    /// Why not.
    pub(super) reasons: Vec<String>,
}

/// The answer to `GET /v1/ports`.
#[derive(Debug, Deserialize)]
struct Ports {
    ports: Vec<Port>,
}

/// A port of the node.
#[derive(Debug, Deserialize)]
struct Port {
    key: Option<AttachmentKey>,
}

/// A node's agent.
#[derive(Debug, Clone)]
pub(super) struct AgentSocket(pub(super) PathBuf);

impl AgentSocket {
    /// Waits until the agent would serve an ADD. It may not run yet, and its socket's directory may
    /// not exist.
    ///
    /// # Errors
    /// The time is up; the text says what was seen instead.
    pub(super) async fn await_ready(&self, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.next_health(left).await {
                Ok(Health { ready: true, .. }) => return Ok(()),
                Ok(health) if left.is_zero() => return Err(health.reasons.join("; ")),
                Err(error) if left.is_zero() || !error.is_not_there() => {
                    return Err(error.to_string());
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// The agent's health, held back until it is ready or the time is up.
    ///
    /// # Errors
    /// The request failed.
    pub(super) async fn health(&self, patience: Duration) -> Result<Health, AskError> {
        let path = format!("/v1/health?wait={}", patience.as_secs_f32().ceil());
        self.get(&path, HEALTH_DEADLINE + patience).await
    }

    /// Like [`Self::health`]; if there is no agent, waits for a change at its socket's path.
    async fn next_health(&self, patience: Duration) -> Result<Health, AskError> {
        let directory = self.0.parent().unwrap_or(Path::new("/"));
        let changes = FileEvents::of_sockets(directory)
            .map_err(|error| self.failed(Problem::Watch(error)))?;
        let answer = self.health(patience).await;
        if answer.as_ref().is_err_and(AskError::is_not_there) {
            let _ = tokio::time::timeout(patience, changes.next()).await;
        }
        answer
    }

    /// The attachments for which the agent has a port.
    ///
    /// # Errors
    /// The request failed.
    pub(super) async fn attachments(&self) -> Result<Vec<AttachmentKey>, AskError> {
        let Ports { ports } = self.get("/v1/ports", ANSWER_DEADLINE).await?;
        let mut keys: Vec<AttachmentKey> = ports.into_iter().filter_map(|port| port.key).collect();
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// Has the agent execute a DEL, as the plugin would.
    ///
    /// # Errors
    /// The request failed, or the DEL itself.
    pub(super) async fn del(&self, key: &AttachmentKey) -> Result<(), AskError> {
        let conf = serde_json::json!({
            "cniVersion": "1.0.0", "name": key.network, "type": PLUGIN_NAMES[0],
        });
        let config = RawValue::from_string(conf.to_string())
            .map_err(|error| self.failed(Problem::Connection(error.into())))?;
        let request = Request {
            invocation: Invocation {
                command: Command::Del,
                container_id: key.container_id.clone(),
                netns: String::new(),
                ifname: key.ifname.clone(),
                args: String::new(),
                path: String::new(),
            },
            config,
            environment: std::collections::BTreeMap::new(),
            traceparent: None,
            takes_stderr: false,
        };
        self.ask(
            Method::POST,
            wire::PATH,
            request.encode().into(),
            ANSWER_DEADLINE,
        )
        .await
        .map(drop)
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<T, AskError> {
        let body = self.ask(Method::GET, path, Bytes::new(), limit).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.failed(Problem::Connection(error.into())))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, AskError> {
        let answer = tokio::time::timeout(limit, self.exchange(method, path, body)).await;
        let (status, body) = answer
            .unwrap_or(Err(Problem::Expired(limit)))
            .map_err(|problem| self.failed(problem))?;
        if status.is_success() {
            return Ok(body);
        }
        let body = SpecError::from_json(&body).map_or_else(
            || String::from_utf8_lossy(&body).into_owned(),
            |error| error.msg,
        );
        Err(self.failed(Problem::Refused { status, body }))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Problem> {
        let answer = asking::ask(&self.0, method, path, body).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        Ok((status, body.map_err(Problem::Connection)?.to_bytes()))
    }

    fn failed(&self, problem: Problem) -> AskError {
        AskError {
            socket: self.0.clone(),
            problem,
        }
    }
}
