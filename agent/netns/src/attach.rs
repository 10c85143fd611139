//! One attachment, as the netlink thread executes it: the pair, whose host end is silenced, and
//! then the pod end.
//!
//! The pair is handed over when all is done. It took longer to inform OVSDB while the pod end was
//! being configured than to do one after the other (docs/decisions/0017).

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::SockType;
use tokio::sync::oneshot;

use super::announce::{Announcer, PacketSocket};
use super::attaching::Unclaimed;
use super::configure::{set_addresses, set_routes, set_up};
use super::ns::Home;
use super::reaper::Reaper;
use super::request::{self, CREATE_NEW, Indexes};
use super::socket::Netlink;
use super::sysctl;
use super::{Error, HostEnd, HostLink, LinkSpec, Netns, PodEnd, Refusal, Step, ethtool, observe};

/// A bit that all chosen indexes have, far above those that the kernel counts up from 1.
const OWN_INDEXES: u32 = 1 << 30;

/// How many chosen indexes may be taken before the kernel's EEXIST is returned.
const INDEX_ATTEMPTS: usize = 8;

/// A requested attachment.
pub(super) struct Attachment {
    pub(super) netns: Arc<Netns>,
    pub(super) spec: LinkSpec,
    /// When it was requested.
    pub(super) at: Instant,
    pub(super) done: oneshot::Sender<Result<(Unclaimed, PodEnd), Error>>,
}

/// The netlink thread's state.
pub(super) struct Wiring {
    home: Home,
    host: Netlink,
    reaper: Arc<Reaper>,
    closer: Sender<OwnedFd>,
    next_index: u32,
}

impl Wiring {
    /// Call this in the host's namespace.
    pub(super) fn new(
        home: Home,
        host: Netlink,
        reaper: Arc<Reaper>,
        closer: Sender<OwnedFd>,
    ) -> Wiring {
        // Indexes do not restart from the beginning: the previous agent's pods still have theirs.
        let next_index = RandomState::new().hash_one(std::process::id()) as u32;
        Wiring {
            home,
            host,
            reaper,
            closer,
            next_index,
        }
    }

    /// Executes an attachment, as long as somebody waits for it.
    pub(super) fn attach(&mut self, attachment: Attachment) {
        let Attachment {
            netns,
            spec,
            at,
            done,
        } = attachment;
        if done.is_closed() {
            return;
        }
        let mut steps = Steps::default();
        steps.since("netlink queue", at);
        // If nobody receives it, it comes back and deletes itself.
        let _ = done.send(self.pair(&netns, &spec, steps));
    }

    fn pair(
        &mut self,
        netns: &Netns,
        spec: &LinkSpec,
        steps: Steps,
    ) -> Result<(Unclaimed, PodEnd), Error> {
        let made = self.host_end(netns, spec, steps)?;
        match self.configure(netns, spec, made.end.pod_ifindex) {
            Ok(pod) => Ok((made, pod)),
            Err(error) => {
                made.delete();
                Err(error)
            }
        }
    }

    fn host_end(
        &mut self,
        netns: &Netns,
        spec: &LinkSpec,
        mut steps: Steps,
    ) -> Result<Unclaimed, Error> {
        let (link, indexes) = steps.time("make pair", || self.make_pair(netns, spec))?;
        let end = HostEnd {
            link,
            pod_ifindex: indexes.pod,
            steps: Vec::new(),
        };
        let mut unclaimed = Unclaimed::new(end, self.reaper.clone());
        let name = &unclaimed.end.link.name;
        steps.time("host end silent", || {
            sysctl::silence(name, spec.netdev_datapath)
        })?;
        unclaimed.end.steps = steps.0;
        Ok(unclaimed)
    }

    /// One RTM_NEWLINK, repeated with another name or other indexes if they are taken.
    fn make_pair(&mut self, netns: &Netns, spec: &LinkSpec) -> Result<(HostLink, Indexes), Error> {
        let taken = || Error::HostNamesTaken {
            names: spec.host_names.clone(),
        };
        let mut names = spec.host_names.iter();
        let mut name = names.next().ok_or_else(taken)?;
        let mut attempts = 0;
        loop {
            let indexes = self.next_indexes();
            let message = request::pair(spec, name, indexes, netns.as_fd());
            let refusal = match self.host.request(message, CREATE_NEW) {
                Ok(()) => {
                    return Ok((
                        HostLink {
                            ifindex: indexes.host,
                            name: name.clone(),
                        },
                        indexes,
                    ));
                }
                Err(refusal) => refusal,
            };
            // The kernel does not say which of the two names and two indexes is taken; for an index
            // the error is EEXIST or, since 6.6 and in the link's own namespace, EBUSY
            // (`dev_index_reserve`).
            if matches!(refusal.errno, Errno::EEXIST | Errno::EBUSY) {
                if self.pod_has(netns, &spec.pod_name)? {
                    let (name, netns) = (spec.pod_name.clone(), netns.path().to_owned());
                    return Err(Error::PodInterfaceExists { name, netns });
                }
                if observe::link_named(&mut self.host, name)?.is_some() {
                    name = names.next().ok_or_else(taken)?;
                    continue;
                }
                attempts += 1;
                if attempts < INDEX_ATTEMPTS {
                    continue;
                }
            }
            return Err(Error::MakePair {
                host: name.clone(),
                pod: spec.pod_name.clone(),
                netns: netns.path().to_owned(),
                refusal,
            });
        }
    }

    fn pod_has(&self, netns: &Netns, name: &str) -> Result<bool, Error> {
        let mut pod = self.inside(netns, Netlink::route)?;
        Ok(observe::link_named(&mut pod, name)?.is_some())
    }

    fn next_indexes(&mut self) -> Indexes {
        self.next_index = self.next_index.wrapping_add(2);
        let pod = OWN_INDEXES | self.next_index & (OWN_INDEXES - 2);
        Indexes { pod, host: pod + 1 }
    }

    fn configure(&mut self, netns: &Netns, spec: &LinkSpec, ifindex: u32) -> Result<PodEnd, Error> {
        let name = &spec.pod_name;
        let mut steps = Steps::default();
        let (quiet, mut socket, packet) = steps.time("pod sockets", || {
            self.inside(netns, || {
                let quiet = sysctl::quieten(name, spec.pod_ipv6);
                let is_announced = !spec.announce.is_empty();
                let packet = is_announced.then(|| PacketSocket::open(SockType::Raw, &self.closer));
                Ok((quiet, Netlink::route()?, packet.transpose()?))
            })
        })?;
        quiet?;
        if spec.pod_ipv6.believes_routers() && observe::has_ipv6_default(&mut socket)? {
            self.inside(netns, || Ok(sysctl::take_default_routes(name, false)))??;
        }
        // Both ends get their carrier, and IPv6 sends its first messages.
        steps.time("pod end up", || set_up(&mut socket, name, ifindex))?;
        steps.time("pod addresses", || {
            set_addresses(&mut socket, name, ifindex, &spec.addresses, || {
                self.inside(netns, || Ok(sysctl::enable_ipv6(name)))?
            })
        })?;
        steps.time("pod routes", || {
            set_routes(&mut socket, &spec.pod_name, &spec.routes, ifindex)
        })?;
        steps.time("pod end live", || {
            observe::settle_carrier(&mut socket, ifindex)
        })?;
        if spec.netdev_datapath {
            steps
                .time("pod tx checksum", || {
                    ethtool::tx_checksum_off(&socket, name)
                })
                .map_err(|errno| Error::TxChecksum {
                    link: name.clone(),
                    refusal: errno.into(),
                })?;
        }
        let announcer = packet
            .map(|socket| Announcer::new(socket, ifindex, spec.pod_mac, spec.announce.clone()));
        Ok(PodEnd {
            ifindex,
            steps: steps.0,
            announcer,
        })
    }

    fn inside<T>(
        &self,
        netns: &Netns,
        open: impl FnOnce() -> std::io::Result<T>,
    ) -> Result<T, Error> {
        enter(&self.home, netns, open)
    }
}

/// Opens something in a namespace, with this module's error.
pub(super) fn enter<T>(
    home: &Home,
    netns: &Netns,
    open: impl FnOnce() -> std::io::Result<T>,
) -> Result<T, Error> {
    home.visit(netns, open)
        .map_err(Refusal::from)
        .and_then(|opened| opened.map_err(Refusal::from))
        .map_err(|refusal| Error::EnterNetns {
            netns: netns.path().to_owned(),
            refusal,
        })
}

/// Collects how long each step took.
#[derive(Default)]
struct Steps(Vec<Step>);

impl Steps {
    fn time<T>(&mut self, name: &'static str, step: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = step();
        self.since(name, start);
        result
    }

    fn since(&mut self, name: &'static str, start: Instant) {
        let took = start.elapsed();
        self.0.push(Step { name, start, took });
    }
}
