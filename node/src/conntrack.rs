//! Removes connections of UDP services to deleted endpoints: otherwise a client that keeps sending
//! would never reach another endpoint (nf_conntrack keeps an entry for as long as packets arrive).

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, TokioSocket};
use nix::libc;

use crate::wire::{NESTED, NFGENMSG, attribute, messages, put, request};

/// linux/netfilter/nfnetlink_conntrack.h.
const GET: u16 = (1 << 8) | 1;
const DELETE: u16 = (1 << 8) | 2;
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_SRC: [u16; 2] = [1, 3];
const IP_DST: [u16; 2] = [2, 4];
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;

/// Removes the entries of UDP clients of these frontends that lead to none of their endpoints, and
/// returns their number.
///
/// # Errors
/// The kernel's.
pub(crate) async fn forget(frontends: &BTreeMap<SocketAddr, Vec<SocketAddr>>) -> io::Result<usize> {
    if frontends.is_empty() {
        return Ok(0);
    }
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    socket.socket_mut().bind_auto()?;
    let dump = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    socket.send(&request(GET, dump, &[0; NFGENMSG])).await?;
    let mut stale = Vec::new();
    'all: loop {
        let (bytes, _) = socket.recv_from_full().await?;
        for (kind, _, message) in messages(&bytes) {
            if i32::from(kind) == libc::NLMSG_DONE || i32::from(kind) == libc::NLMSG_ERROR {
                break 'all;
            }
            stale.extend(stale_entry(message, frontends));
        }
    }
    for entry in &stale {
        let ack = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        socket.send(&request(DELETE, ack, entry)).await?;
        // For one that has expired meanwhile, the answer is ENOENT, which is fine.
        socket.recv_from_full().await?;
    }
    Ok(stale.len())
}

/// The request that deletes this entry, if it leads to no endpoint.
fn stale_entry(
    message: &[u8],
    frontends: &BTreeMap<SocketAddr, Vec<SocketAddr>>,
) -> Option<Vec<u8>> {
    let (header, entry) = message.split_at_checked(NFGENMSG)?;
    let original = attribute(entry, TUPLE_ORIG)?;
    let to = end(original, IP_DST, PROTO_DST_PORT)?;
    let from = end(attribute(entry, TUPLE_REPLY)?, IP_SRC, PROTO_SRC_PORT)?;
    let endpoints = frontends.get(&to)?;
    if endpoints.contains(&from) {
        return None;
    }
    let mut content = header.to_vec();
    put(&mut content, TUPLE_ORIG | NESTED, original);
    for kind in [ID, ZONE] {
        if let Some(value) = attribute(entry, kind) {
            put(&mut content, kind, value);
        }
    }
    Some(content)
}

/// One end of a UDP tuple.
fn end(tuple: &[u8], ip: [u16; 2], port: u16) -> Option<SocketAddr> {
    let protocol = attribute(tuple, TUPLE_PROTO)?;
    if attribute(protocol, PROTO_NUM)? != [libc::IPPROTO_UDP as u8] {
        return None;
    }
    let addresses = attribute(tuple, TUPLE_IP)?;
    let address = ip.iter().find_map(|kind| attribute(addresses, *kind))?;
    let address: IpAddr = match address.len() {
        4 => <[u8; 4]>::try_from(address).ok()?.into(),
        _ => <[u8; 16]>::try_from(address).ok()?.into(),
    };
    let port = attribute(protocol, port)?.try_into().ok()?;
    Some(SocketAddr::new(address, u16::from_be_bytes(port)))
}
