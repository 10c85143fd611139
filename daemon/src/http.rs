//! HTTP/1.1 for a daemon: what one client can cost the others is limited, connections, header and
//! time.
//!
//! [`serve`] answers requests for pages over TCP. A server on another socket uses [`accept`] and
//! [`http1()`], which are the same limits.

mod limit;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub use limit::{ConnectionLimit, Slot};

/// A complete answer.
pub type Response = hyper::Response<Full<Bytes>>;

/// How long a client may take to send a request. Every client of podwire's sends its own at once.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// How long a connection for a page may last, with the client's reading of it.
const PAGE_DEADLINE: Duration = Duration::from_secs(10);
/// After accept(2) failed for lack of descriptors or memory, no event tells when there are some
/// again.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Largest header; the plugin's has three fields, a probe's five.
const MAX_HEADER: usize = 16 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens at this address. The unspecified address of IPv6 stands for IPv4 too, and for IPv4 alone
/// on a machine without IPv6.
///
/// # Errors
/// The kernel's.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    listen_by(address, bind)
}

fn listen_by<L>(address: SocketAddr, bind: impl Fn(SocketAddr) -> io::Result<L>) -> io::Result<L> {
    let without_ipv6 = Some(Errno::EAFNOSUPPORT as i32);
    match bind(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED && error.raw_os_error() == without_ipv6 =>
        {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    }
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // Whatever net.ipv6.bindv6only says.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Answers requests for pages until it is dropped, and its connections with it. `pages` gets those
/// with GET or HEAD.
///
/// # Errors
/// The listener can't be registered.
pub async fn serve<P, A>(
    listener: std::net::TcpListener,
    limit: Arc<ConnectionLimit>,
    pages: P,
) -> io::Result<Infallible>
where
    P: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response> + Send + 'static,
{
    let mut listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    let never = accept(&mut listener, &limit, |stream, slot| {
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, slot, pages.clone()));
    });
    Ok(never.await)
}

/// A socket that accepts connections.
pub trait Listener {
    /// A connection.
    type Stream;

    /// The next connection.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Accepts connections and gives each a slot.
pub async fn accept<L: Listener>(
    listener: &mut L,
    limit: &Arc<ConnectionLimit>,
    mut welcome: impl FnMut(L::Stream, Slot),
) -> Infallible {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let is_full = limit.is_full();
                welcome(stream, limit.enter());
                if is_full {
                    // The connection that has to go holds its descriptor until its task has run.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed; trying again shortly");
                limit.evict_oldest();
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// HTTP with the limits on a request's header.
pub fn http1() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_DEADLINE)
        .max_buf_size(MAX_HEADER);
    http
}

async fn connection<P, A>(stream: TcpStream, slot: Slot, pages: P)
where
    P: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response>,
{
    let service = service_fn(|request: Request<Incoming>| {
        // One with a request is the last to make room. It stays in the queue while it is
        // answered, so that requests are limited too.
        slot.waits();
        let is_page = matches!(*request.method(), Method::GET | Method::HEAD);
        let answer = is_page.then(|| pages(request));
        async move {
            Ok::<_, Infallible>(match answer {
                Some(answer) => answer.await,
                None => only_get(),
            })
        }
    });
    let stream = TokioIo::new(stream);
    let served = http1().keep_alive(false).serve_connection(stream, service);
    tokio::select! {
        served = tokio::time::timeout(PAGE_DEADLINE, served) => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "connection ended"),
            Err(_) => tracing::debug!("connection closed: its client took too long"),
        },
        () = slot.evicted() => {
            tracing::debug!("connection closed: it had waited longest when another came");
        }
    }
}

fn only_get() -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "pages are for GET\n");
    let methods = HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(ALLOW, methods);
    response
}

/// A page of text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    typed(status, "text/plain; charset=utf-8", body)
}

/// A page of this media type.
pub fn typed(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let media_type = HeaderValue::from_static(media_type);
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_ipv6_is_listened_on_by_ipv4_and_another_fault_stays_one() {
        let refusing = |errno: Errno| {
            move |address: SocketAddr| match address.is_ipv6() {
                true => Err(io::Error::from(errno)),
                false => Ok(address),
            }
        };
        let any = "[::]:9413".parse().unwrap();
        let bound = listen_by(any, refusing(Errno::EAFNOSUPPORT)).unwrap();
        assert_eq!(bound, "0.0.0.0:9413".parse().unwrap());
        for (address, errno) in [
            (any, Errno::EADDRINUSE),
            ("[::1]:9413".parse().unwrap(), Errno::EAFNOSUPPORT),
        ] {
            let error = listen_by(address, refusing(errno)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno as i32));
        }
    }
}
