//! The deadline that all waits of a call share.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A point in time, and the span that led to it, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    start: Instant,
    pub(crate) span: Duration,
}

/// Why a wait for a descriptor ended before it was ready.
#[derive(Debug)]
pub(crate) enum WaitError {
    Expired,
    Poll(Errno),
}

impl Deadline {
    /// A deadline that starts now.
    pub(crate) fn after(span: Duration) -> Self {
        Self {
            start: Instant::now(),
            span,
        }
    }

    /// Another deadline with the same start.
    pub(crate) fn with(self, span: Duration) -> Self {
        Self { span, ..self }
    }

    /// The time left; never zero, which the kernel's socket timeouts take for "no limit".
    pub(crate) fn left(self) -> Option<Duration> {
        self.span
            .checked_sub(self.start.elapsed())
            .filter(|left| *left >= Duration::from_micros(1))
    }

    /// Waits until a descriptor is readable or writable, or has a pending error.
    pub(crate) fn wait(self, fd: impl AsFd, event: PollFlags) -> Result<(), WaitError> {
        loop {
            let left = self.left().ok_or(WaitError::Expired)?;
            // Rounded up: a wait of 0 ms would spin through the last millisecond.
            let millis = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(fd.as_fd(), event)], timeout) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(WaitError::Poll(errno)),
            }
        }
    }
}
