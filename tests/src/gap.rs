//! The gaps of a TCP stream: how long a receiver waited for the next byte, while something happened
//! to the path.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Step};
use crate::place::Place;

/// The time between two bytes.
const PACE: Duration = Duration::from_millis(1);

/// A connection over which a byte goes each millisecond. Dropping it ends it.
#[derive(Debug)]
pub struct Stream {
    ends: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    /// The longest gap since it was last taken, in microseconds.
    longest: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// From a listener at this address to a client elsewhere.
    pub fn start(listener: &Place, client: &Place, at: SocketAddr) -> Result<Self, Failure> {
        let listening = listener.run(|| TcpListener::bind(at));
        let listening = listening.step(|| format!("listen on {at}"))?;
        let reader = client.run(|| TcpStream::connect(at));
        let mut reader = reader.step(|| format!("connect to {at}"))?;
        let (mut writer, _) = listening.accept().step(|| "accept a connection")?;
        writer.set_nodelay(true).step(|| "set TCP_NODELAY")?;
        let mut stream = Self {
            ends: Arc::default(),
            received: Arc::default(),
            longest: Arc::default(),
            threads: Vec::new(),
        };
        let ends = stream.ends.clone();
        let sends = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) && writer.write_all(b".").is_ok() {
                thread::sleep(PACE);
            }
        });
        let (received, longest) = (stream.received.clone(), stream.longest.clone());
        let receives = thread::spawn(move || {
            let mut last = Instant::now();
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                let gap = u64::try_from(last.elapsed().as_micros()).unwrap_or(u64::MAX);
                last = Instant::now();
                longest.fetch_max(gap, Ordering::Relaxed);
                received.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        stream.threads.extend([sends, receives]);
        Ok(stream)
    }

    /// The longest gap since the last call; it waits for bytes that were sent after it.
    pub fn longest(&self) -> Result<Duration, Failure> {
        let before = self.received.load(Ordering::Relaxed);
        let until = Instant::now() + Duration::from_secs(20);
        while self.received.load(Ordering::Relaxed) < before + 50 {
            if Instant::now() > until || self.threads.iter().any(JoinHandle::is_finished) {
                return Err(Failure::Deadline {
                    awaited: "bytes of a TCP stream".to_owned(),
                    waited: Duration::from_secs(20),
                    seen: format!("{before} bytes in all"),
                });
            }
            thread::sleep(PACE);
        }
        Ok(Duration::from_micros(
            self.longest.swap(0, Ordering::Relaxed),
        ))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
