//! What was done, what was broken, and what failed: the table at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Counters that every worker adds to.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    verbs: BTreeMap<String, Verb>,
    faults: BTreeMap<&'static str, usize>,
}

#[derive(Debug, Default)]
struct Verb {
    done: usize,
    slowest: Duration,
    /// By code; what the runtime killed has none.
    failed: BTreeMap<Option<u64>, usize>,
}

impl Tally {
    pub(crate) fn done(&self, verb: &str, took: Duration) {
        self.verb(verb, |verb| {
            verb.done += 1;
            verb.slowest = verb.slowest.max(took);
        });
    }

    pub(crate) fn failed(&self, verb: &str, code: Option<u64>) {
        self.verb(verb, |verb| *verb.failed.entry(code).or_default() += 1);
    }

    pub(crate) fn fault(&self, fault: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.faults.entry(fault).or_default() += 1;
    }

    fn verb(&self, verb: &str, count: impl FnOnce(&mut Verb)) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        count(counts.verbs.entry(verb.to_owned()).or_default());
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(f, "operation      done   failed  slowest  failures by code")?;
        for (name, verb) in &counts.verbs {
            let failed: usize = verb.failed.values().sum();
            let codes: Vec<String> = verb
                .failed
                .iter()
                .map(|(code, times)| match code {
                    Some(code) => format!("{code}: {times}"),
                    None => format!("killed: {times}"),
                })
                .collect();
            writeln!(
                f,
                "{name:<12} {:>6}  {failed:>7}  {:>5.2} s  {}",
                verb.done,
                verb.slowest.as_secs_f64(),
                codes.join(", ")
            )?;
        }
        writeln!(f, "\nfault injected         times")?;
        for (fault, times) in &counts.faults {
            writeln!(f, "{fault:<20} {times:>7}")?;
        }
        Ok(())
    }
}
