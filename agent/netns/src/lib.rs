//! The kernel's part of an attachment: links, addresses, routes, namespaces and conntrack, over
//! netlink. The node role uses what is not of attachments: messages, and conntrack.
//!
//! [`Netlink`] is the handle for the rest of the agent. It has a few threads, which block in the
//! kernel instead of in tokio: `netlink` makes all changes in order (the kernel serialises them
//! under RTNL anyway), `observe` reads, `monitor` receives link notifications, and reapers wait for
//! the `rcu_barrier` at the end of each deletion. All live in the network namespace of the thread
//! that called [`Netlink::start`]: the agent's own, "the host".
//!
//! This is the only crate that may contain unsafe code.

mod announce;
mod answer;
mod attach;
mod attaching;
mod autoconf;
mod configure;
mod conntrack;
mod datapath;
mod error;
mod ethtool;
mod filter;
mod generic;
mod host;
mod monitor;
mod ns;
mod observe;
mod packets;
mod realtime;
mod reaper;
mod request;
mod socket;
mod spec;
mod sysctl;
#[cfg(test)]
mod tests;
mod threads;
mod wire;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use macaddr::MacAddr6;
use nix::errno::Errno;
use tokio::sync::{broadcast, oneshot, watch};

use attach::Attachment;
use threads::{Reader, Threads};

pub use announce::{
    ALL_NODES, arp_request, icmpv6, internet_checksum, neighbour_advertisement, udp_over_ipv6,
};
pub use attaching::Attaching;
pub use autoconf::{AddressChanges, Ipv6Address};
pub use conntrack::{Translated, forget_endpoints, translated};
pub use datapath::{Datapath, NoPackets};
pub use error::{Error, NetnsError, Refusal};
pub use host::uplink_changes;
pub use ns::{Netns, NetnsId};
pub use packets::{LinkSocket, Packets};
pub use realtime::RealTime;
pub use spec::{
    HostEnd, HostLink, LinkSpec, LinkState, Observed, ObservedRoute, PodEnd, PodIpv6, Route, Step,
};
pub use wire::{Message, attributes, messages};

/// The handle to the kernel's networking; cheap to clone. The threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Netlink {
    threads: Arc<Threads>,
}

impl Netlink {
    /// Opens the sockets and starts the threads, in the network namespace of the calling thread.
    /// The thread that creates links takes over the caller's real-time priority, if it has one.
    pub fn start(real_time: Option<RealTime>) -> Result<Netlink, Error> {
        Ok(Netlink {
            threads: Arc::new(Threads::start(real_time)?),
        })
    }

    /// Creates one veth pair, both ends in their final namespace, and configures the pod end. It
    /// starts at once, and ends as [`Attaching`] says.
    pub fn attach(&self, netns: Arc<Netns>, spec: LinkSpec) -> Attaching {
        let (done, result) = oneshot::channel();
        let attachment = Attachment {
            netns,
            spec,
            at: Instant::now(),
            done,
        };
        // If the thread is gone, the receiver finds its sender dropped.
        let _ = self.threads.attachments.send(Box::new(attachment));
        Attaching(result)
    }

    /// Removes host links with their peers. Completes when the kernel has reported that they are
    /// gone, or if they did not exist.
    ///
    /// A link is removed only if it is a veth and has both the given name and index; all are tried,
    /// and the first refusal is returned.
    pub async fn delete(&self, links: Vec<HostLink>) -> Result<(), Error> {
        let submitted: Vec<_> = links
            .into_iter()
            .map(|link| (link.name.clone(), self.threads.reaper.submit(link)))
            .collect();
        let mut result = Ok(());
        for (link, gone) in submitted {
            let outcome = gone.await.map_err(|_| Error::Stopped);
            let outcome =
                outcome.and_then(|gone| gone.map_err(|refusal| Error::Delete { link, refusal }));
            result = result.and(outcome);
        }
        result
    }

    /// Removes a veth pair by its pod end, if that has this MAC address: its host end may have been
    /// renamed, or moved to another namespace. Returns whether it existed.
    pub async fn delete_by_pod_end(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
        mac: MacAddr6,
    ) -> Result<bool, Error> {
        let ifname = ifname.to_owned();
        self.read(move |reader| {
            let mut pod = attach::enter(&reader.home, &netns, socket::Netlink::route)?;
            let is_it =
                |link: &LinkState| link.kind.as_deref() == Some("veth") && link.mac == Some(mac);
            let Some(link) = observe::link_named(&mut pod, &ifname)?.filter(is_it) else {
                return Ok(false);
            };
            match pod.request(request::delete_link(link.ifindex), 0) {
                Ok(()) => Ok(true),
                Err(refusal) if refusal.errno == Errno::ENODEV => Ok(false),
                Err(refusal) => Err(Error::Delete {
                    link: ifname,
                    refusal,
                }),
            }
        })
        .await
    }

    /// The kernel's state of one interface in a pod's namespace; `None` if there is none.
    pub async fn observe(
        &self,
        netns: Arc<Netns>,
        ifname: &str,
    ) -> Result<Option<Observed>, Error> {
        let ifname = ifname.to_owned();
        self.read(move |reader| {
            let mut pod = attach::enter(&reader.home, &netns, socket::Netlink::route)?;
            observe::interface(&mut pod, &ifname)
        })
        .await
    }

    /// The host link with that name, read from the kernel now.
    pub async fn host_link(&self, name: &str) -> Result<Option<LinkState>, Error> {
        let name = name.to_owned();
        self.read(move |reader| observe::link_named(&mut reader.host, &name))
            .await
    }

    /// The host link with each of these names, read from the kernel now by one request.
    pub async fn host_links_named(
        &self,
        names: &[&str],
    ) -> Result<Vec<Result<Option<LinkState>, Error>>, Error> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.read(move |reader| Ok(observe::links_named(&mut reader.host, &names)))
            .await
    }

    /// Every veth in the host's namespace.
    pub async fn list_veths(&self) -> Result<Vec<LinkState>, Error> {
        self.read(|reader| observe::veths(&mut reader.host)).await
    }

    /// The latest state of the host link with that name, `None` while there is none.
    ///
    /// A slow reader sees the latest state only. A link that was deleted and re-created with the
    /// same name has another `ifindex`.
    pub fn watch_link(&self, name: &str) -> watch::Receiver<Option<LinkState>> {
        self.threads.links.watch(name)
    }

    /// All host links by name, read from the kernel now.
    pub async fn host_links(&self) -> Result<HashMap<String, LinkState>, Error> {
        let links = self.read(|reader| observe::links(&mut reader.host)).await?;
        let by_name = links.into_iter().map(|link| (link.name.clone(), link));
        Ok(by_name.collect())
    }

    /// The host link with that index.
    pub async fn host_link_of_index(&self, index: u32) -> Result<Option<LinkState>, Error> {
        self.read(move |reader| observe::link_of_index(&mut reader.host, index))
            .await
    }

    /// The names of the host links removed from now on.
    pub fn link_departures(&self) -> broadcast::Receiver<String> {
        self.threads.links.departures()
    }

    /// A notification of later changes of any host link. A slow reader sees one, however many there
    /// were.
    pub fn link_changes(&self) -> watch::Receiver<()> {
        self.threads.links.changes()
    }

    /// Removes the host's conntrack entries from and to these addresses; returns their number.
    ///
    /// A kernel without conntrack has none. Connections tracked by a netdev datapath are vswitchd's
    /// own and not affected.
    pub async fn flush_conntrack(&self, addresses: Vec<IpAddr>) -> Result<usize, Error> {
        let (done, removed) = oneshot::channel();
        let flush = conntrack::Flush { addresses, done };
        self.threads
            .flushes
            .send(flush)
            .map_err(|_| Error::Stopped)?;
        removed.await.map_err(|_| Error::Stopped)?
    }

    /// Whether this kernel has the Open vSwitch datapath. If it has it as a module, the request
    /// loads it.
    pub async fn kernel_datapath_available(&self) -> Result<bool, Error> {
        self.read(|_| generic::has_family("ovs_datapath")).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Reader) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = oneshot::channel();
        let read = Box::new(|reader: &mut Reader| {
            // The caller may have gone.
            let _ = done.send(read(reader));
        });
        self.threads.reads.send(read).map_err(|_| Error::Stopped)?;
        result.await.map_err(|_| Error::Stopped)?
    }
}
