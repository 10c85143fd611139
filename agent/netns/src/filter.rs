//! A packet socket's filter (classic BPF, socket(7), SO_ATTACH_FILTER): the kernel drops what does
//! not say that a neighbour has one of some addresses.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::libc::{
    self, BPF_ABS, BPF_B, BPF_JA, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter,
};

use super::announce::PacketSocket;

/// Where the sender's address is in an ARP packet (RFC 826).
const ARP_SENDER: u32 = 14;
/// Where an IPv6 packet has its next header and its source, and an ICMPv6 message in it its type
/// and the target of an advertisement (RFC 8200; RFC 4861 §4.4).
const NEXT_HEADER: u32 = 6;
const SOURCE: u32 = 8;
const TYPE: u32 = 40;
const TARGET: u32 = 48;
const ICMPV6: u32 = 58;
const SOLICITATION: u32 = 135;
const ADVERTISEMENT: u32 = 136;

/// The most addresses that one filter has; a program has 4,096 instructions (BPF_MAXINSNS).
const MOST_ADDRESSES: usize = 128;

/// The filter for the first [`MOST_ADDRESSES`] of these, which are of one family: of IPv4 for a
/// socket of ARP packets, which takes any with such a sender; of IPv6 for one of IPv6 packets,
/// which takes neighbour advertisements of such a target, and solicitations from such a source.
pub(super) fn claims(addresses: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = Vec::new();
    if addresses.iter().any(IpAddr::is_ipv6) {
        // Most packets end here.
        program.extend([load(BPF_B, NEXT_HEADER), over_unless(ICMPV6, 1)]);
        program.extend([instruction(BPF_JMP | BPF_JA, 0, 1), verdict(NONE)]);
    }
    for address in addresses.iter().take(MOST_ADDRESSES) {
        match *address {
            IpAddr::V4(address) => take_if(&mut program, &[(BPF_W, ARP_SENDER, address.into())]),
            IpAddr::V6(address) => {
                take_if(&mut program, &message(ADVERTISEMENT, TARGET, address));
                take_if(&mut program, &message(SOLICITATION, SOURCE, address));
            }
        }
    }
    program.push(verdict(NONE));
    program
}

/// What a packet of this type with this address there has.
fn message(kind: u32, at: u32, address: Ipv6Addr) -> [(u32, u32, u32); 5] {
    let bits = address.to_bits();
    let word = |n: u32| (BPF_W, at + 4 * n, (bits >> (96 - 32 * n)) as u32);
    [(BPF_B, TYPE, kind), word(0), word(1), word(2), word(3)]
}

/// Takes the packet if it has all these values, each of which has its size and place.
fn take_if(program: &mut Vec<sock_filter>, values: &[(u32, u32, u32)]) {
    for (n, &(size, at, value)) in values.iter().enumerate() {
        // Over the comparisons that follow, two instructions each, and the verdict.
        let rest = 2 * (values.len() - 1 - n) + 1;
        program.extend([load(size, at), over_unless(value, rest as u8)]);
    }
    program.push(verdict(ALL));
}

fn load(size: u32, at: u32) -> sock_filter {
    instruction(BPF_LD | size | BPF_ABS, 0, at)
}

/// Passes over so many instructions unless what was loaded is this.
fn over_unless(value: u32, over: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JEQ | BPF_K, over, value)
}

/// How many bytes of the packet are taken.
const ALL: u32 = u32::MAX;
const NONE: u32 = 0;

fn verdict(bytes: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, 0, bytes)
}

fn instruction(code: u32, jf: u8, k: u32) -> sock_filter {
    let (code, jt) = (code as u16, 0);
    sock_filter { code, jt, jf, k }
}

/// Attaches a filter to a socket.
#[allow(unsafe_code, reason = "nix has no SO_ATTACH_FILTER")]
pub(super) fn attach(socket: &PacketSocket, filter: &[sock_filter]) -> nix::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::EINVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    let length = size_of_val(&program) as libc::socklen_t;
    // SAFETY: `program` is a whole sock_fprog, and it and the instructions that it points to
    // outlive the call, which copies them (`sk_attach_filter`).
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    Errno::result(set).map(drop)
}
