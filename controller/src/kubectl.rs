//! `kubectl podwire`, which is also `podwire-controller cluster`: a whole cluster, from an
//! operator's machine.
//!
//! It reaches the nodes by `pods/exec`, with the operator's own rights: the tools of podwire's own
//! pods answer, no port is opened and no account is made. What could not be asked counts as wrong.

mod connectivity;
mod exec;
mod objects;
mod packets;
mod status;
mod sysdump;
mod trace;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use podwire_apiserver::{Access, AccessError};
use podwire_daemon::exit::{EXIT_CODES, Exit};
use podwire_daemon::output::{Format, show};
use podwire_daemon::settings::{ServerArgs, SettingsError, bad};

use crate::run::{kubeconfig, name_of};
pub use connectivity::ConnectivityArgs;
use exec::Cluster;
pub use packets::{CaptureArgs, FlowsArgs};
pub use sysdump::SysdumpArgs;
pub use trace::TraceArgs;

/// The name by which kubectl finds a plugin.
const PLUGIN: &str = "kubectl-podwire";
/// The subcommand that is the same.
const SUBCOMMAND: &str = "cluster";

/// Shows the state of podwire on all nodes of a cluster
#[derive(Debug, clap::Parser)]
#[command(
    name = "kubectl podwire",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = EXIT_CODES
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show each node's agent, node role, ovn-controller and versions, and what is wrong
    Status(status::StatusArgs),
    /// Try every kind of path between nodes, pods and services, with pods that it makes for this
    Connectivity(Box<ConnectivityArgs>),
    /// Follow a packet from one pod to another, over all nodes on its way
    Trace(TraceArgs),
    /// Show what is dropped of a pod's packets, and why, as it happens
    Flows(FlowsArgs),
    /// Write the packets at a pod's port into a file, or a pipe
    Capture(CaptureArgs),
    /// Collect the state of all nodes and of the controllers into one file, for support
    Sysdump(SysdumpArgs),
}

/// The flags of every command.
#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    server: ServerArgs,
    /// The kubeconfig's context to use [default: its current one]
    #[arg(long, value_name = "NAME", conflicts_with = "k8s_apiserver")]
    context: Option<String>,
    /// The namespace of podwire's own pods
    #[arg(
        short,
        long,
        value_name = "NAME",
        env = "PODWIRE_NAMESPACE",
        default_value = "podwire-system"
    )]
    namespace: String,
    /// How many seconds each pod has to answer
    #[arg(long, value_name = "SECONDS", default_value = "15")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Setting(#[from] SettingsError),
    #[error("{0}")]
    Access(#[from] AccessError),
    /// The API server did not answer, or refused.
    #[error("{server}: {problem}")]
    Server { server: String, problem: String },
    /// What was named does not exist.
    #[error("{0}")]
    Missing(String),
    /// What was named can't be asked about.
    #[error("{0}")]
    Unknown(String),
    #[error("write {path}: {source}")]
    File { path: String, source: io::Error },
    #[error("write the answer: {0}")]
    Output(io::Error),
}

impl Failure {
    fn exit(&self) -> Exit {
        match self {
            Self::Setting(_) => Exit::Usage,
            Self::Access(_) | Self::Server { .. } => Exit::Blind,
            Self::Missing(_) => Exit::NotFound,
            Self::Unknown(_) | Self::File { .. } | Self::Output(_) => Exit::Unwell,
        }
    }
}

/// The arguments, if the program was started as kubectl's plugin, or with `cluster` first.
pub fn arguments(mut given: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let program = given.next()?;
    let rest: Vec<OsString> = match Path::new(&program).file_name() == Some(OsStr::new(PLUGIN)) {
        true => given.collect(),
        false => {
            let first = given.next()?;
            (first == SUBCOMMAND).then_some(())?;
            given.collect()
        }
    };
    Some(std::iter::once(program).chain(rest).collect())
}

/// Runs a command.
pub async fn run(arguments: Arguments) -> ExitCode {
    let done = match arguments.command {
        Command::Status(arguments) => arguments.run().await,
        Command::Connectivity(arguments) => arguments.run().await,
        Command::Trace(arguments) => arguments.run().await,
        Command::Flows(arguments) => arguments.run().await,
        Command::Capture(arguments) => arguments.run().await,
        Command::Sysdump(arguments) => arguments.run().await,
    };
    match done {
        Ok(is_well) => Exit::by_health(is_well).into(),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("kubectl podwire: {failure}");
            failure.exit().into()
        }
    }
}

impl Common {
    async fn cluster(&self) -> Result<Cluster, Failure> {
        let context = self.context.clone();
        let access = match (self.server.access()?, &self.context) {
            (Some(Access::Kubeconfig(path)), _) => Access::Personal {
                files: vec![path],
                context,
            },
            (Some(access), _) => access,
            (None, Some(name)) => kubeconfig(context)
                .ok_or_else(|| Failure::from(bad("--context", name, "there is no kubeconfig")))?,
            (None, None) => kubeconfig(None).unwrap_or(Access::InCluster),
        };
        Ok(Cluster {
            client: podwire_apiserver::client(&access).await?,
            server: name_of(&access),
            namespace: self.namespace.clone(),
            limit: Duration::from_secs(self.timeout.into()),
        })
    }
}

/// Prints an answer.
fn print<T: serde::Serialize>(
    format: Format,
    answer: &T,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let text = format.encode(answer, text).map_err(Failure::Output)?;
    show(&text).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Vec<String>> {
        let words = arguments(line.split(' ').map(OsString::from))?;
        Some(words.iter().map(|it| it.to_string_lossy().into()).collect())
    }

    #[test]
    fn kubectls_plugin_and_the_subcommand_are_the_same() {
        for line in [
            "/usr/bin/kubectl-podwire status -o json",
            "podwire-controller cluster status -o json",
        ] {
            assert_eq!(of(line).unwrap()[1..], ["status", "-o", "json"], "{line}");
        }
        for line in [
            "podwire-controller status",
            "podwire-controller",
            "kubectl-podwire2 status",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
