//! Running programs: to their end within a deadline, or as daemons that end with the test.

use std::fs::File;
use std::io::{PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::failure::{Failure, OrFail, Step};
use crate::place::Keeper;

/// How a program ended and what it printed.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// From just before the fork until it was reaped.
    pub duration: Duration,
}

/// Runs a program from the calling thread, hence in that thread's namespaces, with `stdin` as its
/// input, and kills it when it takes longer than `limit`.
pub fn finish(mut command: Command, stdin: &[u8], limit: Duration) -> Result<Finished, Failure> {
    let shown = show(&command);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = command.spawn().step(|| format!("start `{shown}`"))?;
    let pid = child.id();
    let input = child.stdin.take();
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            // A program that does not read all of its input closes the pipe: its own affair.
            input.map(|mut pipe| pipe.write_all(stdin))
        });
        scope.spawn(move || done.send((child.wait_with_output(), started.elapsed())));
        match ended.recv_timeout(limit) {
            Ok((output, duration)) => {
                let output = output.step(|| format!("wait for `{shown}`"))?;
                Ok(Finished {
                    status: output.status,
                    stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                    stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
                    duration,
                })
            }
            Err(_) => {
                // The other thread reaps it only after this signal has ended it.
                let _ = kill(pid_of(pid), Signal::SIGKILL);
                Err(Failure::Deadline {
                    awaited: format!("the end of `{shown}`"),
                    waited: limit,
                    seen: "it ran on".into(),
                })
            }
        }
    })
}

impl Finished {
    /// That it ended with this exit code, and printed all of these words on its two streams.
    #[track_caller]
    pub fn assert_says(&self, code: Option<i32>, words: &[&str]) {
        let said = format!("{}{}", self.stdout, self.stderr);
        assert_eq!(self.status.code(), code, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in:\n{said}");
        }
    }

    /// The standard output of a program that must have succeeded.
    #[track_caller]
    pub fn success(self, command: &str) -> String {
        self.output(command).or_fail()
    }

    /// As [`Finished::success`], for whom a failure may be right.
    pub(crate) fn output(self, command: &str) -> Result<String, Failure> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let output = format!("{}{}", self.stdout, self.stderr);
        Err(Failure::Exit {
            command: command.into(),
            status: self.status,
            output,
        })
    }
}

/// A long-running program of a node. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    pid: u32,
    log: PathBuf,
    ended: Arc<Ended>,
    hang_up: PipeReader,
}

#[derive(Debug, Default)]
struct Ended {
    status: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Daemon {
    /// Starts `command`, both output streams appended to the file `log`.
    pub(crate) fn start(keeper: &Keeper, command: &Command, log: &Path) -> Result<Daemon, Failure> {
        let name = Path::new(command.get_program())
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .step(|| format!("open {}", log.display()))?;
        let errors = output.try_clone().step(|| "duplicate a descriptor")?;
        let mut bound = bound_to_parent(command);
        let (variable, value) = keeper.mark();
        bound.env(variable, value);
        bound.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = keeper.spawn(bound).step(|| format!("start {name}"))?;
        let (hang_up, held) = std::io::pipe().step(|| "make a pipe")?;
        let ended = Arc::new(Ended::default());
        let daemon = Daemon {
            name,
            pid: child.id(),
            log: log.into(),
            ended: ended.clone(),
            hang_up,
        };
        thread::Builder::new()
            .name(format!("wait-{}", daemon.name))
            .spawn(move || {
                reap(child, &ended);
                drop(held);
            })
            .step(|| "start a waiting thread")?;
        Ok(daemon)
    }

    /// Its process id, for as long as it runs.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The file that holds what it printed.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        *self
            .ended
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor that hangs up when the process ends.
    pub(crate) fn end(&self) -> BorrowedFd<'_> {
        self.hang_up.as_fd()
    }

    /// Sends a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        // While the lock is held and no status is stored the process is not reaped, so its id
        // can't have gone to another one.
        let status = self
            .ended
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *status {
            Some(_) => Ok(()),
            None => {
                kill(pid_of(self.pid), signal).step(|| format!("send {signal} to {}", self.name))
            }
        }
    }

    /// Sends `signal` and waits for the end.
    pub fn end_by(&self, signal: Signal, limit: Duration) -> Result<ExitStatus, Failure> {
        self.signal(signal)?;
        self.await_end_after(&format!("the end of {} after {signal}", self.name), limit)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It runs on.
    pub fn await_end(&self, limit: Duration) -> Result<ExitStatus, Failure> {
        self.await_end_after(&format!("the end of {}", self.name), limit)
    }

    fn await_end_after(&self, awaited: &str, limit: Duration) -> Result<ExitStatus, Failure> {
        let status = self
            .ended
            .status
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (status, _) = self
            .ended
            .changed
            .wait_timeout_while(status, limit, |status| status.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        status.ok_or_else(|| Failure::Deadline {
            awaited: awaited.into(),
            waited: limit,
            seen: "it ran on".into(),
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL can't be refused. A process that survives it is stuck in the kernel, and goes
        // with the keeper.
        let _ = self.end_by(Signal::SIGKILL, Duration::from_secs(10));
    }
}

/// The same program, killed when the thread that spawns it ends; its process id is the spawned one.
///
/// setpriv(1) sets PR_SET_PDEATHSIG, which says nothing of a parent that ended before: so the shell
/// then looks whose child it is by now, and execs the program only as this process's own.
pub(crate) fn bound_to_parent(command: &Command) -> Command {
    let mut bound = Command::new("setpriv");
    let parent = std::process::id().to_string();
    bound.args([
        "--pdeathsig",
        "KILL",
        "--",
        "sh",
        "-c",
        r#"[ "$PPID" = "$0" ] && exec "$@""#,
        &parent,
    ]);
    bound.arg(command.get_program()).args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(variable, value),
            None => bound.env_remove(variable),
        };
    }
    bound
}

/// A process of the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its name, as in /proc/PID/comm.
    pub name: String,
    /// Its id.
    pub pid: i32,
}

/// All running processes that were started with `variable` (`NAME=value`) in their environment, by
/// themselves or by an ancestor. Reading another process's environment takes root.
pub fn with_environment(variable: &str) -> Result<Vec<Process>, Failure> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc").step(|| "list /proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // Processes that end meanwhile have no such file.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else {
            continue;
        };
        if environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable.as_bytes())
        {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            processes.push(Process {
                name: name.trim_end().to_owned(),
                pid,
            });
        }
    }
    processes.sort();
    Ok(processes)
}

/// Waits for the child, and stores its status in the same moment as its id becomes free.
fn reap(mut child: Child, ended: &Ended) {
    let seen = waitid(
        Id::Pid(pid_of(child.id())),
        WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT,
    );
    let mut status = ended.status.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.is_ok() {
        *status = child.wait().ok();
    }
    ended.changed.notify_all();
}

fn pid_of(id: u32) -> Pid {
    // Linux process ids are at most 2^22 (PID_MAX_LIMIT).
    Pid::from_raw(i32::try_from(id).unwrap_or(i32::MAX))
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The only child of a process of one thread.
///
/// # Panics
/// When there is another number of them.
#[track_caller]
pub fn child_of(parent: u32) -> u32 {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(&path).unwrap_or_default();
    match children.trim().parse() {
        Ok(child) => child,
        Err(_) => panic!("the children of process {parent} are {children:?}, and not one"),
    }
}
