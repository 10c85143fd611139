//! Transactions between their callers and the connection: who waits, who goes together, and who
//! left.

use std::collections::VecDeque;

use super::Ticket;
use super::config::GroupCommit;
use crate::transact::{Encoded, Shape, TransactError};

/// Transactions that wait to be sent, in order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Submission>,
    next_ticket: u64,
    limit: usize,
}

/// A transaction on its way.
#[derive(Debug)]
pub(super) struct Submission {
    /// Grows with the order of arrival.
    pub(super) ticket: Ticket,
    pub(super) encoded: Encoded,
    /// Goes alone: a member of a request that failed without a word on whose fault it was.
    pub(super) alone: bool,
    /// Has been sent before.
    pub(super) again: bool,
    /// Its caller has left while it was in flight.
    pub(super) abandoned: bool,
}

/// Transactions that go in one request.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<Submission>,
    /// The results that the fence has before theirs.
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

    /// Takes the transactions that are to go next, as many as may go together. With `only_retries`
    /// only one that is sent again alone.
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

    /// Puts back what an aborted request carried, before all others and in its order.
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

    /// Takes a submission out; false when it is not there (any more).
    pub(super) fn take_out(&mut self, ticket: Ticket) -> bool {
        // Sorted, for what is put back is older than all that wait.
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
    /// Whether this is one transaction sent singly after a failure nobody could be blamed for.
    /// Several of these may be in flight: the server takes them one after the other.
    pub(super) fn is_lone_retry(&self) -> bool {
        matches!(&self.members[..], [only] if only.is_lone_retry())
    }
}
