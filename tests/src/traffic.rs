//! Traffic between places: what proves that a pod is wired.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::Failure;
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
        &[
            "-n",
            "-c",
            &count.to_string(),
            "-i",
            "0.01",
            "-W",
            "5",
            "-w",
            "10",
            &to.to_string(),
        ],
    )
}

/// Sends echo requests until one is answered: the first through a tunnel is often lost, while its
/// far end is looked for.
pub fn ping_until_answered(from: &Place, to: IpAddr) -> Result<(), Failure> {
    let arguments = ["-n", "-c", "1", "-w", "10", "-i", "0.02", &to.to_string()];
    run_in(from, "ping", &arguments).map(drop)
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
    let traffic = format!("TCP to {}, {bytes} bytes each way", by.unwrap_or(listening));
    let failed = |end: &str, error: std::io::Error| Failure::Traffic {
        traffic: traffic.clone(),
        detail: format!("{end}: {error}"),
    };
    let listener = to
        .run(|| TcpListener::bind(listening))
        .map_err(|e| failed("listen", e))?;
    let listening = listener.local_addr().map_err(|e| failed("listen", e))?;
    let sent = pattern(bytes);
    thread::scope(|scope| {
        let server = scope.spawn(|| serve_echo(&listener));
        let echoed = from.run(|| exchange(by.unwrap_or(listening), &sent));
        if echoed.is_err() {
            // The server may never have been reached: a connection from its own side wakes it.
            let _ = to.run(|| TcpStream::connect_timeout(&listening, LIMIT));
        }
        let served = server
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let received = echoed.map_err(|e| failed("client", e))?;
        served.map_err(|e| failed("server", e))?;
        if received == sent {
            Ok(())
        } else {
            let detail = format!("{} bytes came back, not as sent", received.len());
            Err(Failure::Traffic {
                traffic: traffic.clone(),
                detail,
            })
        }
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
    let traffic = format!("UDP to {}, {bytes} bytes each way", by.unwrap_or(listening));
    let failed = |end: &str, error: std::io::Error| Failure::Traffic {
        traffic: traffic.clone(),
        detail: format!("{end}: {error}"),
    };
    let server = to
        .run(|| UdpSocket::bind(listening))
        .map_err(|e| failed("bind", e))?;
    let any = if by.unwrap_or(listening).is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let client = from
        .run(|| UdpSocket::bind(any))
        .map_err(|e| failed("bind", e))?;
    let target = match by {
        Some(by) => by,
        None => server.local_addr().map_err(|e| failed("bind", e))?,
    };
    for socket in [&server, &client] {
        socket
            .set_read_timeout(Some(LIMIT))
            .map_err(|e| failed("set a timeout", e))?;
    }
    let sent = pattern(bytes);
    // A socket stays in the namespace that it was made in: both ends can be served from here.
    let mut buffer = vec![0; bytes + 1];
    client
        .send_to(&sent, target)
        .map_err(|e| failed("client sends", e))?;
    let (length, source) = server
        .recv_from(&mut buffer)
        .map_err(|e| failed("server receives", e))?;
    server
        .send_to(&buffer[..length], source)
        .map_err(|e| failed("server sends", e))?;
    let length = client
        .recv(&mut buffer)
        .map_err(|e| failed("client receives", e))?;
    if buffer[..length] == sent {
        Ok(())
    } else {
        Err(Failure::Traffic {
            traffic,
            detail: format!("{length} bytes came back, not as sent"),
        })
    }
}

fn serve_echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut copy = stream.try_clone()?;
    std::io::copy(&mut copy, &mut stream)?;
    stream.shutdown(Shutdown::Write)
}

fn exchange(server: SocketAddr, sent: &[u8]) -> std::io::Result<Vec<u8>> {
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
