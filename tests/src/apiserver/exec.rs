//! `pods/exec` as a kubelet serves it: over a WebSocket, by the protocol v5.channel.k8s.io.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use serde_json::{Value, json};
use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

use super::connection::status;
use super::{Request, Shared};

/// A command in a container, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; empty if none was named.
    pub container: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// What a command wrote, and its exit code; None if a signal ended it.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its exit code.
    pub code: Option<i32>,
}

/// Runs what is asked for, or refuses with a message.
pub(super) type Run = dyn Fn(&Exec) -> Result<Ended, String> + Send + Sync;

/// What to run, once a test has said it.
#[derive(Clone, Default)]
pub(super) struct Kubelet(Option<Arc<Run>>);

impl Kubelet {
    pub(super) fn new(run: Arc<Run>) -> Kubelet {
        Kubelet(Some(run))
    }
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kubelet")
    }
}

impl Exec {
    /// Of a request's path and query.
    pub(super) fn of(request: &Request) -> Option<Exec> {
        let rest = request.path.strip_prefix("/api/v1/namespaces/")?;
        let (namespace, rest) = rest.split_once("/pods/")?;
        let pod = rest.strip_suffix("/exec")?;
        let values = |name: &str| {
            let pairs = request.query.iter().filter(move |pair| pair.0 == name);
            pairs.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        Some(Exec {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: request.parameter("container").unwrap_or_default().into(),
            command: values("command"),
        })
    }
}

/// Runs the command and sends what it wrote, then its exit code; the connection ends with it. The
/// answer is a refusal, if there is nothing to run.
pub(super) fn serve(
    mut stream: impl Read + Write,
    exec: &Exec,
    request: &Request,
    shared: &Shared,
) -> io::Result<Option<Value>> {
    let Kubelet(run) = shared.lock().kubelet.clone();
    let done = match run {
        Some(run) => run(exec),
        None => Err("no kubelet".to_owned()),
    };
    let done = match done {
        Ok(done) => done,
        Err(why) => return Ok(Some(status(500, "InternalError", &why))),
    };
    write!(
        stream,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n",
        derive_accept_key(request.websocket_key.as_bytes())
    )?;
    stream.flush()?;
    let result = match done.code {
        Some(0) => json!({ "metadata": {}, "status": "Success" }),
        code => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code",
            "details": { "causes": [
                { "reason": "ExitCode", "message": code.unwrap_or(137).to_string() },
            ] },
        }),
    };
    let mut socket = WebSocket::from_raw_socket(stream, Role::Server, None);
    for (channel, bytes) in [
        (1, &done.stdout[..]),
        (2, &done.stderr[..]),
        (3, result.to_string().as_bytes()),
    ] {
        // As a kubelet does, which copies from a pipe.
        for part in bytes.chunks(4096) {
            let message: Vec<u8> = std::iter::once(channel)
                .chain(part.iter().copied())
                .collect();
            socket
                .send(Message::binary(message))
                .map_err(io::Error::other)?;
        }
    }
    // Whoever asked has all, and may be gone.
    let _ = socket.close(None);
    while socket.read().is_ok() {}
    Ok(None)
}
