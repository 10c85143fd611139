//! What a command has done: for people while it works, for programs as one answer at its end.

use podwire_daemon::output::{Format, OutputArgs, show as print};
use serde::Serialize;

use crate::apply::Counts;
use crate::diff::Step;
use crate::reconcile::Reconciler;
use crate::show;

/// The answer of init, confirm, rollback and cleanup.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    #[serde(skip)]
    format: Format,
    /// What was made and removed, in this order.
    steps: Vec<String>,
    changes: Counts,
    /// What else was done, and what is left to be done.
    notes: Vec<String>,
}

impl Done {
    pub(super) fn new(output: OutputArgs) -> Self {
        Self {
            format: output.output,
            steps: Vec::new(),
            changes: Counts::default(),
            notes: Vec::new(),
        }
    }

    /// Reports steps, and how often the machine was changed.
    pub(super) fn steps(&mut self, done: &[Step], reconciler: &Reconciler) -> std::io::Result<()> {
        self.steps.extend(done.iter().map(show::done));
        self.changes = reconciler.counts();
        let mut text: String = self.steps.iter().map(|step| format!("{step}\n")).collect();
        text += &summary(done.len(), &self.changes);
        self.text(&text)
    }

    /// Reports something else.
    pub(super) fn say(&mut self, note: String) -> std::io::Result<()> {
        let text = format!("{note}\n");
        self.notes.push(note);
        self.text(&text)
    }

    /// Reports what is not as it should be.
    pub(super) fn warn(&mut self, note: String) {
        eprintln!("podwire node: {note}");
        self.notes.push(note);
    }

    fn text(&self, text: &str) -> std::io::Result<()> {
        match self.format {
            Format::Text => print(text),
            Format::Json | Format::Yaml => Ok(()),
        }
    }

    /// Prints the answer for programs.
    pub(super) fn end(self) -> std::io::Result<()> {
        print(&self.format.encode(&self, String::new)?)
    }
}

fn summary(steps: usize, counts: &Counts) -> String {
    let beside = |number: usize, what: &str| match number {
        0 => String::new(),
        number => format!(", {number} {what}"),
    };
    format!(
        "{steps} steps: {} changes by netlink and nft, {} transactions of Open vSwitch's \
         database, {} files written{}{}\n",
        counts.netlink,
        counts.ovsdb,
        counts.files,
        beside(counts.openflow, "bundles of OpenFlow"),
        beside(counts.dbus, "calls of firewalld"),
    )
}
