//! The stream to a server.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::tls;
use crate::protocol::{HostPort, Remote, TlsKeys};

/// With the kernel's nine attempts (tcp_keepalive_probes), a host that is gone or cut off is
/// noticed after 14 s on a connection with nothing on its way.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(5))
    .with_interval(Duration::from_secs(1));

/// The transport of a connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects; for `ssl:` with these keys.
pub(super) async fn connect(
    remote: &Remote,
    keys: Option<&TlsKeys>,
) -> io::Result<Box<dyn Stream>> {
    match remote {
        Remote::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Remote::Tcp(server) => Ok(Box::new(tcp(server).await?)),
        Remote::Ssl(server) => {
            let keys = keys.ok_or_else(|| {
                io::Error::other(
                    "ssl: needs a private key, a certificate and a CA certificate, \
                     and none are configured",
                )
            })?;
            let stream = tcp(server).await?;
            Ok(Box::new(tls::handshake(keys, &server.host, stream).await?))
        }
    }
}

async fn tcp(server: &HostPort) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
    // A request is one write, and its answer is waited for.
    stream.set_nodelay(true)?;
    // The kernel of a server that is busy answers, and that of a host that is gone does not.
    SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
    Ok(stream)
}
