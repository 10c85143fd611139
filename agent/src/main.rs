//! `podwire`: the node agent and the tools around it.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use podwire::config::{self, AgentCommand};
use podwire::install::probe::{self, ProbeArgs};
use podwire::install::{self, InstallArgs, UninstallArgs};
use podwire::ipam::spawner;
use podwire::lockdown;
use podwire::service::Manager;
use podwire::tools::{self, Tool};

/// Wires Kubernetes pods to Open vSwitch and OVN
#[derive(Debug, Parser)]
#[command(
    name = "podwire",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = tools::EXIT_CODES
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node agent, which serves the CNI plugin podwire-cni
    Agent(Box<AgentCommand>),
    /// Install the CNI plugin and its network configuration
    Install(Box<InstallArgs>),
    /// Remove what podwire install installed, and report what is left
    Uninstall(UninstallArgs),
    /// Ask whether the agent is alive or ready, for kubelet's probes
    Probe(ProbeArgs),
    /// Make this machine a part of the pod network, or undo that
    Node(Box<podwire_node::NodeCommand>),
    #[command(flatten)]
    Tool(Tool),
}

pub(crate) fn main() -> ExitCode {
    // Before anything else: the spawner must stay small, and it is no command for people.
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == spawner::SUBCOMMAND || first == spawner::WORKER {
        return ended(
            "spawner",
            spawn(first == spawner::WORKER, arguments.collect()),
        );
    }
    let arguments = config::command_line(std::env::args_os());
    let arguments = match config::with_hidden_token(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return failed("agent", &error),
    };
    let mut say = |line: String| println!("{line}");
    let mut whole = tools::grouped(Cli::command());
    let cli = whole
        .try_get_matches_from_mut(arguments)
        .and_then(|given| Cli::from_arg_matches(&given))
        .unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Agent(command) => ended("agent", podwire::run::agent(*command)),
        Command::Tool(tool) => tools::run(tool, whole),
        Command::Install(arguments) => ended("install", install::install(&arguments, &mut say)),
        Command::Uninstall(arguments) => {
            ended("uninstall", install::uninstall(&arguments, &mut say))
        }
        Command::Node(command) => match Manager::from_environment() {
            Ok(manager) => podwire_node::main(*command, &|state| manager.tell(state)),
            Err(error) => failed("node", &error),
        },
        Command::Probe(arguments) => ended("probe", probe::probe(&arguments)),
    }
}

/// Starts IPAM plugins for the agent, or keeps a process that does.
fn spawn(is_worker: bool, directories: Vec<OsString>) -> io::Result<()> {
    if is_worker {
        let directories: Vec<_> = directories.into_iter().map(PathBuf::from).collect();
        return spawner::main_loop(&directories);
    }
    lockdown::apply_for_plugins().map_err(io::Error::other)?;
    let mut worker = Process::new("/proc/self/exe");
    worker.arg(spawner::WORKER).args(directories);
    spawner::keep(worker)
}

fn ended<E: std::error::Error>(command: &str, result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(command, &error),
    }
}

fn failed(command: &str, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("podwire {command}: {error}");
    ExitCode::FAILURE
}
