//! The findings as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::diff::{Finding, Step};
use crate::items::{State, Undo};
use crate::preflight::Preflight;
use crate::record::Restored;
use crate::role::Role;
use crate::snapshot::Snapshot;

/// What init would do, as a difference, with a verdict; and whether there is anything to do.
pub(crate) fn plan(snapshot: &Snapshot, preflight: &Preflight) -> (String, bool) {
    let mut text = String::new();
    let mut changes = 0;
    let mut foreign = 0;
    let mut well = 0;
    for Finding { item, state } in &snapshot.findings {
        let line = match state {
            State::Well { .. } => {
                well += 1;
                continue;
            }
            State::Missing => format!("+ {item}"),
            State::Waits(what) => format!("+ {item} (after {})", first_clause(what)),
            State::Refused(setting) => format!("! {item}: refused, see {setting}"),
            State::Differs(seen) => format!("~ {item} (now {seen})"),
            State::Surplus => format!("- {}", item.identity()),
            State::Foreign(whose) => {
                foreign += 1;
                format!("! {item}: {whose}")
            }
        };
        changes += 1;
        let _ = writeln!(text, "{line}");
    }
    if changes > 0 {
        text.push('\n');
    }
    for line in &snapshot.plan.verdict {
        let _ = writeln!(text, "{line}");
    }
    for warning in &preflight.warnings {
        let _ = writeln!(text, "note: {warning}");
    }
    for conflict in &snapshot.plan.conflicts {
        let _ = writeln!(text, "! {conflict}");
    }
    for refusal in &preflight.refusals {
        let _ = writeln!(text, "! {refusal}");
    }
    let refuses = !preflight.refusals.is_empty() || !snapshot.plan.conflicts.is_empty();
    let verdict = match (foreign, changes) {
        _ if refuses => "init would refuse: see above".to_owned(),
        (_, 0) => format!("nothing to do: in sync, all {well} items"),
        (0, changes) => format!(
            "init would make {}; {} in sync",
            of(changes, "change"),
            of(well, "item")
        ),
        (foreign, _) => {
            format!(
                "init would refuse: {} in our place",
                of(foreign, "foreign item")
            )
        }
    };
    let _ = writeln!(text, "{verdict}");
    (text, changes > 0 || refuses)
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
        let _ = writeln!(text, "\nrun: {}", run.status);
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
        "run": run.map(|run| json!({"well": run.well, "status": run.status})),
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
        && run.is_none_or(|run| run.well)
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
