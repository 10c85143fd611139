//! When to look again: notifications of the kernel, of nftables and of the switch's database; and
//! who caused them, if they tell.
//!
//! podwire's own items change rarely; what is beside them (pods' links, others' routes, the
//! elements of kube-proxy's sets) changes all the time. So notifications are filtered, and only
//! those that may concern an item of podwire's end a wait.

mod files;
mod firewall;
mod flows;

use std::collections::BTreeSet;
use std::io;
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
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use podwire_cluster::address::overlap;
use podwire_netns::{attributes, messages};
use podwire_ovs::client::{Client, Version};
use rtnetlink::MulticastGroup;
use tokio::sync::watch;

pub(crate) use files::FileNotices;
use firewall::FirewallNotices;
use flows::FlowNotices;

use crate::PROTOCOL;
use crate::actual::gateway;
use crate::bus::Signals;
use crate::items::{destination, is_to_door};

/// What has happened since the last snapshot.
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
    /// Of the gateway bridge's flows, where podwire has some.
    flows: Option<FlowNotices>,
    links: Links,
    /// The netlink port of podwire's own changes.
    own: u32,
    /// What has happened since the last return of [`Events::next`], which may be dropped before.
    collected: Changes,
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
    /// Whether every route and rule counts: somebody configures a NIC that is to be moved.
    pub(crate) awaits: bool,
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

/// How long to collect events that come together, as one snapshot serves them all.
const TOGETHER: Duration = Duration::from_millis(5);

impl Events {
    /// Listens from now on. Call this on the tokio runtime, before the first snapshot. `own` is the
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
            MulticastGroup::Ipv4Rule,
            MulticastGroup::Ipv6Rule,
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
            flows: None,
            links: Links::default(),
            own,
            collected: Changes::default(),
        })
    }

    /// Sets the southbound database. The other one's changes so far are not lost.
    pub(crate) fn southbound_is(&mut self, client: Option<&Client>) {
        self.databases.truncate(1);
        self.databases.extend(client.map(Client::subscribe));
    }

    /// Listens to ovs-vswitchd about the flows of the bridge with this socket, or no longer.
    pub(crate) fn flows_are(&mut self, socket: Option<PathBuf>) {
        match socket {
            Some(socket) => {
                self.flows.get_or_insert_with(|| FlowNotices::of(socket));
            }
            None => self.flows = None,
        }
    }

    /// Sets the relevant links.
    pub(crate) fn links_are(&mut self, links: Links) {
        self.links = links;
    }

    /// Waits until something has happened that may concern an item of podwire's, and returns it
    /// with all that comes at the same time. Whoever stops waiting loses nothing: the next call
    /// returns it.
    pub(crate) async fn next(&mut self) -> io::Result<Changes> {
        if self.collected == Changes::default() {
            self.one().await?;
        }
        let until = tokio::time::Instant::now() + TOGETHER;
        while let Ok(more) = tokio::time::timeout_at(until, self.one()).await {
            more?;
        }
        Ok(std::mem::take(&mut self.collected))
    }

    async fn one(&mut self) -> io::Result<()> {
        let changes = &mut self.collected;
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
                () = firewalld_signalled(&mut self.firewalld) => {
                    changes.kernel = true;
                    return Ok(());
                }
                changed = flows_changed(&mut self.flows) => {
                    changed?;
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

/// Waits until flows may be gone; without any, for ever.
async fn flows_changed(flows: &mut Option<FlowNotices>) -> io::Result<()> {
    match flows {
        Some(flows) => flows.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for a signal of firewalld; without a connection, for ever.
async fn firewalld_signalled(signals: &mut Option<Signals>) {
    let signalled = match signals {
        Some(signals) => signals.next().await,
        None => None,
    };
    if signalled.is_none() {
        std::future::pending().await
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
            links.awaits
                || it.header.protocol == RouteProtocol::Other(PROTOCOL)
                || it.header.destination_prefix_length == 0
                || it.attributes.iter().any(is_of)
                || destination(it).is_some_and(is_in)
        }
        RouteNetlinkMessage::NewRule(it) | RouteNetlinkMessage::DelRule(it) => {
            links.awaits || is_to_door(it)
        }
        _ => false,
    }
}

/// Whether a datagram concerns settings of one of these links, or of all.
fn are_settings_of(bytes: &[u8], links: &Links) -> bool {
    messages(bytes).any(|message| {
        let attributes = attributes(message.body.get(NETCONFMSG..).unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use podwire_ovs::client::ClientConfig;
    use rtnetlink::RouteMessageBuilder;

    use super::*;

    #[tokio::test]
    async fn who_stops_waiting_is_told_the_next_time() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let remote = format!("unix:{}/db.sock", directory.path().display());
        let remote: podwire_ovs::client::Remote = remote.parse().unwrap();
        let config = ClientConfig::new(remote, "Open_vSwitch", Vec::new());
        let client = Client::start(config);
        let clients = std::iter::once(&client);
        let mut events = Events::listen(clients, 0, std::slice::from_ref(&file), None).unwrap();
        std::fs::remove_file(&file).unwrap();
        for _ in 0..50 {
            // Less than it collects what comes together.
            let waited = tokio::time::timeout(TOGETHER / 5, events.next());
            // Where this thread was held up for as long as it collects.
            if let Ok(changes) = waited.await {
                assert!(changes.unwrap().kernel);
                return;
            }
        }
        let changes = tokio::time::timeout(Duration::from_secs(20), events.next());
        assert!(changes.await.unwrap().unwrap().kernel);
    }

    #[test]
    fn a_route_calls_for_a_look_only_if_it_may_concern_the_pod_network() {
        let (uplink, management) = (2, 7);
        let links = Links {
            names: BTreeSet::new(),
            own: vec![management],
            others: [uplink, management].into(),
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            awaits: false,
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
