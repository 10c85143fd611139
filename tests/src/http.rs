//! GET over a unix socket, as little of HTTP/1.1 as the agent's read-only pages need.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::failure::{Failure, Step};

/// Fetches `path` and returns status and body. A failure to connect is a [`Failure::System`].
pub(crate) fn get(socket: &Path, path: &str) -> Result<(u16, String), Failure> {
    let mut stream =
        UnixStream::connect(socket).step(|| format!("connect to {}", socket.display()))?;
    let bad = |answer: &str| Failure::Http {
        path: path.into(),
        socket: socket.into(),
        answer: answer.into(),
    };
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .step(|| "set a timeout")?;
    // The agent's metrics page is in OpenMetrics for whoever asks for it.
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: podwire\r\nAccept: application/openmetrics-text, \
         */*\r\nConnection: close\r\n\r\n"
    );
    stream
        .write_all(request.as_bytes())
        .step(|| format!("send GET {path}"))?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .step(|| format!("read the answer to GET {path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| bad(&answer))?;
    if head.to_ascii_lowercase().contains("transfer-encoding") {
        return Err(bad("a chunked body, where one with a length was expected"));
    }
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| bad(&answer))?;
    Ok((status, body.to_owned()))
}
