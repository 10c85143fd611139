//! `podwire status`: the node on one screen.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use podwire_node::Role;
use serde::Serialize;

use super::paint::{Paint, printable, short_id, shortened, width, wrapped};
use super::time::{about, ago, now_micros};
use super::{AnswerArgs, Exit, ToolError};
use podwire::inspect::{Reachable, SourceView, StatusView};

/// The flags of `podwire status`.
#[derive(Debug, Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct StatusArgs {
    #[command(flatten)]
    answer: AnswerArgs,
}

/// The agent's report, and the node role's record.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    #[serde(flatten)]
    status: StatusView,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_role: Option<Role>,
    /// Why the node role's record can't be read.
    #[serde(skip)]
    unread: Option<String>,
}

/// From this many addresses on, a subnet counts as unlimited.
const PLENTY: u64 = 1 << 32;
/// Columns for the names on the left.
const LABEL: usize = 13;

impl StatusArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let agent = self.answer.agent();
        let run_dir = agent.path().parent().unwrap_or(Path::new("/run/podwire"));
        let node_role = podwire_node::role(&run_dir.join(podwire_node::DIRECTORY)).await;
        let unread = node_role.as_ref().err().map(ToString::to_string);
        let shown = Shown {
            status: agent.get("/v1/status").await?,
            node_role: node_role.ok().flatten(),
            unread,
        };
        self.answer
            .show(&shown, |paint| text(&shown, now_micros(), width(), paint))?;
        // For probes: what else is wrong keeps no pod from being served, and doctor ends with it.
        Ok(Exit::by_health(shown.status.ready))
    }
}

fn text(shown: &Shown, now: u64, width: usize, paint: Paint) -> String {
    let Shown {
        status,
        node_role,
        unread,
    } = shown;
    let mut screen = Screen {
        text: String::new(),
        width,
        paint,
    };
    let verdict = match (status.ready, status.degraded) {
        (true, _) => paint.good("ready"),
        (false, false) => paint.bad("not ready: no ADD would be served"),
        (false, true) => paint.bad("not ready, and running pods may have lost their network"),
    };
    let _ = writeln!(
        screen.text,
        "{} ({} mode, pid {}): {verdict}",
        paint.strong(&format!("podwire {}", status.version)),
        status.mode,
        status.pid
    );
    for reason in &status.reasons {
        screen.line("", false, reason);
    }
    switch(&mut screen, status);
    if let Some(role) = node_role {
        screen.line("node role", role.is_well(), &role.said());
    }
    if let Some(error) = unread {
        screen.line(
            "node role",
            false,
            &format!("its record can't be read: {error}"),
        );
    }
    for source in &status.sources {
        screen.line("pods known", source.problem.is_none(), &source_text(source));
    }
    let ports = status.ports;
    let counts = format!(
        "{} up, {} waiting, {} failed",
        ports.up, ports.waiting, ports.failed
    );
    screen.line("ports", ports.failed == 0, &counts);
    let kept = status.attachments;
    let mut records = format!("{} live", kept.live);
    for (number, what) in [(kept.adding, "adding"), (kept.deleting, "being removed")] {
        if number > 0 {
            let _ = write!(records, ", {number} {what}");
        }
    }
    screen.line("attachments", true, &records);
    for subnet in &status.subnets {
        let free = subnet.used < subnet.capacity;
        // The capacity is meaningless if it exceeds what a node can ever use.
        let of_all = match subnet.capacity {
            0..PLENTY => format!(" of {}", subnet.capacity),
            _ => String::new(),
        };
        let text = format!("{}: {}{of_all} used", subnet.subnet, subnet.used);
        screen.line("addresses", free, &text);
    }
    let spool = match (&status.spool.problem, status.spool.entries) {
        (Some(problem), _) => problem.clone(),
        (None, 0) => "empty".to_owned(),
        (None, 1) => "1 DEL waits to be carried out".to_owned(),
        (None, number) => format!("{number} DELs wait to be carried out"),
    };
    screen.line("spool", status.spool.problem.is_none(), &spool);
    let under_way = format!(
        "{} of {} operations",
        status.operations, status.max_operations
    );
    screen.line("in progress", true, &under_way);
    for pod in &status.awaited {
        screen.line("awaited", true, &format!("an ADD waits for {pod}"));
    }
    failures(&mut screen, status, now);
    screen.text
}

fn switch(screen: &mut Screen, status: &StatusView) {
    let (database, switch) = (&status.database, &status.switch);
    let mut parts: Vec<String> = status.ovs_version.iter().cloned().collect();
    parts.push(format!("database {}", database.state));
    parts.push(match status.vswitchd.ok {
        true => "ovs-vswitchd answers".to_owned(),
        false => "ovs-vswitchd does not answer".to_owned(),
    });
    let well = database.current && status.vswitchd.ok;
    screen.line("Open vSwitch", well, &parts.join(", "));
    match &switch.bridge {
        Some(bridge) => {
            let text = format!(
                "{}: {} datapath, {} ports",
                status.bridge, bridge.datapath, bridge.ports
            );
            screen.line("bridge", database.current, &text);
        }
        None => screen.line("bridge", false, &format!("{} is missing", status.bridge)),
    }
    if let Some(Reachable { ok, problem }) = &status.controller {
        let ovn = &switch.ovn;
        let text = match problem {
            Some(problem) => problem.clone(),
            None => format!(
                "chassis {}, ovn-controller connected to {}",
                ovn.chassis.as_deref().unwrap_or("?"),
                ovn.remote.as_deref().unwrap_or("?")
            ),
        };
        screen.line("OVN", *ok, &text);
    }
}

fn source_text(source: &SourceView) -> String {
    let mut text = format!("{} by {}", source.pods, source.place);
    if let Some(problem) = &source.problem {
        let since = Duration::from_secs(source.failing_seconds.unwrap_or(0));
        let _ = write!(text, "; fails for {}: {problem}", about(since));
    } else if !source.is_read {
        text.push_str("; not read yet");
    }
    text
}

fn failures(screen: &mut Screen, status: &StatusView, now: u64) {
    if status.failures.is_empty() {
        screen.line("last errors", true, "none");
    }
    for failure in &status.failures {
        let whose = match (&failure.pod, failure.container.is_empty()) {
            (Some(pod), _) => format!(" {pod}"),
            (None, false) => format!(" of container {}", short_id(&failure.container)),
            (None, true) => String::new(),
        };
        let text = format!(
            "{}{whose}, {} (code {}): {}",
            failure.verb,
            ago(failure.started_unix_micros, now),
            failure.code,
            failure.msg
        );
        screen.line("last errors", false, &shortened(&text, 3 * screen.width));
    }
}

struct Screen {
    text: String,
    width: usize,
    paint: Paint,
}

impl Screen {
    /// A name and its value, wrapped as needed. Only the first line with a name shows it.
    fn line(&mut self, label: &str, well: bool, what: &str) {
        let room = self.width.saturating_sub(LABEL + 3).max(40);
        for (number, part) in wrapped(&printable(what), room).iter().enumerate() {
            let (mark, label) = match (number, well, label) {
                (0, false, "") => ("  !", ""),
                (0, false, _) => ("!", label),
                (0, true, _) => (" ", label),
                _ => ("", ""),
            };
            let rest = LABEL + 2 - mark.len();
            let (mark, part) = match well {
                true => (mark.to_owned(), part.clone()),
                false => (self.paint.bad(mark), self.paint.bad(part)),
            };
            let _ = writeln!(self.text, "{mark} {label:<rest$}{part}");
        }
    }
}

#[cfg(test)]
mod tests;
