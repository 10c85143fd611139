//! The eyes for people: what `podwire status`, `ports`, `trace`, `check`, `gc` and `doctor` show.
//!
//! All but the doctor only ask the agent, over its socket, and show its answer. The doctor also looks for itself, so that it
//! has something to say when no agent answers.

mod check;
mod client;
mod doctor;
mod exit;
mod gc;
mod help;
mod paint;
mod ports;
mod status;
mod table;
mod time;
mod trace;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use podwire_cni::wire;

pub use client::{AgentSocket, ToolError};
pub use exit::{EXIT_CODES, Exit};
pub use help::grouped;
use paint::Paint;

/// The tools.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Show the node's state on one screen: Open vSwitch, OVN, API, ports, last errors
    Status(status::StatusArgs),
    /// List the pods' ports, or follow them live
    Ports(ports::PortsArgs),
    /// Show where the last ADDs and DELs spent their time
    Trace(trace::TraceArgs),
    /// Compare rows, links and addresses with what each ADD created
    Check(check::CheckArgs),
    /// Remove what pods left behind
    Gc(gc::GcArgs),
    /// Find what is wrong on this node, and print the commands that fix it
    Doctor(Box<doctor::DoctorArgs>),
    /// Write a completion script for a shell
    Completions(help::CompletionsArgs),
    /// Write the manual pages
    Man(help::ManArgs),
}

/// What all tools that speak to the agent have in common.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// The agent's socket
    #[arg(
        long,
        value_name = "PATH",
        default_value = wire::DEFAULT_SOCKET,
        env = "PODWIRE_SOCKET"
    )]
    pub socket: std::path::PathBuf,
    /// auto (on a terminal, without NO_COLOR), always or never
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: paint::When,
}

impl CommonArgs {
    fn agent(&self) -> AgentSocket {
        AgentSocket::new(&self.socket)
    }

    fn paint(&self) -> Paint {
        Paint::of_stdout(self.color)
    }
}

/// What the tools have in common that show the agent's one answer.
#[derive(Debug, Clone, Args)]
pub struct AnswerArgs {
    /// text, or json for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    output: Format,
    #[command(flatten)]
    common: CommonArgs,
}

impl AnswerArgs {
    fn agent(&self) -> AgentSocket {
        self.common.agent()
    }

    /// Shows an answer; `text` puts it into words.
    fn show(
        &self,
        answer: &impl serde::Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), ToolError> {
        match self.output {
            Format::Json => show_json(answer),
            Format::Text => show(&text(self.common.paint())),
        }
    }
}

/// How an answer is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// As the agent sent it, for programs
    Json,
}

/// Runs a tool; `whole` is the command line that it is part of.
pub fn run(tool: Tool, whole: clap::Command) -> ExitCode {
    let result = match tool {
        Tool::Completions(arguments) => arguments.run(whole),
        Tool::Man(arguments) => arguments.run(whole),
        tool => asynchronously(tool),
    };
    match result {
        Ok(exit) => exit.into(),
        // Whoever closes the pipe has seen enough.
        Err(ToolError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Exit::Well.into()
        }
        Err(error) => {
            eprintln!("podwire: {error}");
            error.exit().into()
        }
    }
}

fn asynchronously(tool: Tool) -> Result<Exit, ToolError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ToolError::Runtime)?;
    runtime.block_on(async {
        match tool {
            Tool::Status(arguments) => arguments.run().await,
            Tool::Ports(arguments) => arguments.run().await,
            Tool::Trace(arguments) => arguments.run().await,
            Tool::Check(arguments) => arguments.run().await,
            Tool::Gc(arguments) => arguments.run().await,
            Tool::Doctor(arguments) => arguments.run().await,
            Tool::Completions(_) | Tool::Man(_) => Ok(Exit::Well),
        }
    })
}

/// Writes to standard output; a pipe that is closed is an error like another, and no panic.
fn show(text: &str) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(ToolError::Output)
}

/// Writes a value as indented JSON.
fn show_json(value: &impl serde::Serialize) -> Result<(), ToolError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| ToolError::Output(io::Error::other(error)))?;
    text.push('\n');
    show(&text)
}
