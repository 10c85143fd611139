//! Running a program to its end within a time limit, and what came of it.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::trouble::{Step, Trouble};

/// What a program reads from its standard input.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// An error: a directory can be opened, and read(2) of it fails with EISDIR.
    Unreadable,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(i32),
    Signal(i32),
    /// It, or something that held its output open, had not ended after this time, and was killed.
    Late(Duration),
}

/// How a program ended and what it printed.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs a program from the calling thread, hence in that thread's namespaces.
pub(crate) fn run(mut command: Command, input: Input, limit: Duration) -> Result<Ended, Trouble> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let (stdin, bytes) = match input {
        Input::Bytes(bytes) => (Stdio::piped(), bytes),
        Input::Unreadable => (File::open("/").step(|| "open /")?.into(), Vec::new()),
    };
    command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A group of its own, so that what it started can be killed with it.
    let mut child = command
        .process_group(0)
        .spawn()
        .step(|| format!("start {shown}"))?;
    let group = i32::try_from(child.id()).map(Pid::from_raw);
    if let Some(mut pipe) = child.stdin.take() {
        // A program that does not read all of its input closes the pipe: its own affair.
        thread::spawn(move || pipe.write_all(&bytes));
    }
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    match ended.recv_timeout(limit) {
        Ok(output) => {
            let output = output.step(|| format!("wait for {shown}"))?;
            Ok(Ended {
                end: end(output.status),
                stdout: output.stdout,
                stderr: output.stderr,
            })
        }
        Err(_) => {
            if let Ok(group) = group {
                // It may have ended just now; then there is nothing to kill.
                let _ = killpg(group, Signal::SIGKILL);
            }
            Ok(Ended {
                end: End::Late(limit),
                stdout: Vec::new(),
                stderr: Vec::new(),
            })
        }
    }
}

/// How long a tool of the machine such as `ip` may take.
const TOOL_LIMIT: Duration = Duration::from_secs(20);

/// Runs a tool of the machine and returns its standard output.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String, Trouble> {
    let mut command = Command::new(program);
    command.args(arguments);
    let ended = run(command, Input::Bytes(Vec::new()), TOOL_LIMIT)?;
    if ended.end == End::Exit(0) {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let output = [ended.stdout, ended.stderr].concat();
    Err(Trouble::Program {
        command: format!("{program} {}", arguments.join(" ")),
        end: ended.end.to_string(),
        output: String::from_utf8_lossy(&output).trim().to_owned(),
    })
}

fn end(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, signal) => End::Signal(signal.unwrap_or_default()),
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exited {code}"),
            End::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {number}"),
            },
            End::Late(limit) => write!(f, "did not end within {} s", limit.as_secs()),
        }
    }
}
