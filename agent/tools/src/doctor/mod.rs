//! `podwire doctor`: checks what usually goes wrong on a node, and prints for each finding the
//! command that fixes it.
//!
//! It checks for itself what needs no agent (Open vSwitch, the runtime's directories, the socket),
//! and asks the agent for the rest. Findings come in the order in which to fix them: causes before
//! their effects.
//!
//! A `fix` is a promise, which tests/tests/doctor holds: after the command the finding is gone.
//! Where no command of this node can promise that, the finding has a `look` instead: a command that
//! shows what to decide.

mod agent;
mod cni;
mod conntrack;
mod kind;
mod mtu;
mod role;
mod service;
mod switch;

use std::path::{Path, PathBuf};

use clap::Args;
use podwire_netns::Netlink;
use serde::Serialize;

use super::paint::{Paint, printable, width, wrapped};
use super::{AgentSocket, AnswerArgs, Exit, ToolError};
pub(super) use agent::restart_silent_agent;
use kind::Kind;
use podwire::config::usual;
use podwire::inspect::StatusView;
pub(super) use service::{replace_agent, start_agent};
pub(super) use switch::vswitchd;

/// The flags of `podwire doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: there are findings. Each has a fix, or a command that shows more.\n\
                  Fix them in this order: the first may be the cause of others."
)]
pub struct DoctorArgs {
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// The paths of a node's parts.
#[derive(Debug, Args)]
pub(super) struct Places {
    /// Open vSwitch's database, if no agent runs
    #[arg(
        long,
        value_name = "REMOTE",
        default_value = usual::OVSDB,
        env = "PODWIRE_OVSDB"
    )]
    ovsdb: String,
    /// Directory of ovn-controller's control socket
    #[arg(
        long,
        value_name = "DIR",
        default_value = usual::OVN_RUNDIR,
        env = "PODWIRE_OVN_RUNDIR"
    )]
    pub(super) ovn_rundir: PathBuf,
    /// The pods' bridge, if no agent runs
    #[arg(
        long,
        value_name = "NAME",
        default_value = usual::BRIDGE,
        env = "PODWIRE_BRIDGE"
    )]
    bridge: String,
    /// Directory of the runtime's network configurations
    #[arg(
        long,
        value_name = "DIR",
        default_value = usual::CNI_CONF_DIR,
        env = "PODWIRE_CNI_CONF_DIR"
    )]
    pub(super) conf_dir: PathBuf,
    /// Directory of the runtime's plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = usual::CNI_BIN_DIR,
        env = "PODWIRE_CNI_BIN_DIR"
    )]
    pub(super) bin_dir: PathBuf,
}

impl Places {
    /// The socket of Open vSwitch's database; the agent's setting if there is one.
    pub(super) fn database(&self, status: Option<&StatusView>) -> PathBuf {
        match status {
            Some(status) => status.database.socket.clone(),
            None => PathBuf::from(self.ovsdb.strip_prefix("unix:").unwrap_or(&self.ovsdb)),
        }
    }

    /// The pods' bridge, likewise.
    pub(super) fn bridge(&self, status: Option<&StatusView>) -> String {
        status.map_or_else(|| self.bridge.clone(), |status| status.bridge.clone())
    }
}

/// A problem, or something worth a look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Its kind.
    kind: Kind,
    /// The subject of the check.
    about: &'static str,
    /// Whether it affects pods; a note does not.
    wrong: bool,
    /// Its description.
    what: String,
    /// Commands that fix it, in this order. The reader fills in a word in capitals.
    fix: Vec<String>,
    /// Commands that show more, if none fixes it.
    look: Vec<String>,
}

impl Finding {
    fn wrong(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            kind,
            about: kind.about(),
            wrong: true,
            what: what.into(),
            fix: Vec::new(),
            look: Vec::new(),
        }
    }

    fn note(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            wrong: false,
            ..Self::wrong(kind, what)
        }
    }

    fn fix(mut self, command: impl Into<String>) -> Self {
        self.fix.push(command.into());
        self
    }

    fn look(mut self, command: impl Into<String>) -> Self {
        self.look.push(command.into());
        self
    }
}

/// One subject of the checks.
#[derive(Debug, Serialize)]
pub(super) struct Examined {
    about: &'static str,
    /// Its state, if all is well.
    seen: String,
    findings: Vec<Finding>,
}

impl DoctorArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        only_root()?;
        let agent = self.answer.agent();
        let netlink = Netlink::start(None).map_err(ToolError::Kernel)?;
        let asked = agent.get("/v1/status").await;
        let examined = examine(&self.places, &agent, &asked, &netlink).await;
        self.answer
            .show(&examined, |paint| text(&examined, width(), paint))?;
        let findings = || examined.iter().flat_map(|it| &it.findings);
        Ok(Exit::by_health(!findings().any(|finding| finding.wrong)))
    }
}

/// The directory of the node role's state.
pub(super) fn role_directory(agent: &AgentSocket) -> PathBuf {
    let run_dir = agent.path().parent().unwrap_or(Path::new("/run/podwire"));
    run_dir.join(podwire_node::DIRECTORY)
}

/// Checks that root asks: nobody else sees enough.
pub(super) fn only_root() -> Result<(), ToolError> {
    let uid = nix::unistd::geteuid();
    match uid.is_root() {
        true => Ok(()),
        false => Err(ToolError::NotRoot { uid: uid.as_raw() }),
    }
}

/// Runs all checks, with the agent's own report.
pub(super) async fn examine(
    places: &Places,
    agent: &AgentSocket,
    asked: &Result<StatusView, ToolError>,
    netlink: &Netlink,
) -> Vec<Examined> {
    let status = asked.as_ref().ok();
    let seen = switch::look(places, status).await;
    let mut examined = vec![switch::examine(&seen)];
    examined.extend(switch::examine_ovn(&seen));
    examined.push(agent::examine(agent.path(), asked, &seen, netlink).await);
    examined.extend(role::examine(&role_directory(agent)).await);
    examined.push(cni::examine(&cni::Directories {
        conf: &places.conf_dir,
        bin: &places.bin_dir,
        crio: Path::new(cni::CRIO),
    }));
    examined.extend(mtu::examine(&seen, status, netlink).await);
    if status.is_some() {
        examined.extend(agent::examine_pods(agent, &seen).await);
    }
    examined
}

/// The findings as text.
pub(super) fn report(examined: &[Examined]) -> String {
    text(examined, 100, Paint::PLAIN)
}

fn text(examined: &[Examined], width: usize, paint: Paint) -> String {
    let mut text = String::new();
    let mut wrong = 0;
    for thing in examined {
        if !thing.findings.iter().any(|finding| finding.wrong) {
            let seen = format!("{}: {}", thing.about, thing.seen);
            put(&mut text, &paint.good("ok"), 2, &seen, width);
        }
        for finding in &thing.findings {
            let what = format!("{}: {}", finding.about, finding.what);
            let (mark, length) = match finding.wrong {
                true => (paint.bad("WRONG"), 5),
                false => (paint.doubtful("note"), 4),
            };
            wrong += usize::from(finding.wrong);
            put(&mut text, &mark, length, &what, width);
            for (word, commands) in [("fix: ", &finding.fix), ("look:", &finding.look)] {
                for command in commands {
                    // On one line, however long, so that it can be copied.
                    let command = paint.command(&printable(command));
                    text.push_str(&format!("      {word} {command}\n"));
                }
            }
        }
    }
    let summary = match wrong {
        0 => paint.good("nothing wrong"),
        1 => paint.bad("1 finding"),
        number => paint.bad(&format!("{number} findings; fix them in this order")),
    };
    text.push_str(&format!("\n{summary}\n"));
    text
}

/// A mark with this many characters and its subject, wrapped as needed.
fn put(text: &mut String, mark: &str, length: usize, what: &str, width: usize) {
    let room = width.saturating_sub(6).max(40);
    for (number, line) in wrapped(&printable(what), room).iter().enumerate() {
        let (mark, length) = if number == 0 { (mark, length) } else { ("", 0) };
        text.push_str(mark);
        text.extend(std::iter::repeat_n(' ', 6 - length));
        text.push_str(line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests;
