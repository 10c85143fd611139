//! `podwire`: the node agent and the tools around it.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use podwire::config::{self, AgentCommand, OvnkubeCommand, RoleLine};
use podwire::install::probe::{self, ProbeArgs};
use podwire::install::{self, InstallArgs, UninstallArgs};
use podwire::ipam::spawner;
use podwire_daemon::{Manager, lockdown};
use podwire_tools::{self as tools, Tool};

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

/// A command, and of the node role where its settings come from.
struct Parsed {
    command: Command,
    role: Option<RoleLine>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node agent, which serves the CNI plugin podwire-cni
    Agent(Box<AgentCommand>),
    /// Run as ovn-kubernetes' ovnkube of a node: the agent, and the node role as a second process
    #[command(hide = true)]
    Ovnkube(Box<OvnkubeCommand>),
    /// Install the CNI plugin and its network configuration
    Install(Box<InstallArgs>),
    /// Remove what podwire install installed, and report what is left
    Uninstall(UninstallArgs),
    /// Check whether the agent is alive or ready, for kubelet's probes
    Probe(ProbeArgs),
    /// Join this machine to the pod network, or undo that
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
    let mut whole = tools::grouped(Cli::command()).mut_subcommand("node", config::node_command);
    let cli = parsed(&mut whole, arguments);
    match cli.command {
        Command::Agent(command) => ended("agent", podwire::run::agent(*command, None)),
        Command::Ovnkube(command) => ovnkube(*command, &mut whole),
        Command::Tool(tool) => tools::run(tool, whole),
        Command::Install(arguments) => ended("install", install::install(&arguments, &mut say)),
        Command::Uninstall(arguments) => {
            ended("uninstall", install::uninstall(&arguments, &mut say))
        }
        Command::Node(command) => node(*command, cli.role),
        Command::Probe(arguments) => ended("probe", probe::probe(&arguments)),
    }
}

/// Parses a command line; that of the node role with what files and variables add.
fn parsed(whole: &mut clap::Command, arguments: Vec<OsString>) -> Parsed {
    let parse = |whole: &mut clap::Command, arguments| {
        let given = whole.try_get_matches_from_mut(arguments);
        given.unwrap_or_else(|error| error.exit())
    };
    let mut given = parse(whole, arguments);
    let role = match given.subcommand() {
        Some(("node", node)) => config::node_line(node).unwrap_or_else(|error| {
            eprintln!("podwire node: {error}");
            std::process::exit(2);
        }),
        _ => None,
    };
    if let Some(role) = &role {
        given = parse(whole, role.arguments.clone());
    }
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    Parsed {
        command: cli.command,
        role,
    }
}

fn node(command: podwire_node::NodeCommand, role: Option<RoleLine>) -> ExitCode {
    for warning in role.iter().flat_map(|role| &role.warnings) {
        eprintln!("podwire node: note: {warning}");
    }
    let origin = |flag: &str| {
        role.as_ref()
            .map_or(String::new(), |role| role.origin(flag))
    };
    match Manager::from_environment() {
        Ok(manager) => {
            let surroundings = podwire_node::Surroundings {
                manager: &manager,
                origin: &origin,
            };
            podwire_node::main(command, &surroundings)
        }
        Err(error) => failed("node", &error),
    }
}

/// One process for the service manager, as ovnkube is: the agent, which starts the node role; or,
/// to clean up, the role alone.
fn ovnkube(command: OvnkubeCommand, whole: &mut clap::Command) -> ExitCode {
    let role = command.role();
    if !command.cleans_up {
        return ended("ovnkube", podwire::run::agent(command.agent, Some(role)));
    }
    let arguments = std::iter::once("podwire".into()).chain(role.arguments);
    let cli = parsed(whole, arguments.collect());
    match cli.command {
        Command::Node(command) => node(*command, cli.role),
        _ => ExitCode::FAILURE,
    }
}

/// Starts IPAM plugins for the agent, or keeps a process that does.
fn spawn(is_worker: bool, directories: Vec<OsString>) -> io::Result<()> {
    if is_worker {
        let directories: Vec<_> = directories.into_iter().map(PathBuf::from).collect();
        return spawner::main_loop(&directories);
    }
    lockdown::drop_capabilities().map_err(io::Error::other)?;
    let mut worker = Process::new("/proc/self/exe");
    worker.arg(spawner::WORKER).args(directories);
    spawner::supervise(worker)
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
