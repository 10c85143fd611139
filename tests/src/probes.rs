//! Datagrams without a pause while something is changed under them: how many were not answered.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Step};
use crate::place::Place;

/// The time between an answer and the next datagram.
const PACE: Duration = Duration::from_millis(15);
/// How many ports the datagrams to one address come from, one after the other: a port is used again
/// when its connection is forgotten.
pub const PORTS: u16 = 3900;
/// After this time a datagram is lost. Longer than a busy machine delays one.
const LIMIT: Duration = Duration::from_secs(3);

/// A UDP server that sends back what it receives. Dropping it ends it.
#[derive(Debug)]
pub struct EchoServer {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// At an address of a place.
    ///
    /// # Errors
    /// The address can't be bound.
    pub fn start(place: &Place, at: SocketAddr) -> Result<Self, Failure> {
        let socket = place.run(|| UdpSocket::bind(at));
        let socket = socket.step(|| format!("bind {at}"))?;
        let limit = Some(Duration::from_millis(100));
        socket.set_read_timeout(limit).step(|| "set a timeout")?;
        let ends = Arc::<AtomicBool>::default();
        let until = ends.clone();
        let thread = thread::spawn(move || {
            let mut bytes = [0; 64];
            while !until.load(Ordering::Relaxed) {
                if let Ok((length, peer)) = socket.recv_from(&mut bytes) {
                    let _ = socket.send_to(&bytes[..length], peer);
                }
            }
        });
        let thread = Some(thread);
        Ok(Self { ends, thread })
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Datagrams to one address, each from a port of its own and therefore a connection of its own,
/// 15 ms after the answer before. Dropping it ends it.
#[derive(Debug)]
pub struct Probes {
    name: String,
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    /// When datagrams were sent that nobody answered, since the start.
    lost: Arc<Mutex<Vec<Duration>>>,
    thread: Option<JoinHandle<()>>,
}

impl Probes {
    /// From a place to an address that leads to an [`EchoServer`], from [`PORTS`] ports from this
    /// one on. No others of this place may have them: where two addresses lead to one server, two
    /// connections from one port would be the same, and Open vSwitch 3.1's userspace datapath ends
    /// by an assertion when it translates such (lib/conntrack.c, conn_update_state).
    pub fn start(name: &str, from: &Place, to: SocketAddr, first_port: u16) -> Self {
        let mut probes = Self {
            name: format!("{name} ({to})"),
            ends: Arc::default(),
            answered: Arc::default(),
            lost: Arc::default(),
            thread: None,
        };
        let from = from.clone();
        let (ends, answered, lost) = (
            probes.ends.clone(),
            probes.answered.clone(),
            probes.lost.clone(),
        );
        let thread = thread::spawn(move || {
            let start = Instant::now();
            from.run(|| {
                for offset in (0..PORTS).cycle() {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    let sent = start.elapsed();
                    match is_answered(to, first_port + offset) {
                        true => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        false => lost
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(sent),
                    }
                    thread::sleep(PACE);
                }
            });
        });
        probes.thread = Some(thread);
        probes
    }

    /// When datagrams were sent that nobody answered, since the start.
    pub fn lost(&self) -> Vec<Duration> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone()
    }

    /// How many were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until 50 more of each were answered, and gives how many were answered in all.
///
/// # Errors
/// One was not answered since the start or since they settled, or they stand still.
pub fn all_answered(all: &[Probes]) -> Result<u64, Failure> {
    let before: Vec<u64> = all.iter().map(Probes::answered).collect();
    let start = Instant::now();
    loop {
        let mut has_enough = true;
        for (probes, before) in all.iter().zip(&before) {
            let (answered, lost) = (probes.answered(), probes.lost());
            let seen = format!("{answered} answered, lost at {lost:?} since the start");
            if !lost.is_empty() {
                return Err(Failure::Traffic {
                    traffic: probes.name.clone(),
                    detail: seen,
                });
            }
            if start.elapsed() > 10 * LIMIT {
                return Err(Failure::Deadline {
                    awaited: format!("50 answers: {}", probes.name),
                    waited: start.elapsed(),
                    seen,
                });
            }
            has_enough &= answered >= before + 50;
        }
        if has_enough {
            return Ok(all.iter().map(Probes::answered).sum());
        }
        thread::sleep(PACE);
    }
}

/// Waits until 50 of each were answered and none was lost meanwhile, and forgets what was lost
/// before: the first ones of a path wait for neighbours and flows, also those of other paths. Gives
/// how many were lost.
///
/// # Errors
/// They are lost again and again.
pub fn settle(all: &[Probes]) -> Result<usize, Failure> {
    let (mut last, mut count) = (Ok(0), 0);
    for _ in 0..10 {
        for probes in all {
            let mut lost = probes.lost.lock().unwrap_or_else(PoisonError::into_inner);
            count += lost.len();
            lost.clear();
        }
        last = all_answered(all);
        if last.is_ok() {
            break;
        }
    }
    last.map(|_| count)
}

/// Sends datagrams, from this port and the next ones, until one is answered: the first wait for
/// neighbours and flows.
///
/// # Errors
/// None of ten is.
pub fn until_answered(from: &Place, to: SocketAddr, first_port: u16) -> Result<(), Failure> {
    let answered = |port| from.run(|| is_answered(to, port));
    if (first_port..first_port + 10).any(answered) {
        return Ok(());
    }
    Err(Failure::Traffic {
        traffic: format!("UDP to {to}"),
        detail: "no datagram of ten was answered".to_owned(),
    })
}

/// Whether the address sends back what is sent from this port.
fn is_answered(to: SocketAddr, port: u16) -> bool {
    let any: IpAddr = match to.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let asked = || -> std::io::Result<bool> {
        let socket = UdpSocket::bind((any, port))?;
        // What comes from another address is no answer.
        socket.connect(to)?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.send(&port.to_be_bytes())?;
        let mut bytes = [0; 2];
        let length = socket.recv(&mut bytes)?;
        Ok(bytes[..length] == port.to_be_bytes())
    };
    asked().unwrap_or(false)
}
