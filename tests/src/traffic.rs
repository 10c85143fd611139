//! Traffic between places: what proves that a pod is wired.

use std::io::{self, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::Failure;
use crate::failure::{OrFail, Step};
use crate::node::run_in;
use crate::place::Place;

/// How long traffic may stand still.
const LIMIT: Duration = Duration::from_secs(10);

/// Sends `count` echo requests, 10 ms apart, and fails unless each is answered. Returns the output
/// of ping.
pub fn ping(from: &Place, to: IpAddr, count: u32) -> Result<String, Failure> {
    run_in(
        from,
        "ping",
        format!("-n -c {count} -i 0.01 -W 5 -w 10 {to}"),
    )
}

/// Sends echo requests until one is answered: the first through a tunnel is often lost, while its
/// far end is looked for.
pub fn ping_until_answered(from: &Place, to: IpAddr) -> Result<(), Failure> {
    let arguments = ["-n", "-c", "1", "-w", "10", "-i", "0.02", &to.to_string()];
    run_in(from, "ping", arguments).map(drop)
}

/// Sends `bytes` over TCP from one place to an address of the other, which sends them back; fails
/// unless they come back as sent.
pub fn tcp_echo(from: &Place, to: &Place, address: IpAddr, bytes: usize) -> Result<(), Failure> {
    tcp_echo_by(from, to, SocketAddr::new(address, 0), None, bytes)
}

/// The same, to a socket address that leads to the one on which the other place listens: `by` it,
/// or to that itself.
pub fn tcp_echo_by(
    from: &Place,
    to: &Place,
    listening: SocketAddr,
    by: Option<SocketAddr>,
    bytes: usize,
) -> Result<(), Failure> {
    let echo = Echo::new("TCP", by.unwrap_or(listening), bytes);
    let listener = echo.step("listen", to.run(|| TcpListener::bind(listening)))?;
    let listening = echo.step("listen", listener.local_addr())?;
    thread::scope(|scope| {
        let server = scope.spawn(|| serve_echo(&listener));
        let echoed = from.run(|| exchange(by.unwrap_or(listening), &echo.sent));
        if echoed.is_err() {
            // The server may never have been reached: a connection from its own side wakes it.
            let _ = to.run(|| TcpStream::connect_timeout(&listening, LIMIT));
        }
        let served = server
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let received = echo.step("client", echoed)?;
        echo.step("server", served)?;
        echo.compare(&received)
    })
}

/// Sends one UDP datagram of `bytes` to an address of the other place, which sends it back; fails
/// unless it comes back as sent.
pub fn udp_echo(from: &Place, to: &Place, address: IpAddr, bytes: usize) -> Result<(), Failure> {
    udp_echo_by(from, to, SocketAddr::new(address, 0), None, bytes)
}

/// The same, to a socket address that leads to the one on which the other place listens: `by` it,
/// or to that itself.
pub fn udp_echo_by(
    from: &Place,
    to: &Place,
    listening: SocketAddr,
    by: Option<SocketAddr>,
    bytes: usize,
) -> Result<(), Failure> {
    let target = by.unwrap_or(listening);
    let echo = Echo::new("UDP", target, bytes);
    let any: IpAddr = match target.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let server = echo.step("bind", to.run(|| UdpSocket::bind(listening)))?;
    let client = echo.step("bind", from.run(|| UdpSocket::bind((any, 0))))?;
    let target = by.map_or_else(|| server.local_addr(), Ok);
    let target = echo.step("bind", target)?;
    for socket in [&server, &client] {
        echo.step("set a timeout", socket.set_read_timeout(Some(LIMIT)))?;
    }
    // A socket stays in the namespace that it was made in: both ends can be served from here.
    let mut buffer = vec![0; bytes + 1];
    echo.step("client sends", client.send_to(&echo.sent, target))?;
    let (length, source) = echo.step("server receives", server.recv_from(&mut buffer))?;
    echo.step("server sends", server.send_to(&buffer[..length], source))?;
    let length = echo.step("client receives", client.recv(&mut buffer))?;
    echo.compare(&buffer[..length])
}

/// Bytes that are to come back as sent.
struct Echo {
    traffic: String,
    sent: Vec<u8>,
}

impl Echo {
    fn new(protocol: &str, to: SocketAddr, bytes: usize) -> Echo {
        Echo {
            traffic: format!("{protocol} to {to}, {bytes} bytes each way"),
            sent: pattern(bytes),
        }
    }

    fn step<T>(&self, step: &str, done: io::Result<T>) -> Result<T, Failure> {
        done.map_err(|error| self.failed(format!("{step}: {error}")))
    }

    fn compare(&self, received: &[u8]) -> Result<(), Failure> {
        if received == self.sent {
            return Ok(());
        }
        Err(self.failed(format!("{} bytes came back, not as sent", received.len())))
    }

    fn failed(&self, detail: String) -> Failure {
        Failure::Traffic {
            traffic: self.traffic.clone(),
            detail,
        }
    }
}

fn serve_echo(listener: &TcpListener) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut copy = stream.try_clone()?;
    io::copy(&mut copy, &mut stream)?;
    stream.shutdown(Shutdown::Write)
}

fn exchange(server: SocketAddr, sent: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut reader = stream.try_clone()?;
    thread::scope(|scope| {
        let received = scope.spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        });
        stream.write_all(sent)?;
        stream.shutdown(Shutdown::Write)?;
        received
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Bytes that no shift or loss leaves looking the same.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|position| (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

/// Echo requests, five in a second, until it is dropped.
#[derive(Debug)]
pub struct Requests(Child);

impl Requests {
    /// From a place to the address at the end of ping's arguments.
    ///
    /// # Panics
    /// ping can't be started.
    #[track_caller]
    pub fn send(from: &Place, arguments: &str) -> Requests {
        let mut ping = Command::new("ping");
        ping.args(["-i", "0.2"])
            .args(arguments.split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Requests(from.run(|| ping.spawn()).step(|| "start ping").or_fail())
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
