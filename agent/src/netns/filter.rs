//! What the link monitor is not woken for: the making and changing of our own links, four
//! notifications for each ADD, on the heels of the thread that brings them about. Their end it is
//! told.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc::{self, sock_filter};

/// Where nlmsg_type stands in a datagram (`struct nlmsghdr`).
const NLMSG_TYPE: u32 = 4;
/// Where ifi_index stands behind it (`struct nlmsghdr`, `struct ifinfomsg`).
const IFI_INDEX: u32 = 20;

/// Drops RTM_NEWLINK of links whose index has this bit, before it is queued.
#[allow(
    unsafe_code,
    reason = "SO_ATTACH_FILTER takes a pointer; no safe wrapper exists"
)]
pub(super) fn drop_news_of(socket: &impl AsFd, index_bit: u32) -> io::Result<()> {
    let mut program = program(index_bit);
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the option's value is a sock_fprog, whose pointer and length are those of `program`;
    // the kernel copies both before it returns (net/core/filter.c, sk_attach_filter).
    let attached = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    match attached {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Classic BPF, which loads in network order what netlink has in the host's.
fn program(index_bit: u32) -> [sock_filter; 6] {
    const ALL: u32 = u32::MAX;
    const NOTHING: u32 = 0;
    let statement = |code: u32, k| sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |code: u32, k, jt, jf| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    [
        statement(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, NLMSG_TYPE),
        jump(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::RTM_NEWLINK.to_be().into(),
            0,
            2,
        ),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, IFI_INDEX),
        jump(
            libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K,
            index_bit.to_be(),
            1,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, ALL),
        statement(libc::BPF_RET | libc::BPF_K, NOTHING),
    ]
}
