//! Removes conntrack entries: those of a deleted pod, so that the next pod with its address does
//! not inherit its connections; and those of UDP services' clients to deleted endpoints, who would
//! never reach another one (an entry is kept for as long as packets arrive). It also lists the
//! connections that the host translates.
//!
//! The kernel deletes one entry by its tuple, or all of them, never by address
//! (`ctnetlink_flush_conntrack` answers CTA_FILTER with EOPNOTSUPP). So the entries are listed, and
//! those of the pod deleted one by one. A list walks every bucket of the kernel's table, used or
//! not, of which a node has 65 536 or more: 10 ms here. Therefore one walk serves all waiting
//! requests, and an empty table is not walked. Only if the table is so full that reading it would
//! take longer than walking it several times, the kernel filters, with one walk for each address
//! and direction.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Receiver;

use nix::errno::Errno;
use nix::libc;
use tokio::sync::oneshot;

use super::socket::Netlink;
use super::wire::{Batch, Message, attribute, ip, put, put_nested};
use super::{Error, Refusal};

/// Number of entries in the calling thread's namespace, and number of buckets of the kernel's
/// table; absent while it has no conntrack.
const ENTRIES: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const BUCKETS: &str = "/proc/sys/net/netfilter/nf_conntrack_buckets";

/// The time to read one entry, in walks over one bucket (2.2 µs and 40 ns, kernel 6.18).
const BUCKETS_PER_ENTRY: usize = 55;

/// linux/netfilter/nfnetlink_conntrack.h; libc has no names for these.
const IPCTNL_MSG_CT_NEW: u16 = 0;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
const CTA_FILTER_F_CTA_IP_SRC: u32 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V6_SRC: u16 = 3;
const SOURCE: [u16; 3] = [CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_SRC_PORT];
const DESTINATION: [u16; 3] = [CTA_IP_V4_DST, CTA_IP_V6_DST, CTA_PROTO_DST_PORT];
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// `struct nfgenmsg`: family, version and a resource id, before the attributes.
const NFGENMSG: usize = 4;

/// Addresses whose entries have to be removed, and the receiver of their number.
pub(super) struct Flush {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) done: oneshot::Sender<Result<usize, Error>>,
}

/// The conntrack thread's main function. `socket` is None if the kernel has no nfnetlink.
pub(super) fn run(mut socket: Option<Netlink>, requests: &Receiver<Flush>) {
    while let Ok(first) = requests.recv() {
        let together: Vec<Flush> = std::iter::once(first).chain(requests.try_iter()).collect();
        let mut removed: HashMap<IpAddr, usize> = together
            .iter()
            .flat_map(|flush| &flush.addresses)
            .map(|ip| (*ip, 0))
            .collect();
        let result = match (&mut socket, Plan::for_addresses(removed.len())) {
            (Some(socket), Some(plan)) => flush(socket, plan, &mut removed),
            _ => Ok(()),
        };
        for Flush { addresses, done } in together {
            let count = addresses.iter().filter_map(|ip| removed.get(ip)).sum();
            let _ = done.send(
                result
                    .clone()
                    .map(|()| count)
                    .map_err(|refusal| Error::FlushConntrack { addresses, refusal }),
            );
        }
    }
}

/// How to find the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// One walk that reads every entry.
    ReadAll,
    /// Two walks for each address, which read only matching entries. A kernel before 5.8 does not
    /// filter, and the entries are checked here in any case.
    Filter,
}

impl Plan {
    /// The cheaper plan for this number of addresses; None if there are no entries.
    fn for_addresses(addresses: usize) -> Option<Plan> {
        // If the number is unknown, look.
        let entries = number_in(ENTRIES).unwrap_or(1);
        let buckets = number_in(BUCKETS).unwrap_or(usize::MAX);
        Plan::cheapest(addresses, entries, buckets)
    }

    pub(super) fn cheapest(addresses: usize, entries: usize, buckets: usize) -> Option<Plan> {
        let more_walks = (2 * addresses).saturating_sub(1).saturating_mul(buckets);
        match (addresses, entries) {
            (0, _) | (_, 0) => None,
            _ if entries.saturating_mul(BUCKETS_PER_ENTRY) > more_walks => Some(Plan::Filter),
            _ => Some(Plan::ReadAll),
        }
    }
}

fn number_in(file: &str) -> Option<usize> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Removes the entries of all these addresses, and returns their number.
pub(super) fn flush(
    socket: &mut Netlink,
    plan: Plan,
    removed: &mut HashMap<IpAddr, usize>,
) -> Result<(), Refusal> {
    let requests = match plan {
        Plan::ReadAll => vec![vec![0; NFGENMSG]],
        Plan::Filter => removed.keys().flat_map(|ip| filters(*ip)).collect(),
    };
    for request in requests {
        let entries = list(socket, &request, |tuples| {
            let mut sources = tuples.into_iter().filter_map(source);
            sources.find(|source| removed.contains_key(source))
        })?;
        delete(socket, &entries, |address| {
            *removed.entry(*address).or_default() += 1
        })?;
    }
    Ok(())
}

/// The two requests for the entries that have this address as the source of their original
/// direction, or of their reply.
fn filters(address: IpAddr) -> [Vec<u8>; 2] {
    let (family, attribute, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, CTA_IP_V4_SRC, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, CTA_IP_V6_SRC, v6.octets().to_vec()),
    };
    let directions = [
        (CTA_TUPLE_ORIG, CTA_FILTER_ORIG_FLAGS),
        (CTA_TUPLE_REPLY, CTA_FILTER_REPLY_FLAGS),
    ];
    directions.map(|(tuple, flags)| {
        let mut request = vec![family as u8, 0, 0, 0];
        put_nested(&mut request, tuple, |tuple| {
            put_nested(tuple, CTA_TUPLE_IP, |ip| put(ip, attribute, &octets));
        });
        put_nested(&mut request, CTA_FILTER, |filter| {
            put(filter, flags, &CTA_FILTER_F_CTA_IP_SRC.to_ne_bytes());
        });
        request
    })
}

/// The entries of which `of` says something, by their tuples: the original and the reply's.
fn list<T>(
    socket: &mut Netlink,
    request: &[u8],
    of: impl Fn([&[u8]; 2]) -> Option<T>,
) -> Result<Vec<(T, Vec<u8>)>, Refusal> {
    let dump = || {
        let mut batch = Batch::default();
        batch.push_raw(kind(IPCTNL_MSG_CT_GET), libc::NLM_F_DUMP as u16, request);
        batch
    };
    socket.dump(dump, |message| entry_of(message, &of))
}

fn delete<T>(
    socket: &mut Netlink,
    entries: &[(T, Vec<u8>)],
    mut deleted: impl FnMut(&T),
) -> Result<(), Refusal> {
    let mut batch = Batch::default();
    entries
        .iter()
        .for_each(|(_, entry)| batch.push_raw(kind(IPCTNL_MSG_CT_DELETE), 0, entry));
    for ((of, _), outcome) in entries.iter().zip(socket.apply(&mut batch)) {
        match outcome {
            Ok(()) => deleted(of),
            // It has expired since it was listed.
            Err(refusal) if refusal.errno == Errno::ENOENT => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

/// What `of` says of an entry's tuples, and the message that deletes it.
fn entry_of<T>(
    message: &Message<'_>,
    of: impl FnOnce([&[u8]; 2]) -> Option<T>,
) -> Option<(T, Vec<u8>)> {
    if message.kind != kind(IPCTNL_MSG_CT_NEW) {
        return None;
    }
    let header = message.body.get(..NFGENMSG)?;
    let entry = &message.body[NFGENMSG..];
    let original = attribute(entry, CTA_TUPLE_ORIG)?;
    let reply = attribute(entry, CTA_TUPLE_REPLY).unwrap_or_default();
    let wanted = of([original, reply])?;
    // The tuple and its zone find the entry; its id ensures that it is the listed one.
    let mut delete = header.to_vec();
    put(
        &mut delete,
        CTA_TUPLE_ORIG | libc::NLA_F_NESTED as u16,
        original,
    );
    for kind in [CTA_ZONE, CTA_ID] {
        if let Some(value) = attribute(entry, kind) {
            put(&mut delete, kind, value);
        }
    }
    Some((wanted, delete))
}

/// Removes the entries of UDP clients of these frontends that lead to none of their endpoints, and
/// returns their number. It blocks, for as long as the kernel takes to list its table.
///
/// # Errors
/// The kernel's.
pub fn forget_endpoints(
    frontends: &BTreeMap<SocketAddr, Vec<SocketAddr>>,
) -> Result<usize, Refusal> {
    let mut socket = Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER)?;
    let stale = list(&mut socket, &[0; NFGENMSG], |[original, reply]| {
        let endpoints = frontends.get(&udp_end(original, DESTINATION)?)?;
        let is_stale = !endpoints.contains(&udp_end(reply, SOURCE)?);
        is_stale.then_some(())
    })?;
    let mut count = 0;
    delete(&mut socket, &stale, |()| count += 1)?;
    Ok(count)
}

/// A connection of which the host translates an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Translated {
    /// By its number.
    pub protocol: u8,
    /// Who has begun it.
    pub client: SocketAddr,
    /// With whom, as the client says.
    pub server: SocketAddr,
    /// The client's address as the server sees it.
    pub source: IpAddr,
    /// Who answers: the server, or whom the host leads its clients to.
    pub endpoint: SocketAddr,
}

/// The connections that the host translates. Those in zones of Open vSwitch's are not the host's.
/// It blocks, for as long as the kernel takes to list its table.
///
/// # Errors
/// The kernel's.
pub fn translated() -> Result<Vec<Translated>, Refusal> {
    let mut socket = Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER)?;
    let found = list(&mut socket, &[0; NFGENMSG], |[original, reply]| {
        let (protocol, client) = end(original, SOURCE)?;
        let (_, server) = end(original, DESTINATION)?;
        let (_, seen) = end(reply, DESTINATION)?;
        let (_, endpoint) = end(reply, SOURCE)?;
        let found = Translated {
            protocol,
            client,
            server,
            source: seen.ip(),
            endpoint,
        };
        (seen != client || endpoint != server).then_some(found)
    })?;
    let is_hosts = |entry: &[u8]| attribute(&entry[NFGENMSG..], CTA_ZONE).is_none();
    let found = found.into_iter().filter(|(_, entry)| is_hosts(entry));
    Ok(found.map(|(found, _)| found).collect())
}

/// One end of a tuple of UDP.
fn udp_end(tuple: &[u8], fields: [u16; 3]) -> Option<SocketAddr> {
    let (protocol, end) = end(tuple, fields)?;
    (i32::from(protocol) == libc::IPPROTO_UDP).then_some(end)
}

/// One end of a tuple of a protocol with ports, and the protocol's number.
fn end(tuple: &[u8], [v4, v6, port]: [u16; 3]) -> Option<(u8, SocketAddr)> {
    let protocol = attribute(tuple, CTA_TUPLE_PROTO)?;
    let number = *attribute(protocol, CTA_PROTO_NUM)?.first()?;
    let port = attribute(protocol, port)?.try_into().ok()?;
    let end = SocketAddr::new(address(tuple, v4, v6)?, u16::from_be_bytes(port));
    Some((number, end))
}

/// The address that an entry belongs to by one of its tuples.
///
/// A connection from a pod has the pod as the source of its original direction, one to a pod as the
/// source of its reply; this holds whatever NAT does to the other side.
fn source(tuple: &[u8]) -> Option<IpAddr> {
    address(tuple, CTA_IP_V4_SRC, CTA_IP_V6_SRC)
}

fn address(tuple: &[u8], v4: u16, v6: u16) -> Option<IpAddr> {
    let addresses = attribute(tuple, CTA_TUPLE_IP)?;
    let found = attribute(addresses, v4).or_else(|| attribute(addresses, v6));
    found.and_then(ip)
}

fn kind(of_conntrack: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | of_conntrack
}
