//! The commands that show the state of a node: `podwire status`, `ports`, `timings`, `trace`,
//! `check`, `gc`, `doctor`, `bundle` and `version`.
//!
//! Most only query the agent over its socket and show its answer. `doctor` and `bundle` also check
//! things themselves, so that they work without an agent; `trace` queries the switch and OVN.

#![forbid(unsafe_code)]

mod bundle;
mod capture;
mod check;
mod client;
mod connectivity;
mod doctor;
mod flows;
mod gc;
mod help;
mod man;
mod output;
mod paint;
mod ports;
mod status;
mod table;
mod time;
mod timings;
mod trace;
mod version;

use std::io;
use std::process::ExitCode;

use clap::Subcommand;

pub use client::{AgentSocket, ToolError};
pub use help::grouped;
use output::{AnswerArgs, CommonArgs};
pub use podwire_daemon::exit::{EXIT_CODES, Exit};
use podwire_daemon::output::{json, show, yaml};

/// The tools.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Show the node's state on one screen
    Status(status::StatusArgs),
    /// List the pods' ports, or follow them live
    Ports(ports::PortsArgs),
    /// Show where the last ADDs and DELs spent their time
    Timings(timings::TimingsArgs),
    /// Follow a packet from one pod to another through the switch
    Trace(Box<trace::TraceArgs>),
    /// Show what is dropped of a pod's packets, and why, live
    Flows(flows::FlowsArgs),
    /// Write the packets at a pod's port into a file
    Capture(capture::CaptureArgs),
    /// Compare rows, links and addresses with what each ADD created
    Check(check::CheckArgs),
    /// Remove what pods left behind
    Gc(gc::GcArgs),
    /// Find what is wrong, and print the commands that fix it
    Doctor(Box<doctor::DoctorArgs>),
    /// Collect everything about this node into one file, for support
    Bundle(Box<bundle::BundleArgs>),
    /// Show the versions of podwire, the running agent and Open vSwitch
    Version(version::VersionArgs),
    /// One end of a path that kubectl podwire connectivity tries
    #[command(hide = true)]
    Connectivity(connectivity::ConnectivityArgs),
    /// Write a completion script for a shell
    Completions(help::CompletionsArgs),
    /// Write the manual pages
    Man(man::ManArgs),
}

/// Runs a tool; `whole` is the command line that it belongs to.
pub fn run(tool: Tool, whole: clap::Command) -> ExitCode {
    let result = match tool {
        Tool::Completions(arguments) => arguments.run(whole),
        Tool::Man(arguments) => arguments.run(whole),
        tool => asynchronously(tool),
    };
    match result {
        Ok(exit) => exit.into(),
        // Whoever closed the pipe has seen enough.
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
    let runtime = podwire_daemon::process::runtime().map_err(ToolError::Runtime)?;
    runtime.block_on(async {
        match tool {
            Tool::Status(arguments) => arguments.run().await,
            Tool::Ports(arguments) => arguments.run().await,
            Tool::Timings(arguments) => arguments.run().await,
            Tool::Trace(arguments) => arguments.run().await,
            Tool::Bundle(arguments) => arguments.run().await,
            Tool::Capture(arguments) => arguments.run().await,
            Tool::Flows(arguments) => arguments.run().await,
            Tool::Version(arguments) => arguments.run().await,
            Tool::Check(arguments) => arguments.run().await,
            Tool::Gc(arguments) => arguments.run().await,
            Tool::Doctor(arguments) => arguments.run().await,
            Tool::Connectivity(arguments) => arguments.run().await,
            Tool::Completions(_) | Tool::Man(_) => Ok(Exit::Well),
        }
    })
}
