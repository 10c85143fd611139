//! Packets on a pod's interface.

use std::io;
use std::sync::Arc;

use macaddr::MacAddr6;
use podwire_netns::{self as netns, LinkSocket, Netlink, Netns, Packets};

/// The largest packet that is read: more than any that a DHCP server sends (RFC 2131, section 2,
/// asks for 576 bytes).
const LONGEST: usize = 1500;

/// An interface of a pod.
#[derive(Debug, Clone)]
pub struct Place {
    /// The pod's namespace.
    pub netns: Arc<Netns>,
    /// The interface in it.
    pub ifname: String,
}

/// Why packets could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The kernel refused a socket.
    #[error("{ifname}: {source}")]
    Kernel {
        /// The interface.
        ifname: String,
        /// The kernel's error.
        source: netns::Error,
    },
    /// The socket could not be read or written.
    #[error("{ifname}: {source}")]
    Socket {
        /// The interface.
        ifname: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl LinkError {
    /// Maps the kernel's refusal of a socket.
    pub(super) fn opening(place: &Place) -> impl FnOnce(netns::Error) -> Self {
        let ifname = place.ifname.clone();
        move |source| Self::Kernel { ifname, source }
    }
}

/// Opens a packet socket.
pub(super) async fn open(
    netlink: &Netlink,
    place: &Place,
    packets: Packets,
) -> Result<LinkSocket, LinkError> {
    let opening = netlink.link_socket(Arc::clone(&place.netns), &place.ifname, packets);
    opening.await.map_err(LinkError::opening(place))
}

/// What became of sending. A packet that the link's queue has no room for is as good as lost: it is
/// repeated.
pub(super) fn sent(sent: io::Result<()>, ifname: &str) -> Result<(), LinkError> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        sent => sent.map_err(|source| LinkError::Socket {
            ifname: ifname.to_owned(),
            source,
        }),
    }
}

/// Receives until `read` takes something from a packet.
pub(super) async fn receive<T>(
    socket: &LinkSocket,
    ifname: &str,
    read: impl Fn(&[u8], MacAddr6) -> Option<T>,
) -> Result<T, LinkError> {
    let mut packet = [0; LONGEST];
    loop {
        let received = socket.receive(&mut packet).await;
        let (length, from) = received.map_err(|source| LinkError::Socket {
            ifname: ifname.to_owned(),
            source,
        })?;
        if let Some(taken) = packet.get(..length).and_then(|it| read(it, from)) {
            return Ok(taken);
        }
    }
}
