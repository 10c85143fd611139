//! GET over a socket, as little of HTTP/1.1 as podwire's pages need; and clients that never ask.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::Place;
use crate::failure::{Failure, OrFail, Step};

/// Longer than any page takes, and shorter than its server waits for a slow client.
const LIMIT: Duration = Duration::from_secs(10);

/// Fetches `path` from a unix socket and returns status and body. A failure to connect is a
/// [`Failure::System`].
pub(crate) fn get(socket: &Path, path: &str) -> Result<(u16, String), Failure> {
    let server = socket.display().to_string();
    let stream = UnixStream::connect(socket).step(|| format!("connect to {server}"))?;
    stream
        .set_read_timeout(Some(LIMIT))
        .step(|| "set a timeout")?;
    fetch(stream, server, path)
}

/// Fetches `path` from an address, as a client in this place, and returns status and body.
pub fn get_from(place: &Place, address: &str, path: &str) -> Result<(u16, String), Failure> {
    place.run(|| {
        let stream = connect(address)?;
        stream
            .set_read_timeout(Some(LIMIT))
            .step(|| "set a timeout")?;
        fetch(stream, address.to_owned(), path)
    })
}

/// This many clients in this place that have connected to an address, and that say nothing or half
/// of a request.
#[track_caller]
pub fn silent_clients(place: &Place, address: &str, count: usize) -> Vec<TcpStream> {
    // Each is a descriptor here too.
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limit.and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    raised.step(|| "raise the limit of descriptors").or_fail();
    let client = |number| {
        let mut stream = connect(address)?;
        if number % 2 == 0 {
            // A server that has closed this one already is a possible answer too.
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nslow: ");
        }
        Ok(stream)
    };
    let all = || (0..count).map(client).collect::<Result<_, Failure>>();
    place.run(all).or_fail()
}

fn connect(address: &str) -> Result<TcpStream, Failure> {
    let step = || format!("connect to {address}");
    let address = address.parse().map_err(std::io::Error::other).step(step)?;
    TcpStream::connect_timeout(&address, LIMIT).step(step)
}

fn fetch(
    mut stream: impl Read + Write,
    server: String,
    path: &str,
) -> Result<(u16, String), Failure> {
    let bad = |answer: &str| Failure::Http {
        path: path.into(),
        server: server.clone(),
        answer: answer.into(),
    };
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
