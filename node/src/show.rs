//! The findings as text and as JSON.

use std::fmt::{self, Write as _};

use serde::Serialize;
use serde_json::{Value, json};

use crate::diff::{Finding, Step};
use crate::items::{State, Undo};
use crate::preflight::Preflight;
use crate::record::Restored;
use crate::role::Role;
use crate::snapshot::Snapshot;

/// What init would do, with a verdict.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Planned {
    changes: Vec<PlannedChange>,
    /// The number of items that are as planned.
    in_sync: usize,
    /// Remarks about how the plan came about.
    verdict: Vec<String>,
    /// What init would say beside.
    notes: Vec<String>,
    /// Why it would change nothing at all.
    refusals: Vec<String>,
    /// The end of the text.
    summary: String,
}

/// An item that is not as planned.
#[derive(Debug, Serialize)]
struct PlannedChange {
    item: String,
    change: Planning,
    /// What is there instead, what it waits for, whose it is.
    detail: Option<String>,
}

/// What happens to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Planning {
    Make,
    Change,
    Remove,
    /// The machine's settings are in the way.
    Refused,
    /// It is another program's.
    Foreign,
}

impl Planned {
    pub(crate) fn of(snapshot: &Snapshot, preflight: &Preflight) -> Self {
        let mut in_sync = 0;
        let mut changes = Vec::new();
        for Finding { item, state } in &snapshot.findings {
            let (change, detail) = match state {
                State::Well { .. } => {
                    in_sync += 1;
                    continue;
                }
                State::Missing => (Planning::Make, None),
                State::Waits(what) => (Planning::Make, Some(first_clause(what))),
                State::Refused(setting) => (Planning::Refused, Some(&**setting)),
                State::Differs(seen) => (Planning::Change, Some(&**seen)),
                State::Surplus => (Planning::Remove, None),
                State::Foreign(whose) => (Planning::Foreign, Some(&**whose)),
            };
            let item = match change {
                Planning::Remove => item.identity(),
                _ => item.to_string(),
            };
            changes.push(PlannedChange {
                item,
                change,
                detail: detail.map(str::to_owned),
            });
        }
        let conflicts = snapshot.plan.conflicts.iter().map(ToString::to_string);
        let refusals: Vec<_> = conflicts.chain(preflight.refusals.clone()).collect();
        let is_foreign = |it: &&PlannedChange| it.change == Planning::Foreign;
        let foreign = changes.iter().filter(is_foreign).count();
        let summary = match (foreign, changes.len()) {
            _ if !refusals.is_empty() => "init would refuse: see above".to_owned(),
            (_, 0) => format!("nothing to do: in sync, all {in_sync} items"),
            (0, changes) => format!(
                "init would make {}; {} in sync",
                of(changes, "change"),
                of(in_sync, "item")
            ),
            (foreign, _) => format!(
                "init would refuse: {} in our place",
                of(foreign, "foreign item")
            ),
        };
        Self {
            changes,
            in_sync,
            verdict: snapshot.plan.verdict.clone(),
            notes: preflight.warnings.clone(),
            refusals,
            summary,
        }
    }

    /// Whether init would do or say more than that all is in sync.
    pub(crate) fn has_work(&self) -> bool {
        !self.changes.is_empty() || !self.refusals.is_empty()
    }
}

/// As a difference.
impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedChange {
            item,
            change,
            detail,
        } in &self.changes
        {
            let detail = detail.as_deref().unwrap_or_default();
            match change {
                Planning::Make if detail.is_empty() => writeln!(f, "+ {item}")?,
                Planning::Make => writeln!(f, "+ {item} (after {detail})")?,
                Planning::Change => writeln!(f, "~ {item} (now {detail})")?,
                Planning::Remove => writeln!(f, "- {item}")?,
                Planning::Refused => writeln!(f, "! {item}: refused, see {detail}")?,
                Planning::Foreign => writeln!(f, "! {item}: {detail}")?,
            }
        }
        if !self.changes.is_empty() {
            writeln!(f)?;
        }
        for line in &self.verdict {
            writeln!(f, "{line}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for refusal in &self.refusals {
            writeln!(f, "! {refusal}")?;
        }
        writeln!(f, "{}", self.summary)
    }
}

/// The part of a clause of an error's text before its advice.
fn first_clause(text: &str) -> &str {
    text.split([',', ':']).next().unwrap_or(text)
}

fn of(number: usize, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

/// Each item and its state, and that of `podwire node run`, if it runs.
pub(crate) fn items(
    snapshot: &Snapshot,
    journal: &[Undo],
    kept: &[Restored],
    run: Option<&Role>,
) -> String {
    let mut text = String::new();
    for Finding { item, state } in &snapshot.findings {
        let (word, detail) = words(state);
        let _ = match detail {
            _ if *state == State::Surplus => writeln!(text, "{word:<8} {}", item.identity()),
            Some(detail) => writeln!(text, "{word:<8} {item} ({detail})"),
            None => writeln!(text, "{word:<8} {item}"),
        };
    }
    if let Some(run) = run {
        let _ = writeln!(text, "\nrun: {}", run.said());
    }
    for conflict in &snapshot.plan.conflicts {
        let _ = writeln!(text, "\nconflict: {conflict}");
    }
    let _ = writeln!(text, "\njournal: {}", of(journal.len(), "inverse"));
    for undo in journal {
        let _ = match undo {
            Undo::Made(item) => writeln!(text, "  remove {}", item.identity()),
            Undo::Replaced(former) => writeln!(text, "  restore route {}", former.destination),
            Undo::Sysctl { path, was, set, .. } => {
                let sysctl = path.replace('/', ".");
                writeln!(text, "  write {was} to {sysctl}, while it is {set}")
            }
        };
    }
    let _ = writeln!(text, "\nrestored: {}", of(kept.len(), "item"));
    for Restored { at, item, was, by } in kept {
        let _ = writeln!(text, "  {at} {item} ({was}); changed by {by}");
    }
    text
}

/// The same for programs.
pub(crate) fn json(
    snapshot: &Snapshot,
    journal: &[Undo],
    kept: &[Restored],
    run: Option<&Role>,
) -> Value {
    let items = snapshot.findings.iter().map(|Finding { item, state }| {
        let (word, detail) = words(state);
        let ours = !matches!(state, State::Well { ours: false } | State::Foreign(_));
        json!({"item": item.to_string(), "state": word, "detail": detail, "ours": ours})
    });
    json!({
        "items": items.collect::<Vec<_>>(),
        "well": is_well(snapshot, run),
        "verdict": snapshot.plan.verdict,
        "run": run.map(|run| json!({"well": run.is_well(), "status": run.said()})),
        "conflicts": snapshot.plan.conflicts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "journal": journal,
        "restored": kept,
        // Its former name, for one more release.
        "put_back": kept,
    })
}

/// Whether everything is as planned, also what only `podwire node run` knows about: services.
pub(crate) fn is_well(snapshot: &Snapshot, run: Option<&Role>) -> bool {
    let mut states = snapshot.findings.iter().map(|finding| &finding.state);
    snapshot.plan.conflicts.is_empty()
        && states.all(|state| matches!(state, State::Well { .. }))
        && run.is_none_or(Role::is_well)
}

fn words(state: &State) -> (&'static str, Option<&str>) {
    match state {
        State::Well { ours: true } => ("ok", None),
        State::Well { ours: false } => ("ok", Some("not ours")),
        State::Missing => ("missing", None),
        State::Differs(seen) => ("differs", Some(seen)),
        State::Foreign(whose) => ("foreign", Some(whose)),
        State::Surplus => ("surplus", None),
        State::Waits(what) => ("missing", Some(first_clause(what))),
        State::Refused(setting) => ("refused", Some(setting)),
    }
}

/// A step in the past tense.
pub(crate) fn done(step: &Step) -> String {
    match step {
        Step::Make(item) => format!("made {item}"),
        Step::Remove(item) => item.kind().removed(),
    }
}
