//! Rate limits of Events: pure.
//!
//! The same reason on the same pod is one Event with a count, which is updated at most once a
//! minute. Over all pods there is a budget: a burst, and then one per second.

use std::collections::HashMap;
use std::time::Duration;

use podwire_apiserver::event::Warning;
use tokio::time::Instant;

/// How often one Event may be updated.
const INTERVAL: Duration = Duration::from_secs(60);
/// Requests that may go out at once.
const BURST: u32 = 30;
/// After which another one may.
const REFILL: Duration = Duration::from_secs(1);
/// How long an Event is remembered: as long as the API server keeps it (`--event-ttl`, 1 h).
const KEPT: Duration = Duration::from_secs(3600);
/// How many are remembered; the one reported least recently makes room.
const MOST: usize = 512;

/// What to do about a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Create an Event.
    Post,
    /// Update an existing one.
    Count(Posted),
    /// Nothing: it was reported a short while ago, and is counted for the next time.
    Hold,
    /// Nothing: the budget is used up.
    Drop,
}

/// An Event that was posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Posted {
    /// Its name.
    pub(super) event: String,
    /// How often its reason occurred.
    pub(super) count: i32,
}

#[derive(Debug)]
pub(super) struct Ledger {
    entries: HashMap<Key, Entry>,
    budget: u32,
    /// When the budget was last increased.
    refilled: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    pod: String,
    reason: &'static str,
}

#[derive(Debug)]
struct Entry {
    /// Its name, once it was posted.
    event: Option<String>,
    count: i32,
    posted: Instant,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            budget: BURST,
            refilled: None,
        }
    }
}

impl Ledger {
    pub(super) fn step(&mut self, report: &Warning, now: Instant) -> Step {
        self.refill(now);
        let key = key(report);
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.posted) < KEPT);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.count = entry.count.saturating_add(1);
            if now.saturating_duration_since(entry.posted) < INTERVAL {
                return Step::Hold;
            }
        }
        let Some(budget) = self.budget.checked_sub(1) else {
            return Step::Drop;
        };
        self.budget = budget;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.posted = now;
            return match &entry.event {
                None => Step::Post,
                Some(event) => Step::Count(Posted {
                    event: event.clone(),
                    count: entry.count,
                }),
            };
        }
        self.make_room();
        let entry = Entry {
            event: None,
            count: 1,
            posted: now,
        };
        self.entries.insert(key, entry);
        Step::Post
    }

    /// An Event was created for a report.
    pub(super) fn posted(&mut self, report: &Warning, event: String) {
        if let Some(entry) = self.entries.get_mut(&key(report)) {
            entry.event = Some(event);
            entry.count = 1;
        }
    }

    /// It could not be posted.
    pub(super) fn forget(&mut self, report: &Warning) {
        self.entries.remove(&key(report));
    }

    fn refill(&mut self, now: Instant) {
        let refilled = *self.refilled.get_or_insert(now);
        let periods = now.saturating_duration_since(refilled).as_secs() / REFILL.as_secs();
        if periods > 0 {
            let more = u32::try_from(periods).unwrap_or(u32::MAX);
            self.budget = self.budget.saturating_add(more).min(BURST);
            self.refilled = Some(now);
        }
    }

    fn make_room(&mut self) {
        if self.entries.len() < MOST {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.posted);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.entries.remove(&key);
        }
    }
}

/// Another pod of the same name has another uid, and no Event yet.
fn key(report: &Warning) -> Key {
    let pod = match report.uid.as_str() {
        "" => format!("{}/{}", report.namespace, report.name),
        uid => uid.to_owned(),
    };
    Key {
        pod,
        reason: report.reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(pod: usize, reason: &'static str) -> Warning {
        Warning {
            api: "v1",
            kind: "Pod",
            namespace: "shop".into(),
            name: format!("web-{pod}"),
            uid: format!("uid-{pod}"),
            reason,
            message: "why".into(),
        }
    }

    fn counted(event: &str, count: i32) -> Step {
        let event = event.to_owned();
        Step::Count(Posted { event, count })
    }

    #[test]
    fn the_same_reason_on_the_same_pod_is_one_event_with_a_count() {
        let mut ledger = Ledger::default();
        let (start, bad) = (Instant::now(), report(1, "Bad"));
        assert_eq!(ledger.step(&bad, start), Step::Post);
        ledger.posted(&bad, "web-1.a".into());
        assert_eq!(ledger.step(&bad, start + INTERVAL / 2), Step::Hold);
        assert_eq!(
            ledger.step(&bad, start + INTERVAL),
            counted("web-1.a", 3),
            "what was held counts as well"
        );
        assert_eq!(ledger.step(&bad, start + INTERVAL), Step::Hold);
        assert_eq!(ledger.step(&report(1, "Worse"), start), Step::Post);
        assert_eq!(ledger.step(&report(2, "Bad"), start), Step::Post);
        assert_eq!(ledger.step(&bad, start + INTERVAL + KEPT), Step::Post);
    }

    #[test]
    fn what_could_not_be_posted_is_posted_the_next_time() {
        let mut ledger = Ledger::default();
        let (now, bad) = (Instant::now(), report(1, "Bad"));
        assert_eq!(ledger.step(&bad, now), Step::Post);
        ledger.forget(&bad);
        assert_eq!(ledger.step(&bad, now), Step::Post);
    }

    #[test]
    fn a_storm_of_failing_pods_is_bounded_and_later_ones_are_posted_again() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let posted = |ledger: &mut Ledger, from: usize, at: Instant| {
            let steps = (from..from + 1000).map(|pod| ledger.step(&report(pod, "Bad"), at));
            steps.filter(|step| *step == Step::Post).count()
        };
        assert_eq!(posted(&mut ledger, 0, now), BURST as usize);
        assert_eq!(posted(&mut ledger, 1000, now + REFILL * 5), 5);
        assert_eq!(posted(&mut ledger, 2000, now + KEPT), BURST as usize);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut ledger = Ledger::default();
        let start = Instant::now();
        for pod in 0..MOST + 10 {
            let at = start + REFILL * u32::try_from(pod).unwrap();
            assert_eq!(ledger.step(&report(pod, "Bad"), at), Step::Post);
        }
        assert_eq!(ledger.entries.len(), MOST);
    }
}
