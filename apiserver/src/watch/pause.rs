//! The pause of a watch after a failure.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::sync::Notify;

/// The pause before the next attempt: it doubles with each failure, and half of it is random, so
/// that the nodes of a cluster don't all return at once.
#[derive(Debug, Default)]
pub(super) struct Pause {
    failures: u32,
}

impl Pause {
    const SHORTEST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(30);
    /// Its remainder when somebody waits for the watch.
    const NUDGED: Duration = Duration::from_secs(1);

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(super) async fn wait(&mut self, nudge: Option<&Notify>) {
        let pause = self.next(RandomState::new().hash_one(()));
        let at_least = pause.min(Self::NUDGED);
        tokio::time::sleep(at_least).await;
        let nudged = async {
            match nudge {
                Some(nudge) => nudge.notified().await,
                None => std::future::pending().await,
            }
        };
        // Either way, the pause ends.
        let _ = tokio::time::timeout(pause - at_least, nudged).await;
    }

    fn next(&mut self, chance: u64) -> Duration {
        let most = Self::SHORTEST
            .saturating_mul(1 << self.failures.min(16))
            .min(Self::LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = most / 2;
        half + half.mul_f64(chance as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn in_an_hour_of_failures_the_server_is_asked_a_bounded_number_of_times() {
        let nudge = Notify::new();
        let mut pause = Pause::default();
        let hour = Duration::from_secs(3600);
        let began = tokio::time::Instant::now();
        let mut tries = 0;
        while began.elapsed() < hour {
            pause.wait(Some(&nudge)).await;
            tries += 1;
        }
        assert!((120..=250).contains(&tries), "{tries} tries in an hour");

        let began = tokio::time::Instant::now();
        nudge.notify_one();
        pause.wait(Some(&nudge)).await;
        assert_eq!(began.elapsed(), Pause::NUDGED);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_half_of_each_is_chance() {
        let mut pause = Pause::default();
        let least: Vec<u128> = (0..10).map(|_| pause.next(0).as_millis()).collect();
        assert_eq!(
            least,
            [100, 200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]
        );
        assert_eq!(pause.next(u64::MAX), Pause::LONGEST);
        pause.reset();
        assert_eq!(pause.next(u64::MAX), Pause::SHORTEST);
    }
}
