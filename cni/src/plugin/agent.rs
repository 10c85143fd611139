//! The connection to the agent: one POST, one reply, within the call's deadline.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    self, AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, sockopt::SendTimeout,
};
use nix::sys::time::TimeVal;
use podwire_cni::spec::{Command, ErrorCode, SpecError};
use podwire_cni::wire::Request;
use podwire_cni::wire::http::{self, Head, HttpError};
use serde::de::IgnoredAny;

use crate::deadline::{Deadline, WaitError};

/// How long to wait for an agent that is not running. A stopping agent may take 10 s to finish its
/// operations before the next one starts.
const CONNECT_WINDOW: Duration = Duration::from_secs(15);
/// STATUS has to report a missing agent within its own deadline.
const STATUS_CONNECT_WINDOW: Duration = Duration::from_secs(12);
/// DEL can use the spool.
const DEL_CONNECT_WINDOW: Duration = Duration::from_secs(2);
/// The pause between attempts doubles from the first to the longest. It has to be a pause: a socket
/// that does not exist, or that nobody listens on, offers no event (inotify reports bind(2), not
/// listen(2)).
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The agent's answer.
pub(crate) struct Reply {
    /// Whether the verb was served. If not, the body is an error object.
    pub(crate) served: bool,
    /// The bytes for stdout.
    pub(crate) body: Vec<u8>,
    /// The bytes for stderr.
    pub(crate) stderr: Vec<u8>,
}

/// Why there is no usable answer.
#[derive(Debug, thiserror::Error)]
#[error("podwire agent at {}: {fault}", .socket.display())]
pub(crate) struct AgentError {
    command: Command,
    socket: PathBuf,
    fault: Fault,
}

/// What went wrong with the agent.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the path is too long for a socket")]
    PathTooLong,
    #[error("creating a socket: {}", .0.desc())]
    Socket(Errno),
    #[error("not running: {} when connecting{}; start it with `podwire agent`", .cause.desc(),
        tried(.window))]
    NotThere {
        cause: Errno,
        window: Option<Duration>,
    },
    #[error("busy: its queue of connections was full for {} ms", .0.as_millis())]
    Full(Duration),
    #[error("connecting: {}", .0.desc())]
    Connect(Errno),
    #[error("the connection was lost {when}: {cause}; the agent's log should have the reason")]
    Lost {
        when: &'static str,
        cause: io::Error,
    },
    #[error(
        "it closed the connection after {0} bytes of its reply; its log should have the reason"
    )]
    Closed(usize),
    #[error("no complete reply within {} s ({came} bytes arrived); its log should have the reason",
        .span.as_secs())]
    Expired { span: Duration, came: usize },
    #[error("its reply cannot be used: {0}; is it an agent?")]
    Http(#[from] HttpError),
    #[error("its reply with status {0} has no CNI result in its body; is it an agent?")]
    NotCni(u16),
}

fn tried(window: &Option<Duration>) -> String {
    window
        .map(|window| format!(" for {} ms", window.as_millis()))
        .unwrap_or_default()
}

impl From<AgentError> for SpecError {
    /// All of it is the agent's temporary state: 11, or 50 for STATUS. Only what the configuration
    /// or the node's set-up has to fix has another code.
    fn from(error: AgentError) -> Self {
        let code = match (&error.fault, error.command) {
            (Fault::PathTooLong, _) => ErrorCode::INVALID_CONFIG,
            (_, Command::Status) => ErrorCode::NOT_AVAILABLE,
            (Fault::Socket(_) | Fault::Connect(_), _) => ErrorCode::IO,
            (Fault::Http(_) | Fault::NotCni(_), _) => ErrorCode::DECODE,
            _ => ErrorCode::TRY_AGAIN,
        };
        Self::new(code, error.to_string())
    }
}

impl AgentError {
    /// Whether the request was not served as far as is known, and an agent may still do so.
    pub(crate) fn is_unserved(&self) -> bool {
        matches!(
            self.fault,
            Fault::NotThere { .. }
                | Fault::Full(_)
                | Fault::Lost { .. }
                | Fault::Closed(_)
                | Fault::Expired { .. }
        )
    }
}

/// Sends a request to the agent, and waits for one if needed.
pub(crate) fn serve(
    socket: &Path,
    request: &Request,
    deadline: Deadline,
) -> Result<Reply, AgentError> {
    let stream = connect(socket, request.invocation.command, deadline);
    served(socket, request, deadline, stream)
}

/// Sends a request to the agent if one is running now.
pub(crate) fn serve_if_there(
    socket: &Path,
    request: &Request,
    deadline: Deadline,
) -> Result<Reply, AgentError> {
    let stream = UnixAddr::new(socket)
        .map_err(|_| Fault::PathTooLong)
        .and_then(|address| connect_once(&address, FIRST_PAUSE));
    served(socket, request, deadline, stream)
}

fn served(
    socket: &Path,
    request: &Request,
    deadline: Deadline,
    stream: Result<UnixStream, Fault>,
) -> Result<Reply, AgentError> {
    let reply = stream.and_then(|stream| exchange(stream, request, deadline));
    reply.map_err(|fault| AgentError {
        command: request.invocation.command,
        socket: socket.to_owned(),
        fault,
    })
}

fn exchange(mut stream: UnixStream, request: &Request, deadline: Deadline) -> Result<Reply, Fault> {
    let command = request.invocation.command;
    let (before, after) = request.envelope();
    let config = request.config.get().as_bytes();
    let head = http::post_head(before.len() + config.len() + after.len());
    let sent = send(
        &mut stream,
        [head.as_bytes(), &before, config, after],
        deadline,
    );
    // An agent that refuses a request may answer before it has read all of it; the write fails
    // then, and there is an answer nevertheless.
    match (receive(&mut stream, deadline), sent) {
        (Ok((head, body)), _) => usable(command, head, body),
        (Err(_), Err(cause)) => Err(cause),
        (Err(cause), Ok(())) => Err(cause),
    }
}

fn connect(path: &Path, command: Command, deadline: Deadline) -> Result<UnixStream, Fault> {
    let address = UnixAddr::new(path).map_err(|_| Fault::PathTooLong)?;
    let expired = Fault::Expired {
        span: deadline.span,
        came: 0,
    };
    let left = deadline.left().ok_or(expired)?;
    let span = left.min(match command {
        Command::Status => STATUS_CONNECT_WINDOW,
        Command::Del => DEL_CONNECT_WINDOW,
        _ => CONNECT_WINDOW,
    });
    let window = Deadline::after(span);
    let mut pause = FIRST_PAUSE;
    loop {
        match connect_once(&address, window.left().unwrap_or(FIRST_PAUSE)) {
            Err(Fault::NotThere { cause, .. }) => {
                let Some(left) = window.left() else {
                    let window = Some(span);
                    return Err(Fault::NotThere { cause, window });
                };
                thread::sleep(pause.min(left));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            other => return other,
        }
    }
}

/// std's own connect would wait without a limit for a slot in the queue of an agent that does not
/// accept; the kernel ends the wait after SO_SNDTIMEO (`unix_wait_for_peer`).
fn connect_once(address: &UnixAddr, longest: Duration) -> Result<UnixStream, Fault> {
    let fd = socket::socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(Fault::Socket)?;
    let timeout = TimeVal::new(longest.as_secs() as i64, i64::from(longest.subsec_micros()));
    setsockopt(&fd, SendTimeout, &timeout).map_err(Fault::Socket)?;
    let stream = UnixStream::from(fd);
    let connected = loop {
        match socket::connect(std::os::fd::AsRawFd::as_raw_fd(&stream), address) {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    match connected {
        Ok(()) => {}
        Err(Errno::EAGAIN) => return Err(Fault::Full(longest)),
        Err(cause @ (Errno::ENOENT | Errno::ECONNREFUSED)) => {
            return Err(Fault::NotThere {
                cause,
                window: None,
            });
        }
        Err(errno) => return Err(Fault::Connect(errno)),
    }
    // From here on, poll(2) does the waiting.
    stream.set_nonblocking(true).map_err(|cause| Fault::Lost {
        when: "when it was made",
        cause,
    })?;
    Ok(stream)
}

fn send(stream: &mut UnixStream, parts: [&[u8]; 4], deadline: Deadline) -> Result<(), Fault> {
    let when = "while the request was sent";
    let mut parts = parts.map(IoSlice::new);
    let mut rest = &mut parts[..];
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(stream, PollFlags::POLLOUT, deadline, when, 0)?;
            }
            Err(cause) => return Err(Fault::Lost { when, cause }),
        }
    }
    Ok(())
}

fn receive(stream: &mut UnixStream, deadline: Deadline) -> Result<(Head, Vec<u8>), Fault> {
    let when = "while the reply was awaited";
    let mut reply = Vec::new();
    let mut chunk = [0; 4096];
    let mut head = None;
    loop {
        if head.is_none() {
            head = http::head(&reply)?;
        }
        if let Some(head) = head
            && head.is_whole(&reply)?
        {
            return Ok((head, reply.split_off(head.body_at)));
        }
        wait(stream, PollFlags::POLLIN, deadline, when, reply.len())?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(Fault::Closed(reply.len())),
            Ok(length) => reply.extend_from_slice(&chunk[..length]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(cause) => return Err(Fault::Lost { when, cause }),
        }
    }
}

fn wait(
    stream: &UnixStream,
    event: PollFlags,
    deadline: Deadline,
    when: &'static str,
    came: usize,
) -> Result<(), Fault> {
    deadline.wait(stream, event).map_err(|error| match error {
        WaitError::Expired => Fault::Expired {
            span: deadline.span,
            came,
        },
        WaitError::Poll(errno) => Fault::Lost {
            when,
            cause: errno.into(),
        },
    })
}

/// A runtime must get what it expects, even if something other than an agent listens on the socket.
fn usable(command: Command, head: Head, mut body: Vec<u8>) -> Result<Reply, Fault> {
    let served = head.status == 200;
    let stderr = body.split_off(body.len().saturating_sub(head.stderr_len));
    let good = match (served, body.is_empty()) {
        // Only ADD always prints something.
        (true, true) => command != Command::Add,
        (true, false) => {
            body.trim_ascii_start().starts_with(b"{")
                && serde_json::from_slice::<IgnoredAny>(&body).is_ok()
        }
        (false, _) => SpecError::from_json(&body).is_some(),
    };
    if good {
        Ok(Reply {
            served,
            body,
            stderr,
        })
    } else {
        Err(Fault::NotCni(head.status))
    }
}
