//! Waiting for files, woken by inotify; and for what is set in the kernel's network, woken by
//! netlink.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use crate::failure::{Failure, Step};
use crate::place::Place;
use crate::process::Daemon;

/// Why a [`Watch::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Something in the watched directory or file changed.
    Changed,
    /// The process whose end was watched too has ended.
    Ended,
    /// Neither happened in time.
    TimedOut,
}

/// Changes of a directory's entries or of a file's content.
pub(crate) struct Watch(Inotify);

impl Watch {
    /// Watches `path`, which must exist.
    pub(crate) fn new(path: &Path) -> Result<Watch, Failure> {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MODIFY;
        let watch =
            Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).step(|| "inotify")?;
        watch
            .add_watch(path, flags)
            .step(|| format!("watch {}", path.display()))?;
        Ok(Watch(watch))
    }

    /// Waits for a change, for the hang-up of `end`, or for `limit` to pass.
    pub(crate) fn wait(&self, end: BorrowedFd<'_>, limit: Duration) -> Result<Woken, Failure> {
        let mut fds = [
            PollFd::new(self.0.as_fd(), PollFlags::POLLIN),
            PollFd::new(end, PollFlags::POLLIN),
        ];
        let until = Instant::now() + limit;
        loop {
            // Rounded up: a poll of 0 ms would spin through the last millisecond.
            let left = until.saturating_duration_since(Instant::now()).as_millis() + 1;
            match poll(
                &mut fds,
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            ) {
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno).step(|| "poll inotify"),
                Ok(0) => return Ok(Woken::TimedOut),
                Ok(_) => break,
            }
        }
        match self.0.read_events() {
            Ok(_) => Ok(Woken::Changed),
            Err(Errno::EAGAIN) => Ok(Woken::Ended),
            Err(errno) => Err(errno).step(|| "read inotify"),
        }
    }
}

/// Looks at what a daemon has printed, whenever that changes, as [`await_seen`] does.
pub(crate) fn await_log<T>(
    daemon: &Daemon,
    limit: Duration,
    awaited: &str,
    look: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Failure> {
    let look = || look(&std::fs::read_to_string(daemon.log()).unwrap_or_default());
    await_seen(daemon.log(), daemon, limit, awaited, look)
}

/// Looks whenever something changes at `path` until `look` gives a value. Its error is what was
/// seen instead, for the failure at the deadline or at the daemon's end.
pub(crate) fn await_seen<T>(
    path: &Path,
    daemon: &Daemon,
    limit: Duration,
    awaited: &str,
    look: impl FnMut() -> Result<T, String>,
) -> Result<T, Failure> {
    let changes = Watch::new(path)?;
    looked(limit, awaited, look, |left| {
        changes.wait(daemon.end(), left)
    })
}

/// Looks whenever an entry of this directory changes, until `look` gives a value.
pub(crate) fn await_entry<T>(
    directory: &Path,
    limit: Duration,
    awaited: &str,
    look: impl FnMut() -> Result<T, String>,
) -> Result<T, Failure> {
    let changes = Watch::new(directory)?;
    // Nobody's end is awaited.
    let (end, _kept) = std::io::pipe().step(|| "make a pipe")?;
    looked(limit, awaited, look, |left| changes.wait(end.as_fd(), left))
}

/// Looks after each change that `wait` tells of, until `look` gives a value.
fn looked<T>(
    limit: Duration,
    awaited: &str,
    mut look: impl FnMut() -> Result<T, String>,
    wait: impl Fn(Duration) -> Result<Woken, Failure>,
) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        let seen = match look() {
            Ok(found) => return Ok(found),
            Err(seen) => seen,
        };
        let woken = wait(limit.saturating_sub(began.elapsed()))?;
        if woken != Woken::Changed {
            return Err(Failure::Deadline {
                awaited: awaited.into(),
                waited: began.elapsed(),
                seen: format!("{woken:?}, and {seen}"),
            });
        }
    }
}

/// Links, and addresses, routes and rules of both families (rtnetlink(7), RTMGRP_*).
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// Looks whenever a link, an address or a route of a network namespace changes, until `look` gives
/// a value.
pub(crate) fn await_network<T>(
    place: &Place,
    limit: Duration,
    awaited: &str,
    look: impl FnMut() -> Result<T, String>,
) -> Result<T, Failure> {
    let open = || {
        let (raw, route) = (SockType::Raw, SockProtocol::NetlinkRoute);
        let events = socket(AddressFamily::Netlink, raw, SockFlag::SOCK_CLOEXEC, route)?;
        bind(events.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Ok::<_, Errno>(events)
    };
    let events = place.run(open).step(|| "listen to rtnetlink")?;
    looked(limit, awaited, look, |left| {
        let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
        if !matches!(poll(&mut fds, timeout), Ok(1..) | Err(Errno::EINTR)) {
            return Ok(Woken::TimedOut);
        }
        // What they say does not matter, nor whether some were lost.
        let mut bytes = [0; 1 << 15];
        while !matches!(
            recv(events.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT),
            Err(Errno::EAGAIN)
        ) {}
        Ok(Woken::Changed)
    })
}
