//! The guard of a moved NIC: a process of its own that moves it back at a deadline, unless the new
//! path was confirmed. It does not end with the process that started it, nor with its terminal.
//!
//! Where systemd runs, it is a unit of its own: a session that ends does not end it, and systemd
//! starts it again if it is killed. Elsewhere it is forked.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use podwire_daemon::process::sees_systemd;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::moved::{self, Deadline, MovedError};
use crate::settings::Places;

/// How long a guard may take until it watches.
const ARMED_LIMIT: Duration = Duration::from_secs(20);
/// What it says then.
pub(crate) const ARMED: &str = "armed";
/// Its log, beside the record.
const LOG: &str = "guard.log";

/// Why there is no guard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuardError {
    #[error("start the process that would move the NIC back: {0}")]
    Start(#[source] std::io::Error),
    #[error("the process that would move the NIC back did not begin to watch: {0}")]
    Unarmed(String),
    #[error(transparent)]
    Moved(#[from] MovedError),
    #[error("the process that would move the NIC back has ended")]
    Ended,
}

/// Starts a guard of the move with this deadline, and waits until it watches. The record is on
/// disk already.
pub(crate) async fn start(places: &Places, deadline: &Deadline) -> Result<(), GuardError> {
    let program = std::env::current_exe().map_err(GuardError::Start)?;
    let run = places.directory.parent().unwrap_or(Path::new("/"));
    let mut line = vec![program.into_os_string()];
    line.extend(["node", "guard", "--until", &deadline.until, "--run-dir"].map(Into::into));
    line.push(run.into());
    line.extend(["--ovsdb", &places.ovsdb.to_string()].map(Into::into));
    match sees_systemd() {
        true => as_unit(line).await,
        false => forked(line, places).await,
    }
}

/// systemd-run ends when the unit has reported that it is ready.
async fn as_unit(line: Vec<std::ffi::OsString>) -> Result<(), GuardError> {
    let mut command = Command::new("systemd-run");
    let unit = format!("--unit=podwire-guard-{}", std::process::id());
    command.args(["--quiet", "--collect", "--service-type=notify", &unit]);
    command.arg("--description=Moves the NIC back unless its move is confirmed (podwire node)");
    for property in [
        "Restart=on-failure",
        "RestartSec=100ms",
        "StartLimitIntervalSec=0",
        "OOMScoreAdjust=-900",
        &format!("TimeoutStartSec={}", ARMED_LIMIT.as_secs()),
    ] {
        command.args(["--property", property]);
    }
    command.args(line).stdin(Stdio::null()).kill_on_drop(true);
    let done = timeout(2 * ARMED_LIMIT, command.output()).await;
    let done = done.map_err(|_| GuardError::Unarmed("systemd-run does not end".to_owned()))?;
    let done = done.map_err(GuardError::Start)?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(GuardError::Unarmed(said.trim().to_owned()))
        }
    }
}

/// The guard makes a session of its own, and says on its standard output when it watches.
async fn forked(line: Vec<std::ffi::OsString>, places: &Places) -> Result<(), GuardError> {
    let log = moved::file(&places.directory).with_file_name(LOG);
    let file = File::create(&log).map_err(GuardError::Start)?;
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file);
    // It must not end where this process does.
    command.env_remove("PODWIRE_NODE_FAULT");
    #[cfg(feature = "fault-points")]
    if let Some(boundary) = std::env::var_os("PODWIRE_GUARD_FAULT") {
        command.env("PODWIRE_NODE_FAULT", boundary);
    }
    let mut child = command.spawn().map_err(GuardError::Start)?;
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let _ = timeout(ARMED_LIMIT, output.read_line(&mut said)).await;
    }
    if said.trim() == ARMED {
        return Ok(());
    }
    let _ = child.start_kill();
    let said = std::fs::read_to_string(log).unwrap_or_default();
    Err(GuardError::Unarmed(said.trim().to_owned()))
}

/// That a guard watches: it has its lock.
pub(crate) fn check(places: &Places) -> Result<(), GuardError> {
    match moved::lock_guard(&places.directory)? {
        None => Ok(()),
        Some(_) => Err(GuardError::Ended),
    }
}
