//! The guard of a moved NIC: a process of its own that moves it back at a deadline, unless the new
//! path was confirmed. It does not end with the process that started it, nor with its terminal.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::moved;
use crate::settings::Places;

/// How long a guard may take until it watches.
const ARMED_LIMIT: Duration = Duration::from_secs(20);
/// What it says then.
pub(crate) const ARMED: &str = "armed";
/// What it is told when it is left alone.
pub(crate) const LEFT: &[u8] = b"\n";
/// Its log, beside the record.
const LOG: &str = "guard.log";

/// Why there is no guard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuardError {
    #[error("start the process that would move the NIC back: {0}")]
    Start(#[source] std::io::Error),
    #[error("the process that would move the NIC back did not begin to watch: {0}")]
    Unarmed(String),
    #[error("the process that would move the NIC back has ended")]
    Ended,
}

/// A guard that watches.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts a guard of the move with this deadline, and waits until it watches. The record is on
    /// disk already.
    pub(crate) async fn start(
        places: &Places,
        until: &str,
        within: Duration,
    ) -> Result<Self, GuardError> {
        let log = moved::file(&places.directory).with_file_name(LOG);
        let log = File::create(log).map_err(GuardError::Start)?;
        let run = places.directory.parent().unwrap_or(Path::new("/"));
        let program = std::env::current_exe().map_err(GuardError::Start)?;
        let mut child = Command::new(program)
            .args(["node", "guard", "--until", until])
            .args(["--within-ms", &within.as_millis().to_string()])
            .arg("--run-dir")
            .arg(run)
            .args(["--ovsdb", &places.ovsdb.to_string()])
            // It must not end where this process does.
            .env_remove("PODWIRE_NODE_FAULT")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(GuardError::Start)?;
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let _ = timeout(ARMED_LIMIT, output.read_line(&mut said)).await;
        }
        if said.trim() == ARMED {
            return Ok(Self(child));
        }
        let _ = child.start_kill();
        let log = moved::file(&places.directory).with_file_name(LOG);
        let said = std::fs::read_to_string(log).unwrap_or_default();
        Err(GuardError::Unarmed(said.trim().to_owned()))
    }

    /// Leaves it alone until its deadline. It acts at once if this process ends without that, and
    /// without a record that says that all is well.
    pub(crate) async fn leave(&mut self) -> Result<(), GuardError> {
        let input = self.0.stdin.as_mut().ok_or(GuardError::Ended)?;
        input.write_all(LEFT).await.map_err(|_| GuardError::Ended)?;
        input.flush().await.map_err(|_| GuardError::Ended)
    }

    /// That it still watches.
    pub(crate) fn check(&mut self) -> Result<(), GuardError> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(GuardError::Ended),
        }
    }
}

/// The time at which a guard acts, as the record has it. It also tells one move from another.
pub(crate) fn until(within: Duration) -> String {
    let until = Timestamp::now().checked_add(within);
    until.map_or_else(|_| String::new(), |until| format!("{until:.9}"))
}
