//! The tools' requests to the agent, and their errors when there is no answer.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use podwire_cni::spec::SpecError;
use serde::de::DeserializeOwned;

use super::{Exit, doctor};
use podwire::asking::{self, Unanswered};
use podwire::duration;
use podwire::inspect::StatusView;

/// Time limit of an answer: longer than the agent waits for the switch and OVN in its report.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// The same where the agent compares every attachment, which takes a large node a second or two.
const CHECK_DEADLINE: Duration = Duration::from_secs(30);

/// Why a tool has nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Nobody listens.
    #[error(
        "no agent answers on {}: {source}\nstart it: {}\nlook:     podwire doctor",
        socket.display(),
        doctor::start_agent()
    )]
    NoAgent {
        /// The socket.
        socket: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Only root is served.
    #[error("only root may use the agent's socket, and this is uid {uid}; use sudo")]
    NotRoot {
        /// The present user.
        uid: u32,
    },
    /// The agent hangs, or the connection ended before the answer.
    #[error(
        "{path} on {}: {problem}\nrestart it: {}\nlook:       podwire doctor",
        socket.display(),
        doctor::restart_silent_agent(socket)
    )]
    Broken {
        /// The request.
        path: String,
        /// The socket.
        socket: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The agent does not know the request.
    #[error(
        "the agent on {} does not know {path}: it is older than this podwire ({}); restart it",
        socket.display(),
        env!("CARGO_PKG_VERSION")
    )]
    Unknown {
        /// The request.
        path: String,
        /// The socket.
        socket: PathBuf,
    },
    /// The agent failed to answer.
    #[error("{msg}\nlook: podwire doctor")]
    Refused {
        /// Its message.
        msg: String,
    },
    /// There is no such pod.
    #[error("{0}")]
    NotFound(String),
    /// Arguments that contradict each other.
    #[error("{0}")]
    Usage(String),
    /// Something that a tool needs is unavailable.
    #[error("{0}")]
    Unable(String),
    /// A file could not be written.
    #[error("write {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Standard output is closed.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    /// The kernel does not answer.
    #[error("{0}")]
    Kernel(podwire_netns::Error),
    /// The tool itself could not start.
    #[error("start the runtime: {0}")]
    Runtime(io::Error),
}

impl ToolError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::NotFound(_) => Exit::NotFound,
            Self::Usage(_) => Exit::Usage,
            Self::File { .. } | Self::Output(_) => Exit::Unwell,
            _ => Exit::Blind,
        }
    }
}

/// An agent's socket.
#[derive(Debug, Clone)]
pub struct AgentSocket {
    path: PathBuf,
    patience: Duration,
}

impl AgentSocket {
    /// The agent at this socket.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            patience: ANSWER_DEADLINE,
        }
    }

    /// With the time limit of answers for which the agent compares every attachment.
    pub(super) fn checking(self) -> Self {
        let patience = CHECK_DEADLINE;
        Self { patience, ..self }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `GET`s a page as text.
    ///
    /// # Errors
    /// There is no agent, or it failed.
    pub async fn text(&self, path: &str) -> Result<String, ToolError> {
        let body = self.body(Method::GET, path).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// `GET`s a page and parses it.
    ///
    /// # Errors
    /// There is no agent, or it failed.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ToolError> {
        self.ask(Method::GET, path).await
    }

    /// `POST`s, and parses the answer.
    ///
    /// # Errors
    /// There is no agent, or it failed.
    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, ToolError> {
        self.ask(Method::POST, path).await
    }

    /// Whether what an agent reports of ports is what the switch has now.
    ///
    /// # Errors
    /// There is no agent, it failed, or it does not see the switch: what it reports is what it saw
    /// before.
    pub(super) async fn sees_the_switch(&self) -> Result<(), ToolError> {
        let status: StatusView = self.get("/v1/status").await?;
        let problem = match (status.database.current, status.vswitchd.ok) {
            (true, true) => return Ok(()),
            (false, _) => format!("Open vSwitch's database: {}", status.database.state),
            (true, false) => "ovs-vswitchd does not answer".to_owned(),
        };
        let before = "this is the state before that\nlook: podwire doctor";
        Err(ToolError::Unable(format!("{problem}; {before}")))
    }

    /// `GET`s a page of JSON lines, to be read as they arrive.
    ///
    /// # Errors
    /// There is no agent, or it failed.
    pub async fn lines(&self, path: &str) -> Result<Lines, ToolError> {
        Ok(Lines {
            body: self.in_time(path, self.send(Method::GET, path)).await?,
            rest: Vec::new(),
        })
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, ToolError> {
        let body = self.body(method, path).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.broken(path, format!("not the answer it should be: {error}")))
    }

    async fn body(&self, method: Method, path: &str) -> Result<Bytes, ToolError> {
        let answer = async {
            let body = self.send(method, path).await?;
            let body = body.collect().await;
            body.map_err(|error| self.broken(path, error.to_string()))
        };
        Ok(self.in_time(path, answer).await?.to_bytes())
    }

    async fn in_time<T>(
        &self,
        path: &str,
        answer: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        let answer = tokio::time::timeout(self.patience, answer).await;
        answer.unwrap_or_else(|_| {
            let patience = duration::text(self.patience);
            Err(self.broken(path, format!("no answer within {patience}")))
        })
    }

    async fn send(&self, method: Method, path: &str) -> Result<Incoming, ToolError> {
        let response = asking::ask(&self.path, method, path, Bytes::new())
            .await
            .map_err(|unanswered| match unanswered {
                // unix(7): its queue of connections is full.
                Unanswered::Connect(source) if source.kind() == io::ErrorKind::WouldBlock => {
                    self.broken(path, "it accepts no connection".to_owned())
                }
                Unanswered::Connect(source) => self.unreachable(source),
                other => self.broken(path, other.to_string()),
            })?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        if response.status() == hyper::StatusCode::NOT_FOUND {
            return Err(ToolError::Unknown {
                path: path.to_owned(),
                socket: self.path.clone(),
            });
        }
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| self.broken(path, error.to_string()))?;
        let said = SpecError::from_json(&body.to_bytes());
        let msg = said.map_or_else(|| "the agent refused".to_owned(), |error| error.msg);
        Err(ToolError::Refused { msg })
    }

    fn unreachable(&self, source: io::Error) -> ToolError {
        if source.kind() == io::ErrorKind::PermissionDenied && !is_root() {
            return not_root();
        }
        ToolError::NoAgent {
            socket: self.path.clone(),
            source,
        }
    }

    fn broken(&self, path: &str, problem: String) -> ToolError {
        if !is_root() {
            return not_root();
        }
        ToolError::Broken {
            path: path.to_owned(),
            socket: self.path.clone(),
            problem,
        }
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn not_root() -> ToolError {
    ToolError::NotRoot {
        uid: nix::unistd::geteuid().as_raw(),
    }
}

/// JSON lines of an endless answer.
#[derive(Debug)]
pub struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line; None when the agent ends.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).ok();
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }
}
