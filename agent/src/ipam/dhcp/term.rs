//! What follows from a lease's times, of either family.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A lease without an end, as servers write it (RFC 2131, section 3.3; RFC 8415, section 7.7).
pub(super) const FOREVER: u32 = u32::MAX;

/// The shortest lease in seconds that is kept as given; a shorter one would have the client ask
/// without a pause.
pub(super) const SHORTEST: u32 = 4;

/// The least time between two attempts to extend a lease (RFC 2131, section 4.4.5), unless the
/// lease is so short that an eighth of it is less.
const LEAST_PAUSE: Duration = Duration::from_secs(60);

/// When a lease was last given, and what is due when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// When it was last given, in nanoseconds since boot.
    pub since: u64,
    /// What is due when.
    pub times: Times,
}

/// The times of a lease, in seconds from when it was last given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// When its server is asked for more time (T1).
    pub renewal: u32,
    /// When any server is asked (T2).
    pub rebinding: u32,
    /// When it ends; 0 if it is lost already.
    pub end: u32,
}

/// What is due for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing.
    Bound,
    /// To ask its server for more time.
    Renewing,
    /// To ask any server.
    Rebinding,
    /// To be without the address.
    Ended,
}

impl Times {
    /// The times of a lost lease.
    const LOST: Self = Self {
        renewal: 0,
        rebinding: 0,
        end: 0,
    };

    /// What a server says, in order whatever it says (RFC 2131, section 4.4.5; RFC 8415, section
    /// 21.4).
    pub fn of(end: u32, renewal: u32, rebinding: u32) -> Self {
        let end = end.max(SHORTEST);
        let rebinding = rebinding.clamp(2, end - 1);
        Self {
            renewal: renewal.clamp(1, rebinding - 1),
            rebinding,
            end,
        }
    }
}

impl Term {
    /// What is due. `now` is in nanoseconds since boot, here and below.
    pub fn stage(&self, now: u64) -> Stage {
        let Times {
            renewal,
            rebinding,
            end,
        } = self.times;
        match end {
            FOREVER => Stage::Bound,
            _ if self.until(end, now).is_zero() => Stage::Ended,
            _ if self.until(rebinding, now).is_zero() => Stage::Rebinding,
            _ if self.until(renewal, now).is_zero() => Stage::Renewing,
            _ => Stage::Bound,
        }
    }

    /// The time until its server is to be asked for more time; None without an end.
    pub fn until_renewal(&self, now: u64) -> Option<Duration> {
        (self.times.end != FOREVER).then(|| self.until(self.times.renewal, now))
    }

    /// The time that is left of it.
    pub fn left(&self, now: u64) -> Duration {
        self.until(self.times.end, now)
    }

    /// The pause after an attempt to extend it that failed: half of what remains before any server
    /// is asked or, after that, before the end.
    pub fn pause(&self, now: u64) -> Duration {
        let remains = match self.until(self.times.rebinding, now) {
            Duration::ZERO => self.left(now),
            remains => remains,
        };
        let least = LEAST_PAUSE.min(Duration::from_secs(self.times.end.into()) / 8);
        (remains / 2).max(least).min(remains)
    }

    /// The same of a lease that has ended, and whose address the pod no longer has.
    pub fn lost(&self) -> Self {
        Self {
            times: Times::LOST,
            ..*self
        }
    }

    /// Whether the pod no longer has the address.
    pub fn is_lost(&self) -> bool {
        self.times == Times::LOST
    }

    fn until(&self, seconds: u32, now: u64) -> Duration {
        let moment = u64::from(seconds).saturating_mul(1_000_000_000);
        Duration::from_nanos(self.since.saturating_add(moment).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn term(renewal: u32, rebinding: u32, end: u32) -> Term {
        Term {
            since: 100 * SECOND,
            times: Times {
                renewal,
                rebinding,
                end,
            },
        }
    }

    #[test]
    fn each_time_of_a_lease_begins_a_stage() {
        let term = term(60, 105, 120);
        for (seconds, stage) in [
            (100, Stage::Bound),
            (159, Stage::Bound),
            (160, Stage::Renewing),
            (204, Stage::Renewing),
            (205, Stage::Rebinding),
            (219, Stage::Rebinding),
            (220, Stage::Ended),
        ] {
            assert_eq!(term.stage(seconds * SECOND), stage, "{seconds}");
        }
        assert_eq!(
            term.until_renewal(110 * SECOND),
            Some(Duration::from_secs(50))
        );
        assert_eq!(term.left(210 * SECOND), Duration::from_secs(10));
    }

    #[test]
    fn a_lease_without_an_end_is_not_renewed() {
        let term = term(60, 105, FOREVER);
        assert_eq!(term.until_renewal(0), None);
        assert_eq!(term.stage(u64::MAX), Stage::Bound);
    }

    #[test]
    fn a_lost_lease_has_ended_whenever_it_is_asked() {
        let lost = term(60, 105, 120).lost();
        assert!(lost.is_lost());
        assert_eq!(lost.stage(lost.since), Stage::Ended);
        assert_eq!(lost.until_renewal(lost.since), Some(Duration::ZERO));
    }

    #[test]
    fn attempts_come_closer_to_each_other_but_not_closer_than_a_minute_and_none_is_after_the_end() {
        let hour = term(1800, 3150, 3600);
        let pause = |term: &Term, at: u64| term.pause((100 + at) * SECOND).as_secs();
        assert_eq!(pause(&hour, 1800), 675);
        assert_eq!(pause(&hour, 3000), 75);
        assert_eq!(pause(&hour, 3080), 60);
        assert_eq!(pause(&hour, 3100), 50, "T2");
        assert_eq!(pause(&hour, 3150), 225);
        assert_eq!(pause(&hour, 3590), 10, "the end");
        let short = term(2, 4, 8);
        assert_eq!(pause(&short, 2), 1);
        assert_eq!(pause(&short, 7), 1);
    }
}
