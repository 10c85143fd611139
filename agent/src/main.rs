//! `podwire`: the node agent and the tools around it.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use podwire::config::{AgentArgs, Config};
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
    Agent(Box<AgentArgs>),
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
    let arguments = match Cli::parse().command {
        Command::Agent(arguments) => arguments,
        Command::Tool(tool) => return tools::run(tool, Cli::command()),
    };
    let log = arguments.log.clone();
    let started = podwire::run::init_log(&log)
        .and_then(|()| Ok(Config::from_args(*arguments)?))
        .and_then(podwire::run::agent);
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed("agent", &error),
    }
}

fn failed(command: &str, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("podwire {command}: {error}");
    ExitCode::FAILURE
}
