//! What many nodes cost the southbound database's server: connections that ask for what a real
//! ovn-controller asked for, and read what they get.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::ovn::Central;
use podwire_tests::{Failure, Step as _};
use serde_json::{Deserializer, Value, json};

/// Longer than a server takes to write out a large database.
const LIMIT: Duration = Duration::from_secs(120);
/// What makes a connection one more that the server has to tell of changes.
const ASKED: [&str; 2] = ["monitor_cond_since", "monitor_cond_change"];

/// A way to the southbound database that notes what goes there.
pub(crate) struct Recorder {
    path: PathBuf,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) fn start(central: &Central) -> Result<Self, Failure> {
        let server = path_of(&central.local_remote());
        let path = server.with_file_name("recorded.sock");
        if path.exists() {
            std::fs::remove_file(&path).step(|| "remove the last recorder's socket")?;
        }
        let listener = UnixListener::bind(&path).step(|| format!("bind {}", path.display()))?;
        let sent = Arc::<Mutex<Vec<u8>>>::default();
        let own = Arc::clone(&sent);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&server) else {
                    continue;
                };
                let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                let own = Arc::clone(&own);
                let note = move |bytes: &[u8]| lock(&own).extend_from_slice(bytes);
                thread::spawn(move || pass_on(from, to, note));
                thread::spawn(move || pass_on(server, client, |_| ()));
            }
        });
        Ok(Self { path, sent })
    }

    /// Where ovn-controller finds it.
    pub(crate) fn remote(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// What it was asked to monitor so far, in this order.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let sent = lock(&self.sent);
        let messages = Deserializer::from_slice(&sent).into_iter::<Value>();
        let messages = messages.map_while(Result::ok);
        messages
            .filter(|it| ASKED.iter().any(|method| it["method"] == *method))
            .filter(|it| it["params"][0] != "_Server")
            .collect()
    }
}

fn pass_on(mut from: UnixStream, mut to: UnixStream, note: impl Fn(&[u8])) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        note(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Connections that stay.
pub(crate) struct Crowd {
    streams: Vec<UnixStream>,
    /// When any of them read something for the last time.
    last_read: Arc<Mutex<Instant>>,
}

impl Crowd {
    /// Connects one after the other, each when the one before has got all that it asked for: those
    /// that come together have the server hold as many copies of the database in its memory.
    pub(crate) fn join(remote: &str, requests: &[Value], count: u32) -> Result<Self, Failure> {
        let server = path_of(remote);
        let mut crowd = Self {
            streams: Vec::new(),
            last_read: Arc::new(Mutex::new(Instant::now())),
        };
        for _ in 0..count {
            let mut stream =
                UnixStream::connect(&server).step(|| format!("connect to {remote}"))?;
            let clone = || stream.try_clone().step(|| "clone a connection");
            crowd.streams.push(clone()?);
            let (tell, told) = mpsc::channel();
            let (own, last_read) = (clone()?, Arc::clone(&crowd.last_read));
            thread::spawn(move || read(own, &tell, &last_read));
            for request in requests {
                let sent = stream.write_all(request.to_string().as_bytes());
                sent.step(|| "ask the southbound database")?;
                told.recv_timeout(LIMIT)
                    .map_err(|error| std::io::Error::new(ErrorKind::TimedOut, error))
                    .step(|| format!("{remote}: await the answer to {}", request["method"]))?;
            }
        }
        Ok(crowd)
    }

    /// When the last of them got something, so far.
    pub(crate) fn last_read(&self) -> Instant {
        *lock(&self.last_read)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for stream in &self.streams {
            // One that the server closed already is fine.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Reads until the connection ends, tells of each answer, and answers echoes (RFC 7047 § 4.1.11).
fn read(mut stream: UnixStream, tell: &mpsc::Sender<()>, last_read: &Mutex<Instant>) {
    let (mut buffer, mut head) = (vec![0; 1 << 18], Vec::new());
    let (mut depth, mut is_text, mut is_escaped) = (0_u32, false, false);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        *lock(last_read) = Instant::now();
        for &byte in &buffer[..length] {
            if head.len() < 64 {
                head.push(byte);
            }
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_text => is_escaped = true,
                b'"' => is_text = !is_text,
                b'{' | b'[' if !is_text => depth += 1,
                b'}' | b']' if !is_text => depth -= 1,
                _ => {}
            }
            if depth > 0 {
                continue;
            }
            let text = String::from_utf8_lossy(&head);
            if text.contains(r#""method":"echo""#) {
                let answer = json!({ "id": "echo", "result": [], "error": null });
                let _ = stream.write_all(answer.to_string().as_bytes());
            } else if !text.contains(r#""method":"#) {
                let _ = tell.send(());
            }
            head.clear();
        }
    }
}

fn path_of(remote: &str) -> PathBuf {
    Path::new(remote.trim_start_matches("unix:")).to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
