//! The spawner's processes.

use std::collections::HashMap;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::run::{self, Event};
use super::wire::{self, Inbox, Outcome, Reply, Request};

/// The stack in bytes of a thread that runs a program; it needs a few poll entries and the start of
/// a process.
const STACK: usize = 128 << 10;

/// The supervisor's main function: has a worker serve the agent at the other end of standard input,
/// and starts another one if a signal ends it.
///
/// # Errors
/// Standard input is not a socket, a worker can't be started, or one exited with an error, as the
/// next one would too.
pub fn supervise(mut worker: Command) -> io::Result<()> {
    let mut stream = agent()?;
    loop {
        let its_end = OwnedFd::from(stream.try_clone()?);
        let status = worker.stdin(Stdio::from(its_end)).spawn()?.wait()?;
        match status.signal() {
            Some(_) => restarted(&mut stream, status)?,
            None if status.success() => return Ok(()),
            None => return Err(io::Error::other(format!("the worker ended with {status}"))),
        }
    }
}

fn restarted(stream: &mut UnixStream, status: ExitStatus) -> io::Result<()> {
    let ended = status.to_string();
    wire::write(stream, &Reply::Restarted { ended })
}

/// The worker's main function: serves the agent at the other end of standard input until that end
/// closes. Runs plugins in these directories only.
///
/// # Errors
/// Standard input is not a socket, or something other than a request arrived.
pub fn main_loop(directories: &[PathBuf]) -> io::Result<()> {
    serve(&agent()?, directories)
}

/// The socket that the agent passed as standard input.
fn agent() -> io::Result<UnixStream> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    stream.peer_addr().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("the spawner is started by the agent, over a socket: {error}"),
        )
    })?;
    Ok(stream)
}

/// Serves until the other end closes; then kills and reaps what still runs, and returns.
pub(super) fn serve(stream: &UnixStream, directories: &[PathBuf]) -> io::Result<()> {
    let replies = Replies(Mutex::new(stream));
    let running = Running::default();
    thread::scope(|scope| {
        let (mut requests, mut inbox) = (stream, Inbox::default());
        let end = loop {
            match inbox.read(&mut requests) {
                Ok(Some(Request::Run { id, exec })) => {
                    let started = running.enter(id).and_then(|(events, notify)| {
                        let (replies, running) = (&replies, &running);
                        thread::Builder::new()
                            .stack_size(STACK)
                            .spawn_scoped(scope, move || {
                                run::run(&exec, directories, events, notify, |outcome| {
                                    replies.send(id, outcome)
                                });
                                running.leave(id);
                            })
                    });
                    if let Err(error) = started {
                        running.leave(id);
                        replies.send(id, Outcome::not_started(&error));
                    }
                }
                Ok(Some(Request::Cancel { id })) => running.cancel(id),
                Ok(None) => break Ok(()),
                // The same, if the agent had unread replies (unix(7)).
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        running.cancel_all();
        end
    })
}

struct Replies<'a>(Mutex<&'a UnixStream>);

impl Replies<'_> {
    fn send(&self, id: u64, outcome: Outcome) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // That the agent is gone is noticed where requests are read.
        let _ = wire::write(&mut *stream, &Reply::Ran { id, outcome });
    }
}

/// Channels to the runs in progress.
#[derive(Default)]
struct Running(Mutex<HashMap<u64, PipeWriter>>);

impl Running {
    /// Registered before the run begins, so that a cancellation can't come too early.
    fn enter(&self, id: u64) -> io::Result<(PipeReader, PipeWriter)> {
        let (events, notify) = io::pipe()?;
        self.lock().insert(id, notify.try_clone()?);
        Ok((events, notify))
    }

    fn leave(&self, id: u64) {
        self.lock().remove(&id);
    }

    fn cancel(&self, id: u64) {
        if let Some(notify) = self.lock().get(&id) {
            Event::Cancelled.send(notify);
        }
    }

    fn cancel_all(&self) {
        for notify in self.lock().values() {
            Event::Cancelled.send(notify);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, PipeWriter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
