//! `podwire-prober`: asks for an answer on each of its paths, five times a second, and prints when
//! a path is lost and when it is back, for `make test-churn`.
//!
//!     podwire-prober SOURCE PATH=PROTOCOL:ADDRESS:PORT...
//!
//! The protocol is `tcp` (the connection is enough), `http` (an answer's first bytes) or `udp` (the
//! datagram `hostname` is answered, as agnhost's netexec does). A name instead of an address is
//! resolved for each attempt. Each line is a time in milliseconds since 1970, the source, the path,
//! and `begun`, or `lost` with the start of the first attempt that failed, or `back` with the start
//! of the first that succeeded again.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// From one attempt's start to the next one's.
const INTERVAL: Duration = Duration::from_millis(200);
/// Of each step of an attempt. A connection's first packet that is lost comes again after a second.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy)]
enum Protocol {
    Tcp,
    Http,
    Udp,
}

struct Path {
    name: String,
    protocol: Protocol,
    target: String,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(source), paths) = (arguments.next(), arguments.collect::<Vec<_>>()) else {
        eprintln!("podwire-prober SOURCE PATH=PROTOCOL:ADDRESS:PORT...");
        return ExitCode::FAILURE;
    };
    let mut parsed = Vec::new();
    for path in &paths {
        let Some(path) = parse(path) else {
            eprintln!("podwire-prober: {path}: not a path=protocol:address:port");
            return ExitCode::FAILURE;
        };
        parsed.push(path);
    }
    thread::scope(|scope| {
        for path in &parsed {
            scope.spawn(|| watch(&source, path));
        }
    });
    ExitCode::SUCCESS
}

fn parse(text: &str) -> Option<Path> {
    let (name, rest) = text.split_once('=')?;
    let (protocol, target) = rest.split_once(':')?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "http" => Protocol::Http,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    Some(Path {
        name: name.to_owned(),
        protocol,
        target: target.to_owned(),
    })
}

/// Never returns, but for a broken pipe.
fn watch(source: &str, path: &Path) {
    let mut lost = false;
    let mut said = say(now(), source, path, "begun");
    while said.is_ok() {
        let (started, time) = (Instant::now(), now());
        let failed = attempt(path).is_err();
        if failed != lost {
            lost = failed;
            said = say(time, source, path, if lost { "lost" } else { "back" });
        }
        thread::sleep(INTERVAL.saturating_sub(started.elapsed()));
    }
}

fn say(time: u128, source: &str, path: &Path, event: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{time} {source} {} {event}", path.name)?;
    output.flush()
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| it.as_millis())
}

fn attempt(path: &Path) -> io::Result<()> {
    let target = resolve(&path.target)?;
    let mut byte = [0; 64];
    match path.protocol {
        Protocol::Tcp => TcpStream::connect_timeout(&target, PATIENCE).map(drop),
        Protocol::Http => {
            let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n")?;
            match stream.read(&mut byte)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            }
        }
        Protocol::Udp => {
            let any = if target.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let socket = UdpSocket::bind(any)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(target)?;
            socket.send(b"hostname")?;
            socket.recv(&mut byte).map(drop)
        }
    }
}

fn resolve(target: &str) -> io::Result<SocketAddr> {
    let mut addresses = target.to_socket_addrs()?;
    addresses
        .next()
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}
