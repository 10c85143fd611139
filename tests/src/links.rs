//! Links of a network namespace: what is there, and what has happened.

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use serde_json::Value;

use crate::failure::{Failure, Step};
use crate::node::run_in;
use crate::place::Place;

/// linux/rtnetlink.h
const RTNLGRP_LINK: u32 = 1;

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
pub fn list(place: &Place) -> Result<Vec<Link>, Failure> {
    let printed = run_in(place, "ip", &["-details", "-json", "link", "show"])?;
    let parsed: Vec<Value> = serde_json::from_str(&printed).step(|| "parse the output of ip")?;
    Ok(parsed.iter().map(link).collect())
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
pub struct LinkRecorder(Socket);

impl LinkRecorder {
    /// Starts to listen in `place`.
    pub fn start(place: &Place) -> Result<LinkRecorder, Failure> {
        place
            .run(|| {
                let mut socket = Socket::new(NETLINK_ROUTE)?;
                // The kernel drops messages that don't fit (ENOBUFS), which would be an error below.
                socket.set_rx_buf_sz(4 << 20)?;
                socket.set_non_blocking(true)?;
                socket.bind(&SocketAddr::new(0, 0))?;
                socket.add_membership(RTNLGRP_LINK)?;
                Ok(LinkRecorder(socket))
            })?
            .map_err(|error: std::io::Error| error)
            .step(|| "listen to link messages")
    }

    /// The messages since the last call. The kernel queues a message before the request that
    /// causes it returns, so what a finished ADD did is here in full.
    pub fn events(&self) -> Result<Vec<LinkEvent>, Failure> {
        let mut events = Vec::new();
        loop {
            let datagram = match self.0.recv_from_full() {
                Ok((datagram, _)) => datagram,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(events),
                Err(error) => return Err(error).step(|| "read link messages"),
            };
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram)
                .map_err(std::io::Error::other)
                .step(|| "parse a link message")?;
            events.extend(event(message.payload));
        }
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
