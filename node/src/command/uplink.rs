//! `podwire node confirm`, `rollback`, and the guard of a moved NIC.

use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use podwire_daemon::settings::SettingsError;
use podwire_daemon::settings::bad;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until};

use super::{Failure, say};
use crate::apply::Moving;
use crate::events::FileNotices;
use crate::guard;
use crate::journal::Journal;
use crate::keep::{Mover, NodeError};
use crate::moved::{self, Lock, Moved, Phase};
use crate::settings::{PlaceArgs, Places};

/// How long the guard waits until it tries again what has failed.
const RETRY: Duration = Duration::from_secs(1);

/// A move that awaits confirmation, or none.
#[derive(Debug, Args)]
pub(super) struct UplinkArgs {
    #[command(flatten)]
    places: PlaceArgs,
}

/// What the guard is told.
#[derive(Debug, Args)]
pub(super) struct GuardArgs {
    #[command(flatten)]
    places: PlaceArgs,
    #[arg(long)]
    until: String,
    #[arg(long)]
    within_ms: u64,
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
    let directory = places.directory.clone();
    // A process that waits for a lock can't be notified.
    let locked = tokio::task::spawn_blocking(move || moved::lock(&directory, true)).await;
    let locked = locked.map_err(|error| Failure::Runtime(error.into()))?;
    let locked = locked.map_err(NodeError::from)?;
    // It was waited for.
    locked.ok_or(Failure::NothingMoved)
}

fn read(places: &Places) -> Result<Moved, Failure> {
    let moved = Moved::read(&places.directory).map_err(NodeError::from)?;
    moved.filter(Moved::is_there).ok_or(Failure::NothingMoved)
}

impl UplinkArgs {
    pub(super) async fn confirm(self) -> Result<ExitCode, Failure> {
        let places = self.places.check()?;
        read(&places)?;
        let _lock = lock(&places).await?;
        let mut moved = read(&places)?;
        let text = format!("{} stays in {}\n", moved.nic, moved.bridge);
        moved.phase = Phase::Confirmed;
        moved.write(&places.directory).map_err(NodeError::from)?;
        say(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn rollback(self) -> Result<ExitCode, Failure> {
        let places = self.places.check()?;
        let mut mover = Mover::open(&places).await?;
        let held = Moved::read(&places.directory).map_err(NodeError::from)?;
        let _lock = lock(&places).await?;
        let recorded = held.filter(Moved::is_there);
        // After a boot, the rows of Open vSwitch are all that is left.
        let Some(moved) = recorded.or_else(|| mover.left_over()) else {
            Moved::forget(&places.directory).map_err(NodeError::from)?;
            return Err(Failure::NothingMoved);
        };
        let text = format!("moved {} out of {}\n", moved.nic, moved.bridge);
        mover.back(moved, "`podwire node rollback`").await?;
        say(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl GuardArgs {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        // A terminal that ends must not end the guard.
        let _ = nix::unistd::setsid();
        let starter = nix::unistd::getppid();
        let deadline = Instant::now() + Duration::from_millis(self.within_ms);
        let places = self.places.check()?;
        // All that the rollback needs is opened before anything is changed.
        let mut mover = Mover::open(&places).await?;
        let file = moved::file(&places.directory);
        let notices = FileNotices::listen(&[file]).map_err(NodeError::from)?;
        let is_mine =
            |moved: &Moved| matches!(&moved.phase, Phase::Moving { until } if *until == self.until);
        let awaits = || {
            let moved = Moved::read(&places.directory).ok().flatten();
            moved.filter(is_mine)
        };
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let mut input = pipe::Receiver::from_owned_fd(input.map_err(NodeError::from)?)
            .map_err(NodeError::from)?;
        say(&format!("{}\n", guard::ARMED))?;
        let mut is_left = false;
        loop {
            if awaits().is_none() {
                return Ok(ExitCode::SUCCESS);
            }
            let mut said = [0];
            tokio::select! {
                changed = notices.next() => changed.map_err(NodeError::from)?,
                read = input.read(&mut said), if !is_left => match read {
                    Ok(1..) => is_left = true,
                    // Its starter was killed: nobody would confirm.
                    _ => break,
                },
                () = sleep_until(deadline) => break,
            }
        }
        // Whoever still moves it hangs.
        let locked = moved::lock(&places.directory, false).map_err(NodeError::from)?;
        if locked.is_none() && nix::unistd::getppid() == starter {
            eprintln!("process {starter} still moves the NIC at its deadline: killing it");
            let _ = nix::sys::signal::kill(starter, nix::sys::signal::Signal::SIGKILL);
        }
        let _lock = match locked {
            Some(lock) => lock,
            None => lock(&places).await?,
        };
        let Some(moved) = awaits() else {
            return Ok(ExitCode::SUCCESS);
        };
        let why = match Instant::now() < deadline {
            true => "`podwire node init` was killed".to_owned(),
            false => format!("it was not confirmed until {}", self.until),
        };
        while let Err(error) = mover.back(moved.clone(), &why).await {
            eprintln!("{error}; retrying");
            tokio::time::sleep(RETRY).await;
        }
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
    Ok(moved.and_then(|moved| match moved.phase {
        Phase::Moving { until } => Some(format!(
            "{} is in {} until {until}: log in anew, and run `podwire node confirm`, or it is \
             moved back\n",
            moved.nic, moved.bridge
        )),
        _ => None,
    }))
}

/// The journal is for others' items: it is read alone.
impl Mover {
    async fn open(places: &Places) -> Result<Self, Failure> {
        let journal = Journal::read(&places.directory).map_err(NodeError::from)?;
        Ok(Self::with_journal(places, journal).await?)
    }
}
