use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

use super::config::ClientConfig;
use super::remote::Remote;

/// The next remote, and the pause before it.
#[derive(Debug)]
pub(super) struct Dial {
    /// The remotes are used in turn.
    turn: usize,
    /// Attempts and connections that have ended since one was stable.
    pub(super) failures: u32,
    /// When the present attempt began.
    pub(super) started: Instant,
}

/// After a connection was current for this long, the next attempt is immediate; a shorter one might
/// fail again at once.
const STABLE: Duration = Duration::from_secs(1);

impl Dial {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            turn: 0,
            failures: 0,
            started: now,
        }
    }

    pub(super) fn remote<'a>(&self, config: &'a ClientConfig) -> &'a Remote {
        &config.remotes[self.turn]
    }

    /// No pause: the next attempt goes to the same remote, and nothing has failed.
    pub(super) fn again(&mut self) -> Duration {
        self.failures = 0;
        Duration::ZERO
    }

    /// The pause before the next attempt, which goes to the next remote.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        was_synced: bool,
        config: &ClientConfig,
    ) -> Duration {
        self.turn = (self.turn + 1) % config.remotes.len();
        self.failures = match was_synced && now.duration_since(self.started) >= STABLE {
            true => 1,
            false => self.failures + 1,
        };
        self.pause(config)
    }

    /// None until each remote was tried again; then one before each further round, doubling, and
    /// shortened at random by up to a quarter so that a database's clients spread out.
    fn pause(&self, config: &ClientConfig) -> Duration {
        let remotes = u32::try_from(config.remotes.len()).unwrap_or(u32::MAX);
        let Some(further) = self.failures.checked_sub(remotes + 1) else {
            return Duration::ZERO;
        };
        if further % remotes > 0 {
            return Duration::ZERO;
        }
        let doublings = (further / remotes).min(16);
        let pause = config
            .backoff_first
            .saturating_mul(1 << doublings)
            .min(config.backoff_max);
        let random = RandomState::new().hash_one(self.failures) % 256;
        pause - pause / 1024 * u32::try_from(random).unwrap_or_default()
    }
}
