//! `podwire`: the node agent and the tools around it.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use podwire::config::{self, AgentCommand};
use podwire::install::probe::{self, ProbeArgs};
use podwire::install::{self, InstallArgs, UninstallArgs};
use podwire::ipam::spawner;
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
    /// Install the plugin and, once the agent can serve it, the network configuration
    Install(Box<InstallArgs>),
    /// Take away what `podwire install` installed, and say what is left
    Uninstall(UninstallArgs),
    /// Ask the agent whether it lives or is ready, by the exit code: for kubelet
    Probe(ProbeArgs),
    #[command(flatten)]
    Tool(Tool),
}

pub(crate) fn main() -> ExitCode {
    // Before anything else: the spawner must stay small, and it is no command for people.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == spawner::SUBCOMMAND)
    {
        return spawner::main_loop()
            .map_or_else(|error| failed("spawner", &error), |()| ExitCode::SUCCESS);
    }
    let mut say = |line: String| println!("{line}");
    match Cli::parse_from(config::command_line(std::env::args_os())).command {
        Command::Agent(command) => ended("agent", podwire::run::agent(*command)),
        Command::Tool(tool) => tools::run(tool, Cli::command()),
        Command::Install(arguments) => ended("install", install::install(&arguments, &mut say)),
        Command::Uninstall(arguments) => {
            ended("uninstall", install::uninstall(&arguments, &mut say))
        }
        Command::Probe(arguments) => ended("probe", probe::probe(&arguments)),
    }
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
