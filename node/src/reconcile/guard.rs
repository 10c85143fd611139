//! What a guard does: it waits until a move is confirmed, and moves the NIC back if it is not.

use podwire_daemon::files::FileEvents;
use tokio::time::{Instant, sleep_until};
use tracing::{error, warn};

use super::{NodeError, Rollback};
use crate::journal::Journal;
use crate::moved::{self, Deadline, Lock, Moved, Phase};
use crate::settings::Places;

/// How long it waits until it tries again what has failed.
pub(super) const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// A guard that has opened all that it needs, and watches.
pub(crate) struct Guard {
    places: Places,
    rollback: Rollback,
    notices: FileEvents,
    until: String,
    /// While it has this, no other process is the guard.
    _guard: Lock,
}

impl Guard {
    /// Call this with the guards' lock.
    pub(crate) async fn open(
        places: &Places,
        until: &str,
        mut guard: Lock,
    ) -> Result<Self, NodeError> {
        moved::name_guard(&mut guard);
        // The journal is for others' items: it is read alone.
        let journal = Journal::read(&places.directory)?;
        let rollback = Rollback::with_journal(places, journal).await?;
        let notices = FileEvents::of_names(&[moved::file(&places.directory)])?;
        Ok(Self {
            places: places.clone(),
            rollback,
            notices,
            until: until.to_owned(),
            _guard: guard,
        })
    }

    /// The move, while it is to be undone.
    fn awaits(&self) -> Option<(Moved, Deadline)> {
        let moved = Moved::read(&self.places.directory).ok().flatten()?;
        let deadline = moved.deadline()?.clone();
        (deadline.until == self.until).then_some((moved, deadline))
    }

    /// Waits until the move is confirmed or undone; undoes it at the deadline, and at once if the
    /// process that moves the NIC ends without a result.
    pub(crate) async fn run(mut self) -> Result<(), NodeError> {
        let directory = self.places.directory.clone();
        let mut ended = Box::pin(moved::wait_for_lock(&directory));
        let mut lock = None;
        let mut is_left = false;
        let Some((_, deadline)) = self.awaits() else {
            return Ok(());
        };
        let at = Instant::now() + deadline.left();
        while self.awaits().is_some() {
            tokio::select! {
                changed = self.notices.next() => {
                    changed?;
                    // Not where a cleanup has removed the directory: watching creates it.
                    if self.awaits().is_some() {
                        self.notices = FileEvents::of_names(&[moved::file(&directory)])?;
                    }
                }
                free = &mut ended, if !is_left => {
                    is_left = true;
                    let free = free?;
                    let is_moving = |moved: &Moved| matches!(moved.phase, Phase::Moving(_));
                    if self.awaits().is_some_and(|(moved, _)| is_moving(&moved)) {
                        lock = Some(free);
                        break;
                    }
                }
                () = sleep_until(at) => break,
            }
        }
        let _lock = match lock {
            Some(lock) => lock,
            None if is_left => moved::wait_for_lock(&directory).await?,
            None => {
                self.kill(&deadline);
                ended.await?
            }
        };
        let Some((moved, _)) = self.awaits() else {
            return Ok(());
        };
        let why = match Instant::now() < at {
            true => "the process that moved it was killed".to_owned(),
            false => format!("it was not confirmed until {}", self.until),
        };
        warn!("moving {} back: {why}", moved.nic);
        loop {
            match self.rollback.back(moved.clone(), &why).await {
                Ok(left) => {
                    left.iter().for_each(|text| warn!("{text}"));
                    return Ok(());
                }
                Err(error) => error!("{error}; retrying"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Ends the process that still moves the NIC at the deadline: it hangs. Its id may be another's
    /// by now.
    fn kill(&self, deadline: &Deadline) {
        let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        let mover = deadline.mover;
        if self.awaits().is_some() && name(&mover.to_string()) == name("self") {
            warn!("process {mover} still moves the NIC at its deadline: killing it");
            let pid = nix::unistd::Pid::from_raw(mover.try_into().unwrap_or(i32::MAX));
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Moves a NIC back whose move nobody completes or guards any more: its process and its guard were
/// killed. Returns its name.
pub(crate) async fn undo_unguarded(places: &Places) -> Result<Option<String>, NodeError> {
    let directory = &places.directory;
    let is_unfinished = || -> Result<Option<Moved>, NodeError> {
        let moved = Moved::read(directory)?;
        Ok(moved.filter(|moved| moved.deadline().is_some()))
    };
    if is_unfinished()?.is_none() {
        return Ok(None);
    }
    let (Some(_guard), Some(_lock)) = (moved::lock_guard(directory)?, moved::lock(directory)?)
    else {
        return Ok(None);
    };
    let Some(moved) = is_unfinished()? else {
        return Ok(None);
    };
    let nic = moved.nic.clone();
    let mut rollback = Rollback::with_journal(places, Journal::read(directory)?).await?;
    let why = "the process that moved it was killed, and its guard";
    let left = rollback.back(moved, why).await?;
    left.iter().for_each(|text| warn!("{text}"));
    Ok(Some(nic))
}
