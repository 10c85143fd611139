//! Transactions between their callers and the connection: who waits, who goes together, and who left.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::config::GroupCommit;
use crate::transact::{Encoded, Outcome, TransactError};

pub(super) type Answer = Result<Outcome, TransactError>;

/// Transactions that wait to be sent, in order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Wakes the connection when something came.
    pub(super) arrived: Notify,
    limit: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    submissions: VecDeque<Submission>,
    next_number: u64,
}

/// A transaction on its way.
#[derive(Debug)]
pub(super) struct Submission {
    /// Grows with the order of arrival.
    number: u64,
    pub(super) encoded: Encoded,
    /// Goes alone: guarded, or a member of a request that failed without a word on whose fault it was.
    pub(super) alone: bool,
    /// Has been sent before.
    pub(super) again: bool,
    reply: oneshot::Sender<Answer>,
}

/// The caller's end of a submission. Dropped, it takes back what was not sent yet.
#[derive(Debug)]
pub(super) struct Ticket<'a> {
    queue: &'a Queue,
    number: u64,
    reply: oneshot::Receiver<Answer>,
}

/// What became of a submission that its caller no longer waits for.
pub(super) enum Withdrawn {
    /// It was never sent, or its request was aborted, and it is out of the queue.
    Unsent,
    /// It is on its way.
    Sent,
    /// The answer was there.
    Answered(Answer),
}

/// Transactions that go in one request.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<Submission>,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            limit,
        }
    }

    pub(super) fn submit(&self, encoded: Encoded) -> Result<Ticket<'_>, TransactError> {
        let (sender, reply) = oneshot::channel();
        let number = {
            let mut waiting = self.lock();
            let queued = waiting.submissions.len();
            if queued >= self.limit {
                return Err(TransactError::Overloaded { queued });
            }
            let number = waiting.next_number;
            waiting.next_number += 1;
            let alone = encoded.guarded;
            waiting.submissions.push_back(Submission {
                number,
                encoded,
                alone,
                again: false,
                reply: sender,
            });
            number
        };
        self.arrived.notify_one();
        Ok(Ticket {
            queue: self,
            number,
            reply,
        })
    }

    /// Takes the transactions that are to go next, as many as may go together. With `only_retries` only one that is sent again
    /// alone.
    pub(super) fn next_group(&self, limits: GroupCommit, only_retries: bool) -> Option<Group> {
        let mut waiting = self.lock();
        let submissions = &mut waiting.submissions;
        let mut members: Vec<Submission> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = submissions.front() {
            let fits = members.len() < limits.transactions.max(1)
                && bytes + next.encoded.bytes.len() <= limits.bytes
                && !next.alone;
            if !members.is_empty() && !fits || only_retries && !next.is_lone_retry() {
                break;
            }
            let Some(next) = submissions
                .pop_front()
                .filter(|next| !next.reply.is_closed())
            else {
                continue;
            };
            bytes += next.encoded.bytes.len();
            let alone = next.alone;
            members.push(next);
            if alone {
                break;
            }
        }
        (!members.is_empty()).then_some(Group { members })
    }

    /// Puts back what an aborted request carried, before all others and in its order.
    pub(super) fn put_back(&self, members: Vec<Submission>) {
        let mut waiting = self.lock();
        for mut member in members.into_iter().rev() {
            member.again = true;
            waiting.submissions.push_front(member);
        }
    }

    /// Answers everyone who waits.
    pub(super) fn fail_all(&self, error: &TransactError) {
        let submissions = std::mem::take(&mut self.lock().submissions);
        submissions
            .into_iter()
            .for_each(|submission| submission.answer(Err(error.clone())));
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a submission out; false when it is not there (any more).
    fn take_out(&self, number: u64) -> bool {
        let mut waiting = self.lock();
        // Sorted, for what is put back is older than all that wait.
        let found = waiting
            .submissions
            .binary_search_by_key(&number, |submission| submission.number);
        found.is_ok_and(|at| waiting.submissions.remove(at).is_some())
    }
}

impl Submission {
    pub(super) fn answer(self, answer: Answer) {
        // Nobody listens when the caller has left; what was sent is done all the same.
        let _ = self.reply.send(answer);
    }

    fn is_lone_retry(&self) -> bool {
        self.alone && self.again && !self.encoded.guarded
    }
}

impl Group {
    /// Whether this is one transaction sent singly after a failure nobody could be blamed for. Several of these may be in flight:
    /// the server takes them one after the other.
    pub(super) fn is_lone_retry(&self) -> bool {
        matches!(&self.members[..], [only] if only.is_lone_retry())
    }
}

impl Ticket<'_> {
    pub(super) async fn reply(&mut self) -> Answer {
        (&mut self.reply).await.unwrap_or_else(|_| Err(ended()))
    }

    pub(super) fn withdraw(mut self) -> Withdrawn {
        if self.queue.take_out(self.number) {
            return Withdrawn::Unsent;
        }
        self.reply
            .try_recv()
            .map_or(Withdrawn::Sent, Withdrawn::Answered)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.reply.close();
        self.queue.take_out(self.number);
    }
}

fn ended() -> TransactError {
    TransactError::Disconnected {
        sent: true,
        reason: "the OVSDB client has ended".to_owned(),
    }
}
