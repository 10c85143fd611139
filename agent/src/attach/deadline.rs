//! The deadline that all waits of one ADD share.

use std::time::Duration;

use tokio::time::Instant;

/// When an ADD has to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    began: Instant,
    patience: Duration,
}

impl Deadline {
    /// A deadline this long from now.
    pub(super) fn after(patience: Duration) -> Self {
        Self {
            began: Instant::now(),
            patience,
        }
    }

    /// The point in time.
    pub(super) fn at(self) -> Instant {
        self.began + self.patience
    }

    /// The time left; zero after the deadline.
    pub(super) fn left(self) -> Duration {
        self.patience.saturating_sub(self.waited())
    }

    /// The time since the ADD began.
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
