//! `podwire connectivity`: the two ends of the paths that `kubectl podwire connectivity` tries. It
//! starts them in pods of its own, of this image.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use podwire_daemon::output::json;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::{interval, timeout};

use super::{Exit, ToolError, show};

/// What is sent in each direction of a connection, in bytes: packets of the largest size are among
/// it, whatever the MTU.
const PAYLOAD: usize = 64 << 10;
/// The size of a datagram, in bytes.
const DATAGRAM: usize = 1000;
/// How often a target is tried within the limit, if it refuses or a datagram is lost: what has just
/// been made may not be everywhere yet.
const TRIES: u32 = 10;
/// Connections that are served at once.
const MOST_CLIENTS: usize = 64;
/// How long a client has.
const PATIENCE: Duration = Duration::from_secs(10);

/// The flags of `podwire connectivity`.
#[derive(Debug, Args)]
pub struct ConnectivityArgs {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, Subcommand)]
enum End {
    /// Answer connections and datagrams on a port, of both families
    Serve {
        #[arg(long, default_value = "8080")]
        port: u16,
    },
    /// Try targets, and print what came of each as JSON
    Probe {
        /// How many milliseconds each has
        #[arg(long, default_value = "3000")]
        limit: u32,
        /// tcp:ADDRESS:PORT, udp:ADDRESS:PORT or dns:NAME
        #[arg(required = true)]
        targets: Vec<Target>,
    },
}

/// What is tried.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Dns(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected tcp:ADDRESS:PORT, udp:ADDRESS:PORT or dns:NAME".to_owned();
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        match kind {
            "tcp" => rest.parse().map(Self::Tcp).map_err(|_| wrong()),
            "udp" => rest.parse().map(Self::Udp).map_err(|_| wrong()),
            "dns" if !rest.is_empty() => Ok(Self::Dns(rest.to_owned())),
            _ => Err(wrong()),
        }
    }
}

/// What came of a target.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tried {
    is_reached: bool,
    /// Until the connection was made, or the answer was there.
    micros: u64,
    problem: Option<String>,
}

impl ConnectivityArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        match self.end {
            End::Serve { port } => serve(port).await.map_err(ToolError::Runtime)?,
            End::Probe { limit, targets } => {
                let limit = Duration::from_millis(limit.into());
                let tasks = targets.into_iter().map(|it| tokio::spawn(tried(it, limit)));
                let mut all = Vec::new();
                for task in tasks.collect::<Vec<_>>() {
                    let tried = task.await.map_err(io::Error::other);
                    all.push(tried.map_err(ToolError::Runtime)?);
                }
                show(&json(&all).map_err(ToolError::Output)?)?;
            }
        }
        Ok(Exit::Well)
    }
}

async fn serve(port: u16) -> io::Result<()> {
    // Both families: the kernel's bindv6only is off.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await?;
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).await?;
    let echo = async {
        let mut datagram = [0; DATAGRAM];
        loop {
            let (length, from) = socket.recv_from(&mut datagram).await?;
            // Who does not get it asks again.
            let _ = socket.send_to(&datagram[..length], from).await;
        }
    };
    let places = Arc::new(Semaphore::new(MOST_CLIENTS));
    let accept = async {
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            let (client, _) = listener.accept().await?;
            tokio::spawn(async move {
                // A client that is gone needs no answer.
                let _ = timeout(PATIENCE, answer(client)).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        ended = echo => ended,
        ended = accept => ended,
    }
}

/// Sends as much as the client sent.
async fn answer(mut client: TcpStream) -> io::Result<()> {
    let length = drain(&mut client).await?;
    client.write_all(&vec![0; length]).await?;
    client.shutdown().await
}

/// Reads to the end; returns how many bytes there were, of a payload at the most.
async fn drain(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    let mut bytes = Vec::new();
    stream.take(PAYLOAD as u64).read_to_end(&mut bytes).await
}

async fn tried(target: Target, limit: Duration) -> Tried {
    let mut refused = None;
    let mut turns = interval(limit / TRIES);
    let attempts = async {
        loop {
            turns.tick().await;
            match once(&target, limit / TRIES).await {
                Ok(took) => return took,
                Err(error) => refused = Some(error),
            }
        }
    };
    let ended = timeout(limit, attempts).await;
    let (took, problem) = match (ended, refused) {
        (Ok(took), _) => (took, None),
        (Err(_), Some(error)) => (limit, Some(error.to_string())),
        (Err(_), None) => {
            let problem = format!("no answer within {} ms", limit.as_millis());
            (limit, Some(problem))
        }
    };
    Tried {
        is_reached: problem.is_none(),
        micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        problem,
    }
}

async fn once(target: &Target, pause: Duration) -> io::Result<Duration> {
    match target {
        Target::Tcp(to) => exchange(*to).await,
        Target::Udp(to) => echoed(*to, pause).await,
        Target::Dns(name) => {
            let began = Instant::now();
            let mut found = lookup_host((name.as_str(), 0)).await?;
            found.next().ok_or_else(|| io::Error::other("no address"))?;
            Ok(began.elapsed())
        }
    }
}

/// Sends a payload, and gets one; the time is that until the connection was made.
async fn exchange(to: SocketAddr) -> io::Result<Duration> {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to).await?;
    let took = began.elapsed();
    stream.write_all(&vec![0; PAYLOAD]).await?;
    stream.shutdown().await?;
    match drain(&mut stream).await? {
        PAYLOAD => Ok(took),
        length => Err(io::Error::other(format!(
            "{length} of {PAYLOAD} bytes came back"
        ))),
    }
}

async fn echoed(to: SocketAddr, pause: Duration) -> io::Result<Duration> {
    let own = match to {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(own).await?;
    socket.connect(to).await?;
    let mut answer = [0; DATAGRAM];
    let began = Instant::now();
    socket.send(&[0; DATAGRAM]).await?;
    let received = timeout(pause, socket.recv(&mut answer)).await;
    received.map_err(|_| io::Error::other("no datagram came back"))??;
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_others_refused() {
        let tcp = "[fd00::1]:80".parse().unwrap();
        assert_eq!("tcp:[fd00::1]:80".parse(), Ok(Target::Tcp(tcp)));
        assert_eq!("dns:a.b".parse(), Ok(Target::Dns("a.b".to_owned())));
        for wrong in [
            "",
            "tcp:",
            "tcp:fd00::1",
            "dns:",
            "icmp:10.0.0.1:1",
            "10.0.0.1:80",
        ] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
