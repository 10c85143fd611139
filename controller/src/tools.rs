//! Operators' commands: `status`, `explain`, `policy`, `network`, and what a dry run would do. They
//! read the objects and the rows as a leader does, with the same code. Nothing is written but what
//! a person asks for: definitions of networks, and a change to measure (`round`).

mod explain;
mod file;
pub mod network;
mod ovn;
mod pending;
mod policy;
mod round;
mod status;
mod trace;

use std::time::Duration;

use podwire_apiserver::{Access, Unread, brief, with_causes};
use podwire_daemon::exit::Exit;
use podwire_ovs::client::{Client as Ovsdb, State as Connection, Version, WaitError};
use podwire_ovs::transact::TransactError;
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, SettingError};
use crate::key::Of;
use crate::run::{RunError, State, Step, api_server, list, name_of, northbound};

pub use explain::{Question, Target, TargetError, explain, explain_service};
pub use pending::dry_run;
pub use policy::{policy, policy_dry_run};
pub use status::status;

/// Time limit for reaching the API server and the database.
const REACH: Duration = Duration::from_secs(5);
/// Time limit for reading everything.
const READ: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A setting is invalid.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// The API server can't be reached.
    #[error("{0}")]
    Run(#[from] RunError),
    /// The API server refused.
    #[error("the API server: {}", said(.0))]
    Api(#[from] kube::Error),
    /// A server can't be reached.
    #[error("{server} can't be reached within {} s: {problem}", REACH.as_secs())]
    Away {
        /// The server, with its setting.
        server: String,
        /// The reason.
        problem: String,
    },
    /// The API server does not answer, or refused for logged reasons.
    #[error("the API server has not listed everything in {} s", READ.as_secs())]
    Deadline,
    /// The database does not answer.
    #[error("the northbound database: {0}")]
    Database(#[from] WaitError),
    /// What would be written can't be encoded.
    #[error("the northbound database: {0}")]
    Transaction(#[from] TransactError),
    /// The object does not exist.
    #[error("{0}")]
    Missing(String),
    /// It can't be done to this object, or can't be said of it.
    #[error("{0}")]
    Refused(String),
    /// ovn-trace could not be run.
    #[error("{0}")]
    Trace(String),
    /// A file or an argument can't be read, or has a mistake.
    #[error("{0}")]
    Mistake(String),
    /// The answer can't be encoded in the requested format.
    #[error("the answer as JSON or YAML: {0}")]
    Format(std::io::Error),
}

impl ToolError {
    /// What the command ends with.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Setting(_) | Self::Mistake(_) => Exit::Usage,
            Self::Missing(_) => Exit::NotFound,
            // Conflict, or invalid.
            Self::Api(kube::Error::Api(status)) if [409, 422].contains(&status.code) => {
                Exit::Unwell
            }
            Self::Refused(_) | Self::Transaction(_) | Self::Format(_) => Exit::Unwell,
            Self::Run(_)
            | Self::Api(_)
            | Self::Away { .. }
            | Self::Deadline
            | Self::Database(_)
            | Self::Trace(_) => Exit::Blind,
        }
    }
}

/// Everything that a leader would know at its start.
struct View {
    state: State,
    ovsdb: Ovsdb,
    client: kube::Client,
}

impl View {
    async fn open(config: &Config) -> Result<Self, ToolError> {
        let mut state = State::new(config.rules()?);
        let server = api_server(config);
        let client = podwire_apiserver::client(&server)
            .await
            .map_err(RunError::from)?;
        let ovsdb = northbound(config)?;
        reach(config, &server, &client, &ovsdb).await?;
        let deadline = Instant::now() + READ;
        let (mut changes, _tasks) = crate::run::watches(&server, &Unread::default());
        let listed = timeout_at(deadline, list(&mut changes, &mut state, &Of::ALL)).await;
        listed.map_err(|_| ToolError::Deadline)?;
        ovsdb.synced(deadline).await?;
        state.begin(&ovsdb, false).map_err(RunError::from)?;
        Ok(Self {
            state,
            ovsdb,
            client,
        })
    }

    /// All pending changes, as one transaction.
    fn pending(&mut self) -> Step {
        self.state.compare_claims(&self.ovsdb);
        let mut keys = self.state.take_dirty();
        self.state.step(&self.ovsdb, &mut keys, None)
    }
}

/// What the API server says, or why there is no answer.
pub(crate) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => brief(&status.message),
        error => with_causes(error),
    }
}

/// Fails soon if there is nobody to read from.
async fn reach(
    config: &Config,
    server: &Access,
    client: &kube::Client,
    ovsdb: &Ovsdb,
) -> Result<(), ToolError> {
    let deadline = Instant::now() + REACH;
    let problem = match timeout_at(deadline, client.apiserver_version()).await {
        // Who may not ask this may still list.
        Ok(Ok(_) | Err(kube::Error::Api(_))) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("no answer".to_owned()),
    };
    if let Some(problem) = problem {
        let server = name_of(server);
        return Err(ToolError::Away { server, problem });
    }
    let server = format!("the northbound database {} (--nb-db)", config.nb_db);
    reach_database(ovsdb, server, deadline).await
}

async fn reach_database(ovsdb: &Ovsdb, server: String, deadline: Instant) -> Result<(), ToolError> {
    let mut version = ovsdb.subscribe();
    let is_there = |version: &Version| !matches!(version.state, Connection::Disconnected { .. });
    let connected = timeout_at(deadline, version.wait_for(is_there)).await;
    connected.map(drop).map_err(|_| ToolError::Away {
        server,
        problem: ovsdb.state().to_string(),
    })
}
