//! The last operations, kept in memory for `podwire timings` and benchmarks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::log;
use super::trace::Operation;

/// How many finished operations are kept.
const KEPT_OPERATIONS: usize = 4096;

/// The last operations that ended, newest last.
#[derive(Debug, Default)]
pub struct Recorder {
    operations: Mutex<VecDeque<Operation>>,
    /// How the last STATUS was answered: its code, 0 for success, and one more; 0 when there was
    /// none.
    last_status: AtomicU32,
}

impl Recorder {
    /// Logs a finished operation and keeps it.
    pub fn finish(&self, operation: Operation) {
        log::operation(&operation, self.is_repeated(&operation));
        let mut operations = self.lock();
        if operations.len() == KEPT_OPERATIONS {
            operations.pop_front();
        }
        operations.push_back(operation);
    }

    /// The kept operations, oldest first, at most `last` of them.
    pub fn operations(&self, last: usize) -> Vec<Operation> {
        let operations = self.lock();
        operations
            .iter()
            .skip(operations.len().saturating_sub(last))
            .cloned()
            .collect()
    }

    /// Whether it is a STATUS that says what the last one said: runtimes ask as often as every half
    /// second.
    fn is_repeated(&self, operation: &Operation) -> bool {
        let code = operation.outcome.code().saturating_add(1);
        operation.verb == "STATUS" && self.last_status.swap(code, Ordering::Relaxed) == code
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Operation>> {
        // A panic while the ring was held leaves it whole: every change is one push or pop.
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Outcome, Subject, Trace};

    #[test]
    fn the_ring_keeps_the_newest_operations_and_drops_the_oldest() {
        let recorder = Recorder::default();
        for n in 0..KEPT_OPERATIONS + 3 {
            let subject = Subject {
                container: n.to_string(),
                ..Subject::default()
            };
            recorder.finish(Trace::start().end("ADD", subject, Outcome::Ok("ok")));
        }
        let kept = recorder.operations(usize::MAX);
        assert_eq!(kept.len(), KEPT_OPERATIONS);
        assert_eq!(kept[0].container, "3");
        assert_eq!(
            recorder.operations(1)[0].container,
            (KEPT_OPERATIONS + 2).to_string()
        );
    }

    #[test]
    fn only_a_status_that_says_what_the_last_one_said_is_a_repetition() {
        let recorder = Recorder::default();
        let ended = |verb, code| {
            let outcome = match code {
                0 => Outcome::Ok("ok"),
                code => Outcome::Failed {
                    code,
                    msg: String::new(),
                },
            };
            recorder.is_repeated(&Trace::start().end(verb, Subject::default(), outcome))
        };
        assert!(!ended("STATUS", 0));
        assert!(ended("STATUS", 0));
        assert!(!ended("STATUS", 50));
        assert!(!ended("ADD", 0) && !ended("ADD", 0));
        assert!(ended("STATUS", 50));
        assert!(!ended("STATUS", 0));
    }
}
