//! An agent that does with one connection what a test wants.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use tempfile::TempDir;

use crate::call::PATIENCE;

/// A POST as it came.
pub(crate) struct Post {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// Listens on a socket of its own, and plays its script for the first connection.
pub(crate) struct FakeAgent<T> {
    directory: TempDir,
    ended: Receiver<T>,
}

impl<T: Send + 'static> FakeAgent<T> {
    pub(crate) fn new(script: impl FnOnce(UnixStream) -> T + Send + 'static) -> Self {
        Self::at(tempfile::tempdir().unwrap(), script)
    }

    /// Listens on the socket of this directory.
    pub(crate) fn at(
        directory: TempDir,
        script: impl FnOnce(UnixStream) -> T + Send + 'static,
    ) -> Self {
        let listener = UnixListener::bind(socket_in(directory.path())).unwrap();
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            drop(listener);
            // A test that has failed does not wait for it.
            let _ = end.send(script(stream));
        });
        Self { directory, ended }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket_in(self.directory.path())
    }

    /// What the script came to.
    pub(crate) fn end(self) -> T {
        self.ended
            .recv_timeout(PATIENCE)
            .expect("a script that comes to its end")
    }
}

impl FakeAgent<Post> {
    /// Takes a POST and answers with these bytes, head and all.
    pub(crate) fn raw(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Self::new(move |mut stream| {
            let post = take_post(&mut stream);
            stream.write_all(&reply).unwrap();
            post
        })
    }

    /// Takes a POST and answers with this status and body.
    pub(crate) fn answering(status: u16, body: &str) -> Self {
        Self::raw(reply(status, body))
    }
}

pub(crate) fn socket_in(directory: &Path) -> PathBuf {
    directory.join("agent.sock")
}

pub(crate) fn reply(status: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} Some Words\r\nContent-Length: {}\r\npodwire-wire: 1\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one POST, by its Content-Length.
pub(crate) fn take_post(stream: &mut UnixStream) -> Post {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .expect("a content-length")
                .parse()
                .unwrap();
            if bytes.len() >= at + 4 + length {
                return Post {
                    head,
                    body: bytes.split_off(at + 4),
                };
            }
        }
        let came = stream.read(&mut chunk).unwrap();
        assert!(came > 0, "the connection ended within the request");
        bytes.extend_from_slice(&chunk[..came]);
    }
}

/// Waits until the plugin has closed its end.
pub(crate) fn await_close(stream: &mut UnixStream) {
    let mut rest = [0; 4096];
    // A reset is an end too: it comes when the plugin left bytes of ours unread.
    while stream.read(&mut rest).is_ok_and(|came| came > 0) {}
}
