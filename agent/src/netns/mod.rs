//! The kernel half of an attachment: links, addresses, routes, namespaces and conntrack, over netlink.
//!
//! [`Netlink`] is the handle that the rest of the agent holds. Behind it stand a few threads of their own, each blocking in
//! the kernel instead of in tokio: `netlink` makes every change in order (the kernel serialises them under RTNL anyway),
//! `observe` reads, `monitor` listens to link notifications, and reapers wait out the `rcu_barrier` that ends each deletion.
//! All of them live in the network namespace of the thread that called [`Netlink::start`]: the agent's own, "the host".
//!
//! This is the only room that may contain unsafe code.

mod error;
#[expect(dead_code, reason = "the threads that visit namespaces come next")]
mod ns;
mod spec;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use tokio::sync::{oneshot, watch};

pub use error::{Error, NetnsError, Refusal};
pub use ns::{Netns, NetnsId};
pub use spec::{
    HostEnd, HostLink, LinkSpec, LinkState, Observed, ObservedRoute, PodEnd, Route, Step,
};

/// The two results of an attachment under way.
///
/// `host_ready` comes first, as soon as Open vSwitch may take the host end; `configured` when the pod's side is complete.
/// After an error in either nothing more happens. Before `host_ready` has been answered with `Ok` the room itself removes
/// what a failure (or a dropped receiver) leaves; from then on the link is the caller's, to be removed with
/// [`Netlink::delete`].
#[derive(Debug)]
pub struct Attaching {
    /// Answered when the pair is made and the host end is silent and up.
    pub host_ready: oneshot::Receiver<Result<HostEnd, Error>>,
    /// Answered when the pod's side has its addresses and routes.
    pub configured: oneshot::Receiver<Result<PodEnd, Error>>,
}

/// The handle to the kernel's networking; cheap to clone. The threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Netlink {}

impl Netlink {
    /// Opens the sockets and starts the threads, in the network namespace of the calling thread.
    pub fn start() -> Result<Netlink, Error> {
        Ok(Netlink {})
    }

    /// Makes one veth pair, both ends in their final place, and configures the pod's end.
    pub fn attach(&self, netns: Arc<Netns>, spec: LinkSpec) -> Attaching {
        let (_, host_ready) = oneshot::channel();
        let (_, configured) = oneshot::channel();
        let _ = (netns, spec);
        Attaching {
            host_ready,
            configured,
        }
    }

    /// Removes host links with their peers; done when the kernel has told that they are gone, or when they were not there.
    ///
    /// A link is touched only if it is a veth and bears both the name and the index given.
    pub async fn delete(&self, links: Vec<HostLink>) -> Result<(), Error> {
        let _ = links;
        Err(Error::Stopped)
    }

    /// What the kernel says of one interface in a pod's namespace; `None` when there is no such interface.
    pub async fn observe(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
    ) -> Result<Option<Observed>, Error> {
        let _ = (netns, ifname);
        Err(Error::Stopped)
    }

    /// The host link of that name, asked of the kernel now.
    pub async fn host_link(&self, name: &str) -> Result<Option<LinkState>, Error> {
        let _ = name;
        Err(Error::Stopped)
    }

    /// Every veth in the host's namespace.
    pub async fn list_veths(&self) -> Result<Vec<LinkState>, Error> {
        Err(Error::Stopped)
    }

    /// Gives a host link addresses (and sets it up), waiting until `deadline` for a link of that name to appear.
    ///
    /// Addresses that are there already stay, none is removed.
    pub async fn ensure_addresses(
        &self,
        link: &str,
        addresses: Vec<IpNet>,
        up: bool,
        deadline: Instant,
    ) -> Result<LinkState, Error> {
        let _ = (link, addresses, up, deadline);
        Err(Error::Stopped)
    }

    /// The newest known state of the host link of that name, `None` while there is none.
    ///
    /// A link that was deleted and made again under the same name shows another `ifindex`.
    pub fn watch_link(&self, name: &str) -> watch::Receiver<Option<LinkState>> {
        let _ = name;
        watch::channel(None).1
    }

    /// Removes the host's conntrack entries from or to these addresses; returns how many went.
    pub async fn flush_conntrack(&self, addresses: Vec<IpAddr>) -> Result<usize, Error> {
        let _ = addresses;
        Err(Error::Stopped)
    }

    /// Whether this kernel has the Open vSwitch datapath (the question itself makes it load the module).
    pub async fn kernel_datapath_available(&self) -> Result<bool, Error> {
        Err(Error::Stopped)
    }
}
