//! Why a machine is not a node, and what that is judged by.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use itertools::Itertools as _;

use super::MOST_ROUNDS;
use crate::apply::Failure;
use crate::diff::Finding;
use crate::items::State;
use crate::journal::JournalError;
use crate::moved::MovedError;
use crate::plan::Conflict;
use crate::preflight::Preflight;
use crate::snapshot::SnapshotError;

/// Why the node is not set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("listen to the kernel: {0}")]
    Listen(#[from] io::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Moved(#[from] MovedError),
    #[error("{}", .0.iter().join("\n  "))]
    Apply(Vec<Failure>),
    #[error("items that podwire did not create are in the way, so nothing {} changed:\n{}",
        if *.more { "more was" } else { "was" }, .foreign.join("\n"))]
    Foreign { foreign: Vec<String>, more: bool },
    #[error("this machine can't join the network, so nothing {} changed:\n  {}",
        if *.more { "more was" } else { "was" }, .reasons.join("\n  "))]
    Refused { reasons: Vec<String>, more: bool },
    #[error("waited {} ms for other programs:\n{}", .limit.as_millis(), .awaited.join("\n"))]
    Awaited {
        limit: Duration,
        awaited: Vec<String>,
    },
    #[error(
        "something undoes podwire's changes: after {MOST_ROUNDS} rounds there is still something \
         to do:\n{}",
        .0.join("\n")
    )]
    Undone(Vec<String>),
    #[error(
        "{0} pods have ports on this node, and would lose the network: drain the node first, or \
         use --force"
    )]
    Pods(usize),
}

/// Possible problems, if nothing is refused.
pub(super) fn judged(found: Preflight) -> Result<Vec<String>, NodeError> {
    match found.refusals.is_empty() {
        true => Ok(found.warnings),
        false => Err(NodeError::Refused {
            reasons: found.refusals,
            more: false,
        }),
    }
}

pub(super) fn refuse_conflicts(conflicts: &[Conflict], more: bool) -> Result<(), NodeError> {
    let reasons: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(NodeError::Refused { reasons, more }),
    }
}

pub(crate) fn refuse_foreign(findings: &[Finding], more: bool) -> Result<(), NodeError> {
    let foreign = findings.iter().filter_map(|finding| match &finding.state {
        State::Foreign(whose) => Some(format!("  {}: {whose}", finding.item.identity())),
        _ => None,
    });
    let foreign: Vec<String> = foreign.collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(NodeError::Foreign { foreign, more })
}

/// What others have to provide, each once, with what waits for it.
pub(crate) fn awaited(findings: &[Finding]) -> Vec<String> {
    let mut awaited: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for finding in findings {
        if let State::Waits(what) = &finding.state {
            awaited
                .entry(what)
                .or_default()
                .push(finding.item.identity());
        }
    }
    let lines = awaited.into_iter();
    lines
        .map(|(what, items)| format!("  {what} (for {})", items.join(", ")))
        .collect()
}
