//! The flags of tools about the agent and their output.

use clap::Args;
use podwire_cni::wire;
use podwire_daemon::output::{Format, OutputArgs, show, yaml};
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
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl AnswerArgs {
    pub(super) fn agent(&self) -> AgentSocket {
        self.common.agent()
    }

    /// Shows one of many answers: JSON in one line, YAML as a document.
    pub(super) fn show_line(
        &self,
        answer: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), ToolError> {
        let text = match self.output.output {
            Format::Text => text(),
            Format::Json => format!("{}\n", serde_json::json!(answer)),
            Format::Yaml => format!("---\n{}", yaml(answer)?),
        };
        Ok(show(&text)?)
    }

    /// The format.
    pub(super) fn format(&self) -> Format {
        self.output.output
    }

    /// Shows an answer; `text` formats it for people.
    pub(super) fn show(
        &self,
        answer: &impl Serialize,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<(), ToolError> {
        let format = self.output.output;
        let text = format.encode(answer, || text(self.common.paint()))?;
        Ok(show(&text)?)
    }
}
