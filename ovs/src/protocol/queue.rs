//! Transactions between their callers and the connection: which wait, which are sent together, and
//! whose caller has left.

use std::collections::VecDeque;

use super::Ticket;
use super::config::GroupCommit;
use crate::transact::{Encoded, Shape, TransactError};

/// Transactions waiting to be sent, in order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Submission>,
    next_ticket: u64,
    limit: usize,
}

/// A transaction to be sent.
#[derive(Debug)]
pub(super) struct Submission {
    /// Increases in order of arrival.
    pub(super) ticket: Ticket,
    pub(super) encoded: Encoded,
    /// Is sent alone: it was in a request that failed without naming an operation.
    pub(super) alone: bool,
    /// Has been sent before.
    pub(super) again: bool,
    /// Its caller left while it was in flight.
    pub(super) abandoned: bool,
}

/// Transactions sent in one request.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<Submission>,
    /// The fence's results, which come first.
    pub(super) fence: Option<Vec<Shape>>,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            next_ticket: 0,
            limit,
        }
    }

    pub(super) fn submit(&mut self, encoded: Encoded) -> Result<Ticket, TransactError> {
        let queued = self.waiting.len();
        if queued >= self.limit {
            return Err(TransactError::Overloaded { queued });
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.push_back(Submission {
            ticket,
            encoded,
            alone: false,
            again: false,
            abandoned: false,
        });
        Ok(ticket)
    }

    /// Removes and returns the transactions to send next, as many as may go together. With
    /// `only_retries`, only one that is sent again alone.
    pub(super) fn next_group(
        &mut self,
        limits: GroupCommit,
        only_retries: bool,
    ) -> Option<Vec<Submission>> {
        let mut members: Vec<Submission> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.waiting.front() {
            let fits = members.len() < limits.transactions.max(1)
                && bytes + next.encoded.bytes.len() <= limits.bytes
                && !next.alone;
            if !members.is_empty() && !fits || only_retries && !next.is_lone_retry() {
                break;
            }
            bytes += next.encoded.bytes.len();
            let alone = next.alone;
            members.extend(self.waiting.pop_front());
            if alone {
                break;
            }
        }
        (!members.is_empty()).then_some(members)
    }

    /// Puts back the transactions of an aborted request, ahead of all others and in their order.
    pub(super) fn put_back(&mut self, members: Vec<Submission>) {
        for mut member in members.into_iter().rev().filter(|member| !member.abandoned) {
            member.again = true;
            self.waiting.push_front(member);
        }
    }

    /// Empties the queue.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Ticket> + use<> {
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|submission| submission.ticket)
    }

    /// Removes a submission; false if it is not queued (any more).
    pub(super) fn take_out(&mut self, ticket: Ticket) -> bool {
        // Sorted, because those put back are older than all that wait.
        let found = self
            .waiting
            .binary_search_by_key(&ticket, |submission| submission.ticket);
        found.is_ok_and(|at| self.waiting.remove(at).is_some())
    }
}

impl Submission {
    fn is_lone_retry(&self) -> bool {
        self.alone && self.again
    }
}

impl Group {
    /// Whether this is one transaction sent alone after a failure without a culprit. Several of
    /// these may be in flight: the server executes them one after the other.
    pub(super) fn is_lone_retry(&self) -> bool {
        matches!(&self.members[..], [only] if only.is_lone_retry())
    }
}
