//! When to look again: notifications of the kernel, of nftables and of the switch's database; and
//! who caused them, if they tell.
//!
//! podwire's own items change rarely; what is beside them (pods' links, others' routes, the
//! elements of kube-proxy's sets) changes all the time. So notifications are filtered, and only
//! those that may concern an item of podwire's end a wait.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt as _;
use futures_util::future::select_all;
use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressScope;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::route::{RouteAttribute, RouteProtocol};
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use podwire_ovs::client::{Client, Version};
use rtnetlink::MulticastGroup;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::actual::gateway;
use crate::firewalld::Signals;
use crate::items::destination;
use crate::overlap::overlap;
use crate::wire::{NFGENMSG, attributes, messages};
use crate::{PROTOCOL, firewall, nft};

/// What has happened since the last look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Something in the kernel has changed that may be podwire's.
    pub(crate) kernel: bool,
    /// The processes that changed it; none for the kernel's own changes.
    pub(crate) processes: BTreeSet<String>,
    /// Who changed podwire's nftables tables.
    pub(crate) firewall: BTreeSet<String>,
    /// They have written a rule or a chain of the services' table, and not just elements.
    pub(crate) rules: bool,
    /// The switch's database has changed.
    pub(crate) switch: bool,
}

/// The sources of events.
pub(crate) struct Events {
    kernel: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    settings: Notices,
    firewall: FirewallNotices,
    /// Open vSwitch's database and, if podwire has something in it, the southbound one.
    databases: Vec<watch::Receiver<Version>>,
    /// podwire's files that somebody may remove.
    files: FileNotices,
    firewalld: Option<Signals>,
    links: Links,
    /// The netlink port of podwire's own changes.
    own: u32,
}

/// The indexes of the relevant links, as last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    /// Their names: a re-created link has another index.
    pub(crate) names: BTreeSet<String>,
    /// Links with neighbours of podwire's.
    pub(crate) own: Vec<u32>,
    pub(crate) others: BTreeSet<u32>,
    /// podwire's networks: a link that connects one of them is in conflict with it.
    pub(crate) networks: Vec<IpNet>,
}

impl Links {
    fn contain(&self, index: u32) -> bool {
        self.own.contains(&index) || self.others.contains(&index)
    }
}

/// linux/rtnetlink.h: RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF; NETCONFA_IFINDEX, and
/// NETCONFA_IFINDEX_ALL of linux/netconf.h. `struct netconfmsg` is one byte, padded.
const SETTINGS_GROUPS: [u32; 2] = [24, 25];
const SETTINGS_LINK: u16 = 1;
const ALL_LINKS: i32 = -1;
const NETCONFMSG: usize = 4;

/// linux/netfilter/nfnetlink.h: NFNLGRP_NFTABLES.
const NFTABLES_GROUP: u32 = 7;
/// linux/netfilter/nfnetlink.h: NFNL_SUBSYS_NFTABLES.
const NFTABLES: u8 = 10;
/// linux/netfilter/nf_tables.h: NFT_MSG_NEWGEN, NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME, and the
/// attribute in which every object names its table.
const NEW_GENERATION: u8 = 15;
/// NFT_MSG_NEWTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE: what a comment does not tell.
const WRITES_RULES: [u8; 3] = [0, 3, 6];
const GENERATION_PID: u16 = 2;
const GENERATION_NAME: u16 = 3;
const OBJECTS_TABLE: u16 = 1;

/// How long to collect events that come together, as one look serves them all.
const TOGETHER: Duration = Duration::from_millis(5);

impl Events {
    /// Listens from now on. Call this on the tokio runtime, before the first look. `own` is the
    /// netlink port of podwire's own changes, `files` those that somebody may remove.
    pub(crate) fn listen<'a>(
        clients: impl Iterator<Item = &'a Client>,
        own: u32,
        files: &[PathBuf],
        firewalld: Option<Signals>,
    ) -> io::Result<Self> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Neigh,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (connection, _, kernel) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        Ok(Self {
            kernel,
            settings: Notices::listen(NETLINK_ROUTE, &SETTINGS_GROUPS)?,
            firewall: FirewallNotices::listen()?,
            databases: clients.map(Client::subscribe).collect(),
            files: FileNotices::listen(files)?,
            firewalld,
            links: Links::default(),
            own,
        })
    }

    /// Sets the databases.
    pub(crate) fn databases<'a>(&mut self, clients: impl Iterator<Item = &'a Client>) {
        self.databases = clients.map(Client::subscribe).collect();
    }

    /// Sets the relevant links.
    pub(crate) fn links_are(&mut self, links: Links) {
        self.links = links;
    }

    /// Waits until something has happened that may concern an item of podwire's, and returns it
    /// with all that comes at the same time.
    pub(crate) async fn next(&mut self) -> io::Result<Changes> {
        let mut changes = Changes::default();
        self.one(&mut changes).await?;
        let until = tokio::time::Instant::now() + TOGETHER;
        while let Ok(more) = tokio::time::timeout_at(until, self.one(&mut changes)).await {
            more?;
        }
        Ok(changes)
    }

    async fn one(&mut self, changes: &mut Changes) -> io::Result<()> {
        loop {
            let databases = self.databases.iter_mut().map(|it| Box::pin(it.changed()));
            tokio::select! {
                notice = self.kernel.next() => {
                    let (message, _) = notice.ok_or_else(|| io::Error::other("the kernel's notices \
                        have ended"))?;
                    let port = message.header.port_number;
                    if port != self.own && concerns(&message, &self.links) {
                        changes.kernel = true;
                        changes.processes.extend(process(port));
                        return Ok(());
                    }
                }
                datagram = self.settings.next() => {
                    if datagram?.is_none_or(|bytes| are_settings_of(&bytes, &self.links)) {
                        changes.kernel = true;
                        return Ok(());
                    }
                }
                change = self.firewall.next() => {
                    let (by, rules) = change?;
                    changes.firewall.insert(by);
                    changes.rules |= rules;
                    return Ok(());
                }
                () = firewalld_told(&mut self.firewalld) => {
                    changes.kernel = true;
                    return Ok(());
                }
                changed = self.files.next() => {
                    changed?;
                    changes.kernel = true;
                    return Ok(());
                }
                (changed, ..) = select_all(databases) => {
                    changed.map_err(|_| io::Error::other("the client of a database has ended"))?;
                    changes.switch = true;
                    return Ok(());
                }
            }
        }
    }
}

/// Waits for a signal of firewalld; without a connection, for ever.
async fn firewalld_told(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// linux/proc_ns.h: PROC_PID_INIT_INO.
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

/// The process with a netlink port, while it lives: the first port of a process is its pid
/// (netlink(7)). None for the kernel and for further ports.
fn process(port: u32) -> Option<String> {
    if port == 0 {
        return None;
    }
    // In another PID namespace, it is another process that has this number here.
    let own = std::fs::metadata("/proc/self/ns/pid").map(|it| it.ino());
    if own.is_ok_and(|own| own != INITIAL_PID_NAMESPACE) {
        return Some(format!("process {port} of its PID namespace"));
    }
    match std::fs::read_to_string(format!("/proc/{port}/comm")) {
        Ok(name) => Some(format!("{} (process {port})", name.trim())),
        // A port that is no process' pid can't be attributed.
        Err(_) => i32::try_from(port)
            .is_ok()
            .then(|| format!("process {port}, which has ended")),
    }
}

fn concerns(message: &NetlinkMessage<RouteNetlinkMessage>, links: &Links) -> bool {
    let NetlinkPayload::InnerMessage(inner) = &message.payload else {
        // Notifications were lost (ENOBUFS): anything may have changed.
        return true;
    };
    match inner {
        RouteNetlinkMessage::NewLink(it) | RouteNetlinkMessage::DelLink(it) => {
            let mut attributes = it.attributes.iter();
            attributes.any(|attribute| {
                matches!(attribute, LinkAttribute::IfName(name) if links.names.contains(name))
            }) || links.contain(it.header.index)
        }
        // Node ports are on every address of the machine.
        RouteNetlinkMessage::NewAddress(it) | RouteNetlinkMessage::DelAddress(it) => {
            links.contain(it.header.index) || it.header.scope == AddressScope::Universe
        }
        RouteNetlinkMessage::NewNeighbour(it) | RouteNetlinkMessage::DelNeighbour(it) => {
            links.own.contains(&it.header.ifindex)
        }
        // An uplink may have any number of others' routes, which change all the time.
        RouteNetlinkMessage::NewRoute(it) | RouteNetlinkMessage::DelRoute(it) => {
            let is_in = |net: IpNet| links.networks.iter().any(|it| overlap(it, &net));
            let is_of = |attribute: &RouteAttribute| match attribute {
                RouteAttribute::Oif(link) => links.own.contains(link),
                RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| {
                    let is_via =
                        |it: &RouteAttribute| gateway(it).is_some_and(|ip| is_in(ip.into()));
                    links.own.contains(&hop.interface_index) || hop.attributes.iter().any(is_via)
                }),
                attribute => gateway(attribute).is_some_and(|ip| is_in(ip.into())),
            };
            it.header.protocol == RouteProtocol::Other(PROTOCOL)
                || it.header.destination_prefix_length == 0
                || it.attributes.iter().any(is_of)
                || destination(it).is_some_and(is_in)
        }
        _ => false,
    }
}

/// Whether a datagram concerns settings of one of these links, or of all.
fn are_settings_of(bytes: &[u8], links: &Links) -> bool {
    messages(bytes).any(|(_, _, message)| {
        let attributes = attributes(message.get(NETCONFMSG..).unwrap_or_default());
        let mut of = attributes.filter(|(kind, _)| *kind == SETTINGS_LINK);
        let link = of.next().and_then(|(_, value)| value.try_into().ok());
        link.map(i32::from_ne_bytes).is_some_and(|link| {
            link == ALL_LINKS || u32::try_from(link).is_ok_and(|link| links.contain(link))
        })
    })
}

/// A netlink socket for notifications.
struct Notices(TokioSocket);

impl Notices {
    fn listen(protocol: isize, groups: &[u32]) -> io::Result<Self> {
        let mut socket = TokioSocket::new(protocol)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        for group in groups {
            socket.socket_mut().add_membership(*group)?;
        }
        Ok(Self(socket))
    }

    /// The next datagram; None if the socket's buffer overflowed: any may have been lost.
    async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.0.recv_from_full().await {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Notifications of the removal of files, and of their replacement by others, by inotify(7).
struct FileNotices {
    files: Vec<PathBuf>,
    inotify: Inotify,
    /// The same descriptor: tokio has no safe type for it, and this one only reads.
    events: pipe::Receiver,
}

/// In `struct inotify_event`: the offsets of the mask, of the name's length and of the name.
const INOTIFY_MASK: usize = 4;
const INOTIFY_LENGTH: usize = 12;
const INOTIFY_NAME: usize = 16;

impl FileNotices {
    fn listen(files: &[PathBuf]) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let descriptor = inotify.as_fd().try_clone_to_owned()?;
        let notices = Self {
            files: files.to_vec(),
            events: pipe::Receiver::from_owned_fd_unchecked(descriptor)?,
            inotify,
        };
        notices.watch()?;
        Ok(notices)
    }

    /// Watches the files' directories, which are created if they are missing.
    fn watch(&self) -> io::Result<()> {
        let events = AddWatchFlags::IN_MOVE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_ONLYDIR;
        for directory in self.files.iter().filter_map(|file| file.parent()) {
            if !directory.exists() {
                std::fs::create_dir_all(directory)?;
            }
            self.inotify.add_watch(directory, events)?;
        }
        Ok(())
    }

    async fn next(&self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            self.events.readable().await?;
            match self.events.try_read(&mut bytes) {
                Ok(length) if self.concern(&bytes[..length])? => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether events concern one of the files, or no file: then some were lost, or a directory was
    /// removed, and is watched again.
    fn concern(&self, mut events: &[u8]) -> io::Result<bool> {
        let number = |event: &[u8], at: usize| {
            let bytes = event.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        let mut concern = false;
        while let (Some(mask), Some(length)) =
            (number(events, INOTIFY_MASK), number(events, INOTIFY_LENGTH))
        {
            let end = INOTIFY_NAME + length as usize;
            let name = events.get(INOTIFY_NAME..end).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let mut names = self.files.iter().filter_map(|file| file.file_name());
            concern |= name.is_empty() || names.any(|it| it.as_encoded_bytes() == name);
            if mask & AddWatchFlags::IN_IGNORED.bits() != 0 {
                self.watch()?;
            }
            events = events.get(end..).unwrap_or_default();
        }
        Ok(concern)
    }
}

/// Notifications of changes to podwire's tables.
struct FirewallNotices {
    notices: Notices,
    /// The netlink port of whoever has changed podwire's table since the last generation: in its
    /// process' PID namespace, its process id.
    port: Option<u32>,
    /// Whether a rule or a chain of the services' table was written.
    rules: bool,
}

impl FirewallNotices {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            notices: Notices::listen(NETLINK_NETFILTER, &[NFTABLES_GROUP])?,
            port: None,
            rules: false,
        })
    }

    /// Waits until somebody else's transaction has changed a table of podwire's, and returns whose
    /// it was, and whether it has written rules of services.
    async fn next(&mut self) -> io::Result<(String, bool)> {
        loop {
            let Some(bytes) = self.notices.next().await? else {
                return Ok(("somebody".to_owned(), false));
            };
            if let Some(by) = self.read(&bytes) {
                return Ok(by);
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Option<(String, bool)> {
        let mut by: Option<String> = None;
        let mut written = false;
        for (kind, port, message) in messages(bytes) {
            let [message_type, subsystem] = kind.to_le_bytes();
            if subsystem != NFTABLES {
                continue;
            }
            let attributes = || attributes(message.get(NFGENMSG..).unwrap_or_default());
            let text = |wanted: u16| {
                let value = attributes().find(|(kind, _)| *kind == wanted)?.1;
                let value = value.strip_suffix(&[0]).unwrap_or(value);
                Some(String::from_utf8_lossy(value).into_owned())
            };
            if message_type != NEW_GENERATION {
                let table = text(OBJECTS_TABLE).unwrap_or_default();
                if is_named(&table, firewall::NAME) {
                    self.port = Some(port);
                } else if is_named(&table, nft::SERVICES) {
                    self.port = Some(port);
                    self.rules |= WRITES_RULES.contains(&message_type);
                }
            } else if let Some(port) = self.port.take() {
                let rules = std::mem::take(&mut self.rules);
                if nft::was_ours(port) {
                    continue;
                }
                written |= rules;
                let pid = attributes().find(|(kind, _)| *kind == GENERATION_PID);
                let pid = pid.and_then(|(_, value)| value.try_into().ok());
                let pid = pid.map(u32::from_be_bytes);
                let name = text(GENERATION_NAME).unwrap_or_else(|| "somebody".to_owned());
                by = match pid {
                    Some(pid) => Some(format!("{name} (process {pid})")),
                    None => Some(name),
                };
            }
        }
        by.map(|by| (by, written))
    }
}

/// Whether a table has the name in this one's family and name.
fn is_named(table: &str, name: &str) -> bool {
    name.split_once(' ').is_some_and(|(_, name)| name == table)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rtnetlink::RouteMessageBuilder;

    use super::*;

    #[test]
    fn a_route_calls_for_a_look_only_if_it_may_concern_the_pod_network() {
        let (uplink, management) = (2, 7);
        let links = Links {
            names: BTreeSet::new(),
            own: vec![management],
            others: [uplink, management].into(),
            networks: vec!["10.244.0.0/16".parse().unwrap()],
        };
        let concerns = |destination: &str, via: Option<&str>, link: u32| {
            let destination: IpNet = destination.parse().unwrap();
            let mut route = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(destination.addr(), destination.prefix_len())
                .unwrap()
                .output_interface(link);
            if let Some(via) = via {
                route = route.gateway(via.parse().unwrap()).unwrap();
            }
            let message = RouteNetlinkMessage::NewRoute(route.build());
            super::concerns(&NetlinkMessage::from(message), &links)
        };
        // Such as those that a routing daemon learns, thousands of them.
        assert!(!concerns("203.0.113.0/24", Some("192.0.2.1"), uplink));
        assert!(!concerns("203.0.113.0/24", None, 9));
        assert!(concerns("0.0.0.0/0", Some("192.0.2.1"), 9));
        assert!(concerns("203.0.113.0/24", None, management));
        assert!(concerns("10.244.7.0/24", Some("192.0.2.1"), uplink));
        assert!(concerns("203.0.113.0/24", Some("10.244.3.1"), uplink));
    }
}
