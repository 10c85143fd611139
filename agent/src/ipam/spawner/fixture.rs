//! A spawner for tests, and programs whose life can be watched.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{Exec, Spawner, SpawnerProcess};

/// More than anything here takes; where it is reached, something hangs.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Set for a process of a test: "supervisor" or "worker".
pub(crate) const AS_SPAWNER: &str = "PODWIRE_TEST_AS_SPAWNER";

/// The plugins that tests bring along.
pub(crate) const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ipam/testdata");

/// Where the spawners of tests may run plugins from.
pub(crate) fn directories() -> Vec<PathBuf> {
    ["/usr/lib/cni", TESTDATA].map(PathBuf::from).to_vec()
}

/// This very test binary, told to run the one test that is a spawner.
pub(crate) fn spawner_command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "ipam::spawner::tests::the_process_behind_these_tests",
    ]);
    command
        .args(["--nocapture", "--test-threads=1"])
        .env(AS_SPAWNER, role);
    command
}

pub(crate) fn start() -> SpawnerProcess {
    Spawner::start_as(spawner_command("supervisor"), directories()).unwrap()
}

pub(crate) fn spawner() -> Spawner {
    start().connect().unwrap()
}

/// The process ids of a process's children, zombies among them.
pub(crate) fn children_of(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread that ends in between takes its file with it.
    tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok())
        .collect()
}

/// Fails instead of hanging.
pub(crate) async fn soon<T>(event: oneshot::Receiver<T>) -> T {
    tokio::time::timeout(LONG, event)
        .await
        .expect("it should have happened long ago")
        .unwrap()
}

/// A plugin that is any shell script.
pub(crate) fn shell(script: &str) -> Exec {
    Exec {
        path: SHELL.to_owned(),
        env: vec![("CNI_ARGS".to_owned(), script.to_owned())],
        stdin: String::new(),
        timeout: LONG,
    }
}

pub(crate) const SHELL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ipam/testdata/shell-ipam");

/// A pipe with a name: its writers tell, by opening and closing it, that they live.
pub(crate) struct Fifo {
    _dir: TempDir,
    path: PathBuf,
}

impl Fifo {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        Self { _dir: dir, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the first writer has written, and whether the last one is gone.
    pub(crate) fn read(&self) -> (oneshot::Receiver<()>, oneshot::Receiver<()>) {
        let ((begun, has_begun), (ended, has_ended)) = (oneshot::channel(), oneshot::channel());
        let path = self.path.clone();
        thread::spawn(move || {
            let mut file = std::fs::File::open(path).unwrap();
            file.read_exact(&mut [0]).unwrap();
            // A test that does not ask is not told.
            let _ = begun.send(());
            file.read_to_end(&mut Vec::new()).unwrap();
            let _ = ended.send(());
        });
        (has_begun, has_ended)
    }

    /// A program that never ends, nor does its child; both hold the pipe.
    pub(crate) fn endless_writers(&self) -> Exec {
        shell(&format!(
            "exec 3>{}; sleep 100 & echo >&3; wait",
            self.path.display()
        ))
    }
}
