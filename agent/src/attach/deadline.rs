//! The end of one ADD at the latest: whatever it waits for, it waits by this.

use std::time::Duration;

use tokio::time::Instant;

/// When an ADD must have ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    began: Instant,
    patience: Duration,
}

impl Deadline {
    /// So long from now.
    pub(super) fn after(patience: Duration) -> Self {
        Self {
            began: Instant::now(),
            patience,
        }
    }

    /// The moment.
    pub(super) fn at(self) -> Instant {
        self.began + self.patience
    }

    /// How long it is until then; nothing when it has passed.
    pub(super) fn left(self) -> Duration {
        self.patience.saturating_sub(self.waited())
    }

    /// How long it has been since the ADD began.
    pub(super) fn waited(self) -> Duration {
        self.began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_one_wait_has_taken_the_next_one_lacks() {
        let deadline = Deadline::after(Duration::from_secs(30));
        assert_eq!(deadline.left(), Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(deadline.left(), Duration::from_secs(10));
        tokio::time::sleep_until(deadline.at()).await;
        assert_eq!(deadline.left(), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(deadline.left(), Duration::ZERO);
        assert_eq!(deadline.waited(), Duration::from_secs(31));
    }
}
