//! Stdout and the exit code: one JSON object or nothing, whatever happens.

use std::ffi::c_int;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::process;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd;
use podwire_cni::spec::{CniVersion, ErrorCode, SpecError};

use crate::deadline::{Deadline, WaitError};

/// How long a runtime may leave a full pipe unread. Counted from the first byte printed, because an
/// error is printed after the call's own deadline.
const OUTPUT_DEADLINE: Duration = Duration::from_secs(5);
/// Time limit for writing to stderr: nobody's network depends on it.
const REMARK_DEADLINE: Duration = Duration::from_millis(500);
/// A writable pipe accepts this much without blocking (PIPE_BUF, pipe(7)).
const PIPE_BUF: usize = 4096;

/// The exit code of a verb that was served.
pub(crate) const SUCCESS: c_int = 0;
/// The exit code with an error object.
pub(crate) const FAILURE: c_int = 1;

/// Prints a reply. Succeeds only if the verb was served and the runtime received the answer.
pub(crate) fn reply(bytes: &[u8], served: bool) -> c_int {
    match print(&io::stdout(), bytes, OUTPUT_DEADLINE) {
        Ok(()) if served => SUCCESS,
        Ok(()) => FAILURE,
        Err(errno) => {
            complain(format_args!(
                "the answer could not be written to stdout: {}",
                errno.desc()
            ));
            FAILURE
        }
    }
}

/// Passes on what an IPAM plugin wrote to standard error, which would be the plugin's had it
/// started it. A runtime that does not read it loses it.
pub(crate) fn remark(bytes: &[u8]) {
    let _unread = print(&io::stderr(), bytes, REMARK_DEADLINE);
}

/// Prints an error object; the result is [`FAILURE`].
pub(crate) fn failure(error: &SpecError, version: CniVersion) -> c_int {
    let printed = print(
        &io::stdout(),
        error.to_json(version).as_bytes(),
        OUTPUT_DEADLINE,
    );
    if let Err(errno) = printed {
        complain(format_args!(
            "{error}; this could not be written to stdout: {}",
            errno.desc()
        ));
    }
    FAILURE
}

/// Makes a panic end like any error: a runtime reads stdout, not a core dump.
pub(crate) fn report_panics() {
    panic::set_hook(Box::new(|panic| {
        failure(&panic_error(panic), CniVersion::LATEST);
        process::exit(FAILURE);
    }));
}

/// A write to a runtime or agent that has gone must fail and not kill the process.
pub(crate) fn block_sigpipe() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGPIPE);
    signals
        .thread_block()
        .expect("pthread_sigmask refuses only a bad first argument");
}

/// Whether there is a stdout at all.
pub(crate) fn is_open() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let failed = poll(&mut polled, PollTimeout::ZERO).is_err();
    let [stdout] = polled;
    !failed
        && !stdout
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLNVAL))
}

fn panic_error(panic: &PanicHookInfo<'_>) -> SpecError {
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let what = panic.payload_as_str().unwrap_or("no message");
    SpecError::new(
        ErrorCode::INTERNAL,
        format!("podwire-cni ended by a bug of its own at {place}"),
    )
    .with_details(what)
}

fn print(to: &impl AsFd, bytes: &[u8], span: Duration) -> Result<(), Errno> {
    let deadline = Deadline::after(span);
    let mut rest = bytes;
    while !rest.is_empty() {
        deadline
            .wait(to, PollFlags::POLLOUT)
            .map_err(|error| match error {
                WaitError::Expired => Errno::ETIMEDOUT,
                WaitError::Poll(errno) => errno,
            })?;
        match unistd::write(to, &rest[..rest.len().min(PIPE_BUF)]) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The last resort. Unlike `eprintln!`, it does not panic if stderr is gone too.
fn complain(what: fmt::Arguments<'_>) {
    let _nobody_left_to_tell = writeln!(io::stderr(), "podwire-cni: {what}");
}

#[cfg(test)]
mod tests;
