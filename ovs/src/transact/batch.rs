//! Splits the reply to a request with several transactions.
//!
//! To the server it is one transaction: one failing operation aborts them all. So either all are
//! committed, or one is at fault, or the server did not say which.

use std::ops::Range;

use serde::Deserialize;

use super::encode::{ResultKind, Shape};
use super::outcome::{OperationOutcome, Outcome, SelectedRow, TransactError};
use crate::value::Uuid;

/// The meaning of the reply for the members, numbered in the order in which they were sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Committed; a member whose counts differ from its expectation still has an error.
    Committed(Vec<Result<Outcome, TransactError>>),
    /// Aborted because of an operation of this member; the others have to be sent again without it.
    Culprit { member: usize, error: TransactError },
    /// Aborted, and the server named no operation; each has to be sent alone.
    Unattributed(TransactError),
}

/// The reply does not fit the request.
#[derive(Debug, thiserror::Error)]
pub enum BadReply {
    /// It is no list of results.
    #[error("the reply to a transaction is not one: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It has too many results, or too few.
    #[error("{found} results for {expected} operations")]
    Length {
        /// The actual number.
        found: usize,
        /// The expected number.
        expected: usize,
    },
    /// A result does not match its operation.
    #[error("the result of operation {index} ({operation}) lacks {lacks}")]
    Incomplete {
        /// The operation's position in its transaction.
        index: usize,
        /// `insert`, `mutate`, …
        operation: &'static str,
        /// What is missing.
        lacks: &'static str,
    },
}

#[derive(Deserialize)]
struct Reply {
    uuid: Option<Tagged>,
    count: Option<u64>,
    rows: Option<Vec<SelectedRow>>,
    error: Option<String>,
    details: Option<String>,
}

#[derive(Deserialize)]
struct Tagged(Tag, Uuid);

#[derive(Deserialize)]
enum Tag {
    #[serde(rename = "uuid")]
    Uuid,
}

/// Parses the reply to a request with these members.
pub(crate) fn judge(reply: Result<&str, &str>, members: &[&[Shape]]) -> Result<Verdict, BadReply> {
    let results: Vec<Option<Reply>> = match reply {
        Ok(result) => serde_json::from_str(result)?,
        Err(error) => {
            return Ok(Verdict::Unattributed(TransactError::Refused {
                error: error.to_owned(),
            }));
        }
    };
    let operations = members.iter().map(|shapes| shapes.len()).sum();
    if let Some((at, error, details)) = first_error(&results) {
        if at > operations {
            return Err(BadReply::Length {
                found: results.len(),
                expected: operations,
            });
        }
        return Ok(match locate(at, members) {
            Some((member, index)) => Verdict::Culprit {
                member,
                error: failed(&members[member][index], index, error, details),
            },
            None => Verdict::Unattributed(TransactError::Commit { error, details }),
        });
    }
    if results.len() != operations {
        return Err(BadReply::Length {
            found: results.len(),
            expected: operations,
        });
    }
    let mut results = results.into_iter();
    let outcomes = members
        .iter()
        .map(|shapes| outcome(shapes, results.by_ref().take(shapes.len())));
    Ok(Verdict::Committed(outcomes.collect::<Result<_, _>>()?))
}

fn first_error(results: &[Option<Reply>]) -> Option<(usize, String, Option<String>)> {
    results.iter().enumerate().find_map(|(at, result)| {
        let result = result.as_ref()?;
        Some((at, result.error.clone()?, result.details.clone()))
    })
}

/// The member that an operation belongs to, and its position there.
fn locate(at: usize, members: &[&[Shape]]) -> Option<(usize, usize)> {
    let mut first = 0;
    for (member, shapes) in members.iter().enumerate() {
        let range: Range<usize> = first..first + shapes.len();
        if range.contains(&at) {
            return Some((member, at - first));
        }
        first = range.end;
    }
    None
}

fn failed(shape: &Shape, index: usize, error: String, details: Option<String>) -> TransactError {
    let (operation, table) = (shape.operation, shape.table.to_string());
    match (operation, error.as_str()) {
        ("wait", "timed out") => TransactError::Guard { index, table },
        _ => TransactError::Operation {
            index,
            operation,
            table,
            error,
            details,
        },
    }
}

fn outcome(
    shapes: &[Shape],
    results: impl Iterator<Item = Option<Reply>>,
) -> Result<Result<Outcome, TransactError>, BadReply> {
    let mut outcome = Outcome::default();
    let mut miscount = None;
    for (index, (shape, result)) in shapes.iter().zip(results).enumerate() {
        let operation = shape.operation;
        let lacks = |lacks| BadReply::Incomplete {
            index,
            operation,
            lacks,
        };
        let result = result.ok_or_else(|| lacks("everything"))?;
        let done = match shape.result {
            ResultKind::Uuid => {
                // Names are assigned in the order of the inserts, so a name's number is its
                // position here.
                outcome
                    .inserted
                    .push(result.uuid.ok_or_else(|| lacks("a uuid"))?.1);
                OperationOutcome::Nothing
            }
            ResultKind::Count => {
                OperationOutcome::Count(result.count.ok_or_else(|| lacks("a count"))?)
            }
            ResultKind::Rows => OperationOutcome::Rows(result.rows.ok_or_else(|| lacks("rows"))?),
            ResultKind::Nothing => OperationOutcome::Nothing,
        };
        let actual = match &done {
            OperationOutcome::Count(count) => Some(*count),
            OperationOutcome::Rows(rows) => Some(rows.len() as u64),
            OperationOutcome::Nothing => None,
        };
        if let Some((expected, actual)) = shape
            .count
            .zip(actual)
            .filter(|(expected, actual)| expected != actual)
        {
            let table = shape.table.to_string();
            miscount.get_or_insert(TransactError::Count {
                index,
                operation,
                table,
                expected,
                actual,
            });
        }
        outcome.results.push(done);
    }
    Ok(miscount.map_or(Ok(outcome), Err))
}
