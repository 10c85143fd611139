//! A way to the database that ends at a certain transaction: before the server has it, or when the
//! client will never hear of its commit.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::sync::oneshot;

/// Where to cut: at which transaction, and whether it still reaches the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) transaction: usize,
    pub(crate) is_sent: bool,
}

const TRANSACT: &[u8] = b"\"method\":\"transact\"";

struct Counting {
    left: usize,
    cut: Option<oneshot::Sender<()>>,
}

/// Listens on `path` for a client of `server`. The receiver is told when it was cut; nobody is
/// served after that.
pub(crate) fn listen(path: &Path, server: &Path, cut: Cut) -> oneshot::Receiver<()> {
    let listener = UnixListener::bind(path).unwrap();
    let (sender, is_cut) = oneshot::channel();
    let counting = Arc::new(Mutex::new(Counting {
        left: cut.transaction,
        cut: Some(sender),
    }));
    let server = server.to_owned();
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            if counting.lock().unwrap().cut.is_none() {
                return;
            }
            let upstream = UnixStream::connect(&server).unwrap();
            let (back, to) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || copy(back, to));
            let counting = Arc::clone(&counting);
            thread::spawn(move || requests(client, upstream, &counting, cut.is_sent));
        }
    });
    is_cut
}

fn copy(mut from: UnixStream, mut to: UnixStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn requests(
    mut client: UnixStream,
    mut server: UnixStream,
    counting: &Mutex<Counting>,
    is_sent: bool,
) {
    let (mut buffer, mut seen) = (vec![0; 1 << 16], Vec::new());
    while let Ok(length) = client.read(&mut buffer)
        && length > 0
    {
        // What may be the begin of the word is looked at again with what follows.
        let known = seen.len();
        seen.extend_from_slice(&buffer[..length]);
        let found = seen
            .windows(TRANSACT.len())
            .filter(|it| *it == TRANSACT)
            .count();
        let is_at_end = {
            let mut counting = counting.lock().unwrap();
            counting.left = counting.left.saturating_sub(found);
            counting.left == 0
        };
        if is_at_end {
            // The client must hear nothing of it, so that end is closed first.
            let _ = client.shutdown(Shutdown::Both);
            if is_sent {
                let _ = server.write_all(&seen[known..]);
            }
            let _ = server.shutdown(Shutdown::Write);
            let cut = counting.lock().unwrap().cut.take();
            let _ = cut.map(|cut| cut.send(()));
            return;
        }
        let _ = server.write_all(&seen[known..]);
        let kept = seen.len().min(TRANSACT.len() - 1);
        seen.drain(..seen.len() - kept);
    }
    let _ = server.shutdown(Shutdown::Both);
}
