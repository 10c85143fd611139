//! Whether `podwire node run` works, or hangs: on a socket in its directory it accepts connections
//! and closes them. That of a process that hangs stays open, and the lock that it holds says only
//! that the process is there.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::time::Duration;

use podwire_daemon::file::if_there;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

pub(crate) const SOCKET: &str = "alive";

/// How long it may take. Each of its steps has a limit of its own, and none of them blocks it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Answers whoever asks, as long as this thread works.
pub(crate) async fn serve(directory: &Path) -> io::Result<Infallible> {
    let socket = directory.join(SOCKET);
    if_there(std::fs::remove_file(&socket))?;
    let listener = UnixListener::bind(socket)?;
    loop {
        if listener.accept().await.is_err() {
            // For lack of descriptors or memory: no event tells when there are some again.
            sleep(PATIENCE / 4).await;
        }
    }
}

/// Whether the role of this directory, which holds its lock, does not answer. One that has no such
/// socket is older, or another command that is at work.
pub(crate) async fn hangs(directory: &Path) -> bool {
    let asked = async {
        match UnixStream::connect(directory.join(SOCKET)).await {
            Ok(mut stream) => drop(stream.read(&mut [0]).await),
            // unix(7): its queue of connections is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::future::pending().await,
            Err(_) => {}
        }
    };
    timeout(PATIENCE, asked).await.is_err()
}
