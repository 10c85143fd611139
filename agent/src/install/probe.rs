//! kubelet's probes of an agent in a container that has neither a shell nor curl.

use std::path::PathBuf;
use std::time::Duration;

use podwire_cni::wire;

use super::agent::AgentSocket;
use super::{InstallError, runtime};

/// The flags of `podwire probe`.
#[derive(Debug, Clone, clap::Args)]
pub struct ProbeArgs {
    /// live: the agent answers; ready: it can serve an ADD
    pub state: State,
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = wire::DEFAULT_SOCKET, env = "PODWIRE_SOCKET")]
    pub socket: PathBuf,
}

/// The question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum State {
    /// Whether it answers
    Live,
    /// Whether it can serve an ADD
    Ready,
}

/// Asks the agent once.
///
/// # Errors
/// The answer is no; the error says why.
pub fn probe(args: &ProbeArgs) -> Result<(), InstallError> {
    let agent = AgentSocket(args.socket.clone());
    let health = runtime()?
        .block_on(agent.health(Duration::ZERO))
        .map_err(|source| InstallError::Ask {
            step: "it does not answer",
            source,
        })?;
    match args.state {
        State::Ready if !health.ready => Err(InstallError::NotServing {
            reasons: health.reasons.join("; "),
        }),
        State::Ready | State::Live => Ok(()),
    }
}
