//! The output of tools: text for people, JSON or YAML for programs.

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use podwire_cni::wire;
use serde::Serialize;

use super::paint::{Paint, When};
use super::{AgentSocket, ToolError};

/// The options that all tools that query the agent share.
#[derive(Debug, Clone, Args)]
pub(super) struct CommonArgs {
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
    pub color: When,
}

impl CommonArgs {
    pub(super) fn agent(&self) -> AgentSocket {
        AgentSocket::new(&self.socket)
    }

    pub(super) fn paint(&self) -> Paint {
        Paint::of_stdout(self.color)
    }
}

/// The options of tools that show one answer.
#[derive(Debug, Clone, Args)]
pub(super) struct AnswerArgs {
    /// text, or json or yaml for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    output: Format,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
    /// The same as YAML
    Yaml,
}

/// A format for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Machine {
    Json,
    Yaml,
}

impl AnswerArgs {
    pub(super) fn agent(&self) -> AgentSocket {
        self.common.agent()
    }

    /// Shows an answer; `text` formats it for people.
    pub(super) fn show(
        &self,
        answer: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), ToolError> {
        match self.output {
            Format::Text => show(&text(self.common.paint())),
            Format::Json => show_as(Machine::Json, answer),
            Format::Yaml => show_as(Machine::Yaml, answer),
        }
    }
}

/// Writes to standard output. A closed pipe is an ordinary error, and no panic.
pub(super) fn show(text: &str) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(ToolError::Output)
}

/// Writes a value as indented JSON or as YAML.
pub(super) fn show_as(format: Machine, value: &impl Serialize) -> Result<(), ToolError> {
    let text = match format {
        Machine::Json => serde_json::to_string_pretty(value).map_err(io::Error::other),
        Machine::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other),
    };
    let mut text = text.map_err(ToolError::Output)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    show(&text)
}
