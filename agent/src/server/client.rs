//! One client's connection, as hyper uses it, watched for the client's disconnect.
//!
//! hyper notices a disconnect by reading, but while it serves a request it reads only until its
//! buffer is full: bytes after the request (a pipelined one) hide the disconnect. The kernel
//! reports it separately from the bytes (EPOLLRDHUP), and that is watched here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Client(Arc<UnixStream>);

impl Client {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Completes when the client has closed its end, or shut down its writing half.
    pub(super) async fn gone(&self) {
        // No one sends urgent data over a unix socket, so this interest fires for the disconnect
        // only. It fails only when the runtime ends.
        let _ = self.0.ready(Interest::PRIORITY).await;
    }
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(
            nix::sys::socket::shutdown(
                std::os::fd::AsRawFd::as_raw_fd(&*self.0),
                nix::sys::socket::Shutdown::Write,
            )
            .map_err(Into::into),
        )
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn the_end_is_told_behind_bytes_that_nobody_has_read_and_not_before_it_comes() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut client = Client::new(near);
        far.write_all(b"unread").await.unwrap();
        client.0.readable().await.unwrap();
        tokio::select! {
            biased;
            () = client.gone() => panic!("the client is still there"),
            () = tokio::task::yield_now() => {}
        }
        drop(far);
        client.gone().await;
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "unread");
    }
}
