//! Links of a network namespace: their state, and their changes.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Instant;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::failure::{Failure, OrFail, Step};
use crate::node::{DAEMON_LIMIT, run_in};
use crate::place::Place;
use crate::words::Words;

// linux/rtnetlink.h
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;

/// A link as `ip -details -json link` tells it.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u64,
    /// `veth`, `tun`, …; `None` for lo.
    pub kind: Option<String>,
    /// Its MAC address.
    pub mac: String,
    /// Its MTU.
    pub mtu: u64,
    /// Whether it is administratively up.
    pub up: bool,
}

/// All links of a place.
#[track_caller]
pub fn list(place: &Place) -> Vec<Link> {
    let shown = json(place, "-details -json link show").or_fail();
    shown
        .as_array()
        .map(|links| links.iter().map(link).collect())
        .unwrap_or_default()
}

fn link(shown: &Value) -> Link {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Link {
        name: text(&shown["ifname"]).unwrap_or_default(),
        index: shown["ifindex"].as_u64().unwrap_or_default(),
        kind: text(&shown["linkinfo"]["info_kind"]),
        mac: text(&shown["address"]).unwrap_or_default(),
        mtu: shown["mtu"].as_u64().unwrap_or_default(),
        up: shown["flags"]
            .as_array()
            .is_some_and(|flags| flags.contains(&Value::from("UP"))),
    }
}

/// One link of a place; `None` when there is none of this name.
#[track_caller]
pub fn find(place: &Place, name: &str) -> Option<Link> {
    list(place).into_iter().find(|link| link.name == name)
}

/// The MAC address of a link, which must exist.
#[track_caller]
pub fn mac(place: &Place, name: &str) -> [u8; 6] {
    let link = find(place, name).expect("the link exists");
    let bytes = link.mac.split(':').map(|it| u8::from_str_radix(it, 16));
    let bytes: Result<Vec<u8>, _> = bytes.collect();
    let bytes = bytes.expect("ip prints it in hexadecimal digits");
    bytes.try_into().expect("Ethernet's has six bytes")
}

/// The addresses of a link with their prefix lengths, but for IPv6 link-local ones, sorted.
#[track_caller]
pub fn addresses(place: &Place, link: &str) -> Vec<String> {
    let shown = json(place, format!("-json address show dev {link}")).or_fail();
    addresses_in(&shown[0])
}

fn addresses_in(shown: &Value) -> Vec<String> {
    let all = shown["addr_info"].as_array().into_iter().flatten();
    let wanted = all.filter(|address| address["scope"] != "link");
    let mut addresses: Vec<String> = wanted
        .map(|address| {
            format!(
                "{}/{}",
                address["local"].as_str().unwrap_or_default(),
                address["prefixlen"]
            )
        })
        .collect();
    addresses.sort();
    addresses
}

/// The first of a link's [`addresses`], without its prefix length.
#[track_caller]
pub fn first_address(place: &Place, link: &str) -> IpAddr {
    let all = addresses(place, link);
    let first = all.first().and_then(|first| first.split('/').next());
    first
        .and_then(|first| first.parse().ok())
        .ok_or_else(|| Failure::Unlike {
            object: format!("the addresses of {link}"),
            expected: "at least one".into(),
            seen: format!("{all:?}"),
        })
        .or_fail()
}

/// The MAC address that a place has learnt for a neighbour; `None` when it knows none.
#[track_caller]
pub fn neighbour(place: &Place, address: IpAddr) -> Option<String> {
    let shown = json(place, format!("-json neighbour show {address}")).or_fail();
    shown[0]["lladdr"].as_str().map(str::to_owned)
}

/// Waits until a link is there, is up and has all of these addresses.
#[track_caller]
pub fn await_addresses(place: &Place, link: &str, wanted: &[&str]) {
    let groups = [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
    let changes = listen(place, &groups).or_fail();
    let until = Instant::now() + DAEMON_LIMIT;
    loop {
        while next(&changes).or_fail().is_some() {}
        // All links, for one that was asked for by name may be gone by then, which is an error.
        let shown = json(place, "-json address show").or_fail();
        let all = shown.as_array().into_iter().flatten();
        let seen = all
            .filter(|seen| seen["ifname"] == link)
            .collect::<Vec<_>>();
        let is_wanted = |seen: &Value| {
            let has = addresses_in(seen);
            self::link(seen).up && wanted.iter().all(|it| has.iter().any(|has| has == it))
        };
        if seen.iter().any(|seen| is_wanted(seen)) {
            return;
        }
        if !comes(&changes, until).or_fail() {
            panic!("waited {DAEMON_LIMIT:?} for {wanted:?} on link {link}; instead: {seen:?}");
        }
    }
}

/// Waits until a link has a link-local address that can be used.
#[track_caller]
pub fn await_link_local(place: &Place, link: &str) -> Ipv6Addr {
    let changes = listen(place, &[RTNLGRP_IPV6_IFADDR]).or_fail();
    let until = Instant::now() + DAEMON_LIMIT;
    loop {
        while next(&changes).or_fail().is_some() {}
        let shown = json(
            place,
            format!("-6 -json address show dev {link} scope link -tentative"),
        )
        .or_fail();
        let all = shown[0]["addr_info"].as_array().into_iter().flatten();
        let mut usable = all.filter_map(|it| it["local"].as_str()?.parse().ok());
        if let Some(address) = usable.next() {
            return address;
        }
        if !comes(&changes, until).or_fail() {
            panic!(
                "waited {DAEMON_LIMIT:?} for a link-local address on link {link}; instead: {shown}"
            );
        }
    }
}

/// Waits until a place has a default route that a router advertised.
#[track_caller]
pub fn await_router(place: &Place) {
    let changes = listen(place, &[RTNLGRP_IPV6_ROUTE]).or_fail();
    let until = Instant::now() + DAEMON_LIMIT;
    loop {
        while next(&changes).or_fail().is_some() {}
        let routes = routes(place, "-6");
        let is_routers = |it: &Value| it["dst"] == "default" && it["protocol"] == "ra";
        if routes.iter().any(is_routers) {
            return;
        }
        if !comes(&changes, until).or_fail() {
            panic!("waited {DAEMON_LIMIT:?} for a router's default route; instead: {routes:?}");
        }
    }
}

/// The routes of the main table that somebody asked for, as `ip` writes them: those of one family,
/// without the kernel's own.
#[track_caller]
pub fn routes(place: &Place, family: &str) -> Vec<Value> {
    let shown = json(place, format!("-json {family} route show")).or_fail();
    let all = shown.as_array().cloned().unwrap_or_default();
    all.into_iter()
        .filter(|route| route["protocol"] != "kernel")
        .collect()
}

fn json(place: &Place, arguments: impl Words) -> Result<Value, Failure> {
    let printed = run_in(place, "ip", arguments)?;
    // ip prints nothing at all where there is nothing to list.
    let printed = if printed.trim().is_empty() {
        "[]"
    } else {
        printed.as_str()
    };
    serde_json::from_str(printed).step(|| "parse the output of ip")
}

/// A message of the kernel's RTNLGRP_LINK group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    /// What the message tells.
    pub change: Change,
    /// The link's index.
    pub index: u32,
    /// The name it had then.
    pub name: String,
}

/// The type of a link message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// RTM_NEWLINK: made, or something about it changed.
    New,
    /// RTM_DELLINK: gone from this namespace, by deletion or by a move to another.
    Gone,
}

/// Records every link message of one network namespace from its creation on.
#[derive(Debug)]
pub struct LinkRecorder {
    socket: Socket,
    /// What has come and nobody has asked for yet, in order.
    unread: RefCell<Vec<LinkEvent>>,
}

impl LinkRecorder {
    /// Starts to listen in `place`.
    #[track_caller]
    pub fn start(place: &Place) -> LinkRecorder {
        LinkRecorder {
            socket: listen(place, &[RTNLGRP_LINK]).or_fail(),
            unread: RefCell::default(),
        }
    }

    /// Waits until a link of this name is there. Messages about it up to then are consumed; those
    /// about others stay, for they may have come at the same time.
    #[track_caller]
    pub fn await_born(&self, name: &str) {
        self.await_change(name, Change::New).or_fail();
    }

    /// Waits until a link of this name has gone, as [`LinkRecorder::await_born`].
    #[track_caller]
    pub fn await_gone(&self, name: &str) {
        self.await_change(name, Change::Gone).or_fail();
    }

    fn await_change(&self, name: &str, change: Change) -> Result<(), Failure> {
        let until = Instant::now() + DAEMON_LIMIT;
        loop {
            self.receive()?;
            if self.take(name, change) {
                return Ok(());
            }
            if !comes(&self.socket, until)? {
                return Err(Failure::Deadline {
                    awaited: format!("{change:?} of link {name}"),
                    waited: DAEMON_LIMIT,
                    seen: format!("{:?}", self.unread.borrow()),
                });
            }
        }
    }

    /// Consumes the messages about a link up to the first of this change; false when there is none.
    fn take(&self, name: &str, change: Change) -> bool {
        let mut unread = self.unread.borrow_mut();
        let of_link = |event: &LinkEvent| event.name == name;
        let Some(found) = unread
            .iter()
            .position(|event| of_link(event) && event.change == change)
        else {
            return false;
        };
        let later = unread.split_off(found + 1);
        unread.retain(|event| !of_link(event));
        unread.extend(later);
        true
    }

    /// The messages that were not consumed yet. The kernel queues a message before the request that
    /// causes it returns, so what a finished ADD did is here in full.
    #[track_caller]
    pub fn events(&self) -> Vec<LinkEvent> {
        self.receive().or_fail();
        self.unread.take()
    }

    /// Reads what the kernel has queued.
    fn receive(&self) -> Result<(), Failure> {
        while let Some(datagram) = next(&self.socket)? {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram)
                .map_err(std::io::Error::other)
                .step(|| "parse a link message")?;
            self.unread.borrow_mut().extend(event(message.payload));
        }
        Ok(())
    }
}

/// A socket for the kernel's messages of these groups about a place.
fn listen(place: &Place, groups: &[u32]) -> Result<Socket, Failure> {
    let open = || {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        // The kernel drops messages that don't fit (ENOBUFS), which would be an error when reading.
        socket.set_rx_buf_sz(4 << 20)?;
        socket.set_non_blocking(true)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok::<_, std::io::Error>(socket)
    };
    place.run(open).step(|| "listen to netlink messages")
}

/// Waits for a message; false when none has come by then.
fn comes(socket: &Socket, until: Instant) -> Result<bool, Failure> {
    let left = until.saturating_duration_since(Instant::now());
    let fds = &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
    Ok(!left.is_zero() && poll(fds, timeout).step(|| "wait for netlink messages")? > 0)
}

/// The next message that the kernel has queued.
fn next(socket: &Socket) -> Result<Option<Vec<u8>>, Failure> {
    match socket.recv_from_full() {
        Ok((datagram, _)) => Ok(Some(datagram)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).step(|| "read netlink messages"),
    }
}

fn event(payload: NetlinkPayload<RouteNetlinkMessage>) -> Option<LinkEvent> {
    let (change, link) = match payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => (Change::New, link),
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => (Change::Gone, link),
        _ => return None,
    };
    let name = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
    Some(LinkEvent {
        change,
        index: link.header.index,
        name,
    })
}

/// The links that IPv4 default routes go by.
#[track_caller]
pub fn default_routes(place: &Place) -> Vec<String> {
    let routes = routes(place, "-4");
    let of_default = routes.iter().filter(|route| route["dst"] == "default");
    of_default
        .filter_map(|route| route["dev"].as_str().map(str::to_owned))
        .collect()
}
