//! `podwire node confirm`, `rollback`, and the guard of a moved NIC.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use podwire_daemon::output::OutputArgs;
use podwire_daemon::process::log_to_stderr;
use podwire_daemon::settings::SettingsError;
use podwire_daemon::settings::bad;

use super::{Done, Failure, Surroundings, say};
use crate::apply::Moving;
use crate::guard;
use crate::journal::Journal;
use crate::moved::{self, Lock, Moved};
use crate::reconcile::{Guard, NodeError, Rollback};
use crate::settings::{PlaceArgs, Places};

/// A move that awaits confirmation, or none.
#[derive(Debug, Args)]
pub(super) struct UplinkArgs {
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What the guard is told.
#[derive(Debug, Args)]
pub(super) struct GuardArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The deadline of the move, which tells it from others
    #[arg(long)]
    until: String,
}

/// The shortest and the longest time until the NIC is moved back: longer than the verification, and
/// short enough for who waits on the console.
const WITHIN: std::ops::RangeInclusive<u64> = 20..=86_400;

/// A time such as 90s, 2m or 1h.
pub(super) fn within(text: &str) -> Result<Duration, SettingsError> {
    let problem = "expected a time from 20s to 24h, such as 90s or 2m";
    let refused = || bad("--confirm-within", text, problem);
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(refused()),
    };
    let seconds = number.parse::<u64>().ok();
    let seconds = seconds.and_then(|number| number.checked_mul(factor));
    let seconds = seconds.filter(|seconds| WITHIN.contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(refused)
}

async fn lock(places: &Places) -> Result<Lock, Failure> {
    let locked = moved::wait_for_lock(&places.directory).await;
    Ok(locked.map_err(NodeError::from)?)
}

fn read(places: &Places) -> Result<Moved, Failure> {
    let moved = Moved::read(&places.directory).map_err(NodeError::from)?;
    moved.filter(Moved::is_there).ok_or(Failure::NothingMoved)
}

impl UplinkArgs {
    pub(super) async fn confirm(self) -> Result<ExitCode, Failure> {
        let places = self.places.check()?;
        read(&places)?;
        let mut rollback = Rollback::open(&places).await?;
        let _lock = lock(&places).await?;
        let moved = read(&places)?;
        let text = format!("{} stays in {}", moved.nic, moved.bridge);
        rollback.confirm(moved).await?;
        let mut answer = Done::new(self.output);
        answer.say(text)?;
        answer.end()?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn rollback(self) -> Result<ExitCode, Failure> {
        let places = self.places.check()?;
        let mut rollback = Rollback::open(&places).await?;
        let held = Moved::read(&places.directory).map_err(NodeError::from)?;
        let _lock = lock(&places).await?;
        let recorded = held.filter(Moved::is_there);
        // After a boot, the rows of Open vSwitch are all that is left.
        let Some(moved) = recorded.or_else(|| rollback.left_over()) else {
            Moved::forget(&places.directory).map_err(NodeError::from)?;
            return Err(Failure::NothingMoved);
        };
        let text = format!("moved {} out of {}", moved.nic, moved.bridge);
        let left = rollback.back(moved, "`podwire node rollback`").await?;
        let mut answer = Done::new(self.output);
        answer.say(text)?;
        for text in left {
            answer.warn(text);
        }
        answer.end()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl GuardArgs {
    pub(super) async fn run(self, surroundings: &Surroundings<'_>) -> Result<ExitCode, Failure> {
        log_to_stderr("info");
        // A terminal that ends must not end the guard.
        let _ = nix::unistd::setsid();
        // Where it was started may be unmounted.
        let _ = std::env::set_current_dir("/");
        let places = self.places.check()?;
        let guard = moved::wait_for_guard(&places.directory).await;
        let guard = guard.map_err(NodeError::from)?;
        let guard = Guard::open(&places, &self.until, guard).await?;
        surroundings.manager.notify("READY=1");
        // Whoever forked it waits for this; a unit's output is the journal.
        say(&format!("{}\n", guard::ARMED))?;
        guard.run().await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// How a move by this command is guarded.
pub(super) fn moving(
    places: &Places,
    within: Option<Duration>,
    api: Option<kube::Client>,
) -> Moving {
    Moving {
        within: within.unwrap_or(Moving::WITHIN),
        by_hand: within.is_some(),
        api,
        ..Moving::of(places)
    }
}

/// What a person still has to do.
pub(super) fn awaited(places: &Places) -> Result<Option<String>, Failure> {
    let moved = Moved::read(&places.directory).map_err(NodeError::from)?;
    Ok(moved.as_ref().and_then(Moved::unconfirmed))
}

/// The journal is for others' items: it is read alone.
impl Rollback {
    async fn open(places: &Places) -> Result<Self, Failure> {
        let journal = Journal::read(&places.directory).map_err(NodeError::from)?;
        Ok(Self::with_journal(places, journal).await?)
    }
}
