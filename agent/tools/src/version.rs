//! `podwire version`: the versions of this program, of the running agent and of Open vSwitch. An
//! agent keeps the version that it was started with: after an upgrade, the two differ until it is
//! restarted.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::doctor::replace_agent;
use super::paint::{Paint, printable};
use super::{AnswerArgs, Exit, ToolError};
use podwire::inspect::StatusView;

/// The flags of `podwire version`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: the agent has another version; 3: it does not answer.\n\
                  podwire --version shows this program's version only."
)]
pub struct VersionArgs {
    #[command(flatten)]
    answer: AnswerArgs,
}

/// The versions.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Versions {
    /// Of this program.
    podwire: String,
    /// Of the running agent; None if it does not answer.
    agent: Option<AgentVersion>,
    /// Of ovs-vswitchd, as reported by the agent.
    open_vswitch: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AgentVersion {
    version: String,
    pid: u32,
    /// The command that restarts it, if its version differs.
    restart: Option<String>,
}

impl Versions {
    /// The versions, with or without the agent's answer.
    pub(super) fn of(status: Option<&StatusView>) -> Self {
        let own = env!("CARGO_PKG_VERSION");
        Self {
            podwire: own.to_owned(),
            agent: status.map(|status| AgentVersion {
                version: status.version.clone(),
                pid: status.pid,
                restart: (status.version != own).then(|| replace_agent(status.pid)),
            }),
            open_vswitch: status.and_then(|status| status.ovs_version.clone()),
        }
    }

    fn differ(&self) -> bool {
        self.agent.as_ref().is_some_and(|it| it.restart.is_some())
    }
}

impl VersionArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let asked: Result<StatusView, ToolError> = self.answer.agent().get("/v1/status").await;
        let versions = Versions::of(asked.as_ref().ok());
        self.answer
            .show(&versions, |paint| text(&versions, paint))?;
        asked?;
        Ok(Exit::by_health(!versions.differ()))
    }
}

fn text(versions: &Versions, paint: Paint) -> String {
    let mut text = format!("podwire       {}\n", versions.podwire);
    let Some(agent) = &versions.agent else {
        return text;
    };
    let version = printable(&agent.version);
    text.push_str(&match &agent.restart {
        None => format!("agent         {version} (pid {})\n", agent.pid),
        Some(restart) => format!(
            "agent         {} (pid {})\n              restart it: {}\n",
            paint.bad(&version),
            agent.pid,
            paint.command(restart)
        ),
    });
    if let Some(version) = &versions.open_vswitch {
        text.push_str(&format!("Open vSwitch  {}\n", printable(version)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_another_version_is_shown_with_what_restarts_it() {
        let mut status = StatusView {
            version: env!("CARGO_PKG_VERSION").into(),
            ovs_version: Some("3.1.0".into()),
            ..StatusView::default()
        };
        let same = Versions::of(Some(&status));
        assert!(!same.differ());
        assert!(!text(&same, Paint::PLAIN).contains("restart"));
        status.version = "0.0.9".into();
        let other = Versions::of(Some(&status));
        assert!(other.differ());
        let shown = text(&other, Paint::PLAIN);
        assert!(
            shown.contains("0.0.9 (pid 0)") && shown.contains("restart it: "),
            "{shown}"
        );
    }
}
