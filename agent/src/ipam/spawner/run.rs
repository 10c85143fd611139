//! One program, from start to end, in one thread: its input, its output, its time and size limits.
//!
//! The end is that of the process, not of its output: a plugin may leave a child that keeps
//! standard output open for ever. So the exit is an event beside the pipes, and the output is what
//! the pipes contain at that moment.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::wire::Outcome;
use super::{Exec, Exit, OUTPUT_MAX, Output, PATH, is_within};

/// How long to wait for a killed program before replying without its exit: SIGKILL takes effect at
/// once, unless the kernel itself blocks the process.
const DYING: Duration = Duration::from_secs(1);

/// The stack of the thread that waits for the exit, in bytes.
const STACK: usize = 64 << 10;

/// An event of a run beside its pipes, as a byte in its event pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The process exited and can be reaped.
    Exited,
    /// Nobody waits for the reply any more.
    Cancelled,
}

impl Event {
    pub(super) fn send(self, mut notify: &PipeWriter) {
        let byte = match self {
            Self::Exited => b'x',
            Self::Cancelled => b'c',
        };
        // A closed pipe means that the run is over; an open one always has room for two bytes.
        let _ = notify.write_all(&[byte]);
    }

    fn receive(mut events: &PipeReader) -> io::Result<Self> {
        let mut byte = [0];
        events.read_exact(&mut byte)?;
        Ok(if byte == *b"x" {
            Self::Exited
        } else {
            Self::Cancelled
        })
    }
}

/// Runs `exec`, calls `reply` once with the outcome, then reaps.
pub(super) fn run(
    exec: &Exec,
    directories: &[PathBuf],
    events: PipeReader,
    notify: PipeWriter,
    reply: impl FnOnce(Outcome),
) {
    let mut child = match start(exec, directories) {
        Ok(child) => child,
        Err(error) => return reply(Outcome::not_started(&error)),
    };
    thread::scope(|scope| {
        let process =
            Pid::from_raw(i32::try_from(child.id()).expect("a process id is a positive i32"));
        let waiter = thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, move || {
                // WNOWAIT leaves the zombie, so that its pid and process group are not reused until
                // it is reaped below.
                let _ = waitid(
                    Id::Pid(process),
                    WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT,
                );
                Event::Exited.send(&notify);
            });
        let end = match waiter {
            Ok(_) => Conversation::begin(&mut child, exec, &events).and_then(Conversation::hold),
            Err(error) => Err(error),
        };
        let outcome = match end {
            Ok(End::Exited { stdout, stderr }) => match child.wait() {
                Ok(status) => return reply(Outcome::Ended(output(status, &stdout, &stderr))),
                Err(error) => Outcome::Io {
                    reason: format!("waiting for its exit status: {error}"),
                },
            },
            Ok(End::TimedOut { stderr }) => Outcome::TimedOut {
                stderr: lossy(&stderr),
            },
            Ok(End::TooMuch { stream }) => Outcome::TooMuchOutput {
                stream: stream.to_owned(),
            },
            Ok(End::Cancelled) => Outcome::Cancelled,
            Err(error) => Outcome::Io {
                reason: error.to_string(),
            },
        };
        kill(&mut child, process);
        if has_exited(&events) {
            let _ = child.wait();
            return reply(outcome);
        }
        reply(outcome);
        let _ = child.wait();
    });
}

fn start(exec: &Exec, directories: &[PathBuf]) -> io::Result<Child> {
    if !is_within(Path::new(&exec.path), directories) {
        let problem = "it is in no plugin directory";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    let env = exec.env.iter().filter(|(name, _)| is_passed_on(name));
    Command::new(&exec.path)
        .env_clear()
        .envs(env.map(|(name, value)| (name, value)))
        .env("PATH", PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Whether a variable may reach a plugin: not if a dynamic loader, libc or a shell would run or
/// read what it names. The list is that of ld.so(8), "Secure-execution mode", and of bash(1).
fn is_passed_on(name: &str) -> bool {
    const REFUSED: [&str; 16] = [
        "BASH_ENV",
        "ENV",
        "GCONV_PATH",
        "GETCONF_DIR",
        "GLIBC_TUNABLES",
        "HOSTALIASES",
        "IFS",
        "LOCALDOMAIN",
        "LOCPATH",
        "MALLOC_TRACE",
        "NIS_PATH",
        "NLSPATH",
        "PATH",
        "RESOLV_HOST_CONF",
        "RES_OPTIONS",
        "SHELLOPTS",
    ];
    !(REFUSED.contains(&name) || name.starts_with("LD_") || name.starts_with("BASH_FUNC_"))
}

/// Kills the process and its group.
fn kill(child: &mut Child, process: Pid) {
    // It is fine if the group is gone.
    let _ = killpg(process, Signal::SIGKILL);
    let _ = child.kill();
}

/// Whether a killed process exits within [`DYING`].
fn has_exited(events: &PipeReader) -> bool {
    let deadline = Instant::now() + DYING;
    loop {
        let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout_until(deadline)) {
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return false,
            Ok(_) => match Event::receive(events) {
                Ok(Event::Cancelled) => {}
                Ok(Event::Exited) => return true,
                Err(_) => return false,
            },
        }
    }
}

fn output(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Output {
    let exit = match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    };
    Output {
        exit,
        stdout: lossy(stdout),
        stderr: lossy(stderr),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// How the exchange with a program ended.
enum End {
    Exited { stdout: Vec<u8>, stderr: Vec<u8> },
    TimedOut { stderr: Vec<u8> },
    TooMuch { stream: &'static str },
    Cancelled,
}

/// The pipes from and to a program, and the data that went through them.
struct Conversation<'a> {
    deadline: Instant,
    events: &'a PipeReader,
    stdin: Option<ChildStdin>,
    unsent: &'a [u8],
    stdout: Listener<ChildStdout>,
    stderr: Listener<ChildStderr>,
}

impl<'a> Conversation<'a> {
    fn begin(child: &mut Child, exec: &'a Exec, events: &'a PipeReader) -> io::Result<Self> {
        let missing = || io::Error::other("a requested pipe is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        for fd in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            // Only the spawner's ends: each end of a pipe has its own flags.
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let now = Instant::now();
        Ok(Self {
            // A time limit too long for the clock is none in practice.
            deadline: now
                .checked_add(exec.timeout)
                .unwrap_or(now + Duration::from_secs(u32::MAX.into())),
            events,
            stdin: Some(stdin),
            unsent: exec.stdin.as_bytes(),
            stdout: Listener::new("output", stdout),
            stderr: Listener::new("error", stderr),
        })
    }

    fn hold(mut self) -> io::Result<End> {
        loop {
            let ready = self.wait()?;
            let event = if ready.events {
                Some(Event::receive(self.events)?)
            } else {
                None
            };
            if event == Some(Event::Cancelled) {
                return Ok(End::Cancelled);
            }
            let exited = event == Some(Event::Exited);
            if ready.stdin {
                self.feed();
            }
            // After the exit, the pipes contain the rest of the process's own output.
            self.stdout.listen(ready.stdout || exited)?;
            self.stderr.listen(ready.stderr || exited)?;
            if let Some(stream) = self.too_much() {
                return Ok(End::TooMuch { stream });
            }
            if exited {
                return Ok(End::Exited {
                    stdout: self.stdout.output,
                    stderr: self.stderr.output,
                });
            }
            if Instant::now() >= self.deadline {
                return Ok(End::TimedOut {
                    stderr: self.stderr.output,
                });
            }
        }
    }

    fn too_much(&self) -> Option<&'static str> {
        self.stdout.too_much().or(self.stderr.too_much())
    }

    /// Blocks until a pipe is ready or the time is up.
    fn wait<'b>(&'b self) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(self.events.as_fd(), PollFlags::POLLIN)];
        let mut watch = |pipe: Option<BorrowedFd<'b>>, flags| {
            let fd = pipe?;
            fds.push(PollFd::new(fd, flags));
            Some(fds.len() - 1)
        };
        let stdin = watch(self.stdin.as_ref().map(AsFd::as_fd), PollFlags::POLLOUT);
        let stdout = watch(
            self.stdout.pipe.as_ref().map(AsFd::as_fd),
            PollFlags::POLLIN,
        );
        let stderr = watch(
            self.stderr.pipe.as_ref().map(AsFd::as_fd),
            PollFlags::POLLIN,
        );
        match poll(&mut fds, timeout_until(self.deadline)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |place: Option<usize>| place.is_some_and(|at| fds[at].any().unwrap_or(true));
        Ok(Ready {
            events: is_ready(Some(0)),
            stdin: is_ready(stdin),
            stdout: is_ready(stdout),
            stderr: is_ready(stderr),
        })
    }

    /// Writes what fits into the pipe. A program need not read its standard input.
    fn feed(&mut self) {
        let Some(stdin) = &mut self.stdin else {
            return;
        };
        match stdin.write(self.unsent) {
            Ok(written) => self.unsent = &self.unsent[written..],
            Err(error) if is_momentary(&error) => {}
            Err(_) => self.unsent = &[],
        }
        if self.unsent.is_empty() {
            self.stdin = None;
        }
    }
}

/// The descriptors that can be used without blocking.
struct Ready {
    events: bool,
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

/// One stream of a program's output.
struct Listener<R> {
    stream: &'static str,
    /// `None` once all writers have closed it.
    pipe: Option<R>,
    output: Vec<u8>,
}

impl<R: Read> Listener<R> {
    fn new(stream: &'static str, pipe: R) -> Self {
        Self {
            stream,
            pipe: Some(pipe),
            output: Vec::new(),
        }
    }

    /// Reads what is available, at most slightly more than the limit.
    fn listen(&mut self, ready: bool) -> io::Result<()> {
        let Some(pipe) = self.pipe.as_mut().filter(|_| ready) else {
            return Ok(());
        };
        let room = (OUTPUT_MAX + 1).saturating_sub(self.output.len());
        match pipe.take(room as u64).read_to_end(&mut self.output) {
            Ok(_) => self.pipe = None,
            Err(error) if is_momentary(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn too_much(&self) -> Option<&'static str> {
        (self.output.len() > OUTPUT_MAX).then_some(self.stream)
    }
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Rounded up, so that the deadline has passed when poll(2) says so.
fn timeout_until(deadline: Instant) -> PollTimeout {
    let left = deadline.saturating_duration_since(Instant::now());
    let millis = left.as_millis() + u128::from(!left.is_zero());
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}
