//! A blocking netlink socket: sends a batch of requests, receives an answer for each.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::Refusal;
use super::wire::{Batch, Message, messages, verdict};

/// Fits the largest datagram of a dump (`NLMSG_GOODSIZE` to 32 KiB, `netlink_dump`).
const RECEIVE: usize = 32 * 1024;

/// The kernel executes a request inside `sendmsg`, and its answer is queued when that returns. If
/// it is not there, it was lost; waiting for ever would then block every later attachment.
const ANSWER_SECONDS: i64 = 10;

/// The maximum number of requests sent before their answers are read. Each answer takes some 800
/// bytes of the receive buffer (`netlink_ack`), and one that does not fit is lost (ENOBUFS): with
/// the kernel's default of 208 KiB that is the 277th.
const AT_ONCE: usize = 64;

/// How often a dump is repeated after a concurrent change (NLM_F_DUMP_INTR).
const DUMP_ATTEMPTS: usize = 5;

/// The answer to one request.
pub(super) type Outcome = Result<(), Refusal>;

/// A netlink socket, which stays in the namespace where it was opened, whichever thread uses it.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket for links, addresses and routes, in the calling thread's namespace.
    pub(super) fn route() -> io::Result<Netlink> {
        Netlink::open(netlink_sys::protocols::NETLINK_ROUTE)
    }

    /// A socket of any netlink protocol (`NETLINK_*`).
    pub(super) fn open(protocol: isize) -> io::Result<Netlink> {
        let socket = Socket::new(protocol)?;
        // Since 4.12 and 4.3; without them, only text is lost.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        // Since 4.20. Without it the kernel does not filter dumps; the readers filter in any case.
        let _ = socket.set_netlink_get_strict_chk(true);
        let patience = TimeVal::seconds(ANSWER_SECONDS);
        setsockopt(&socket.as_fd(), sockopt::ReceiveTimeout, &patience)?;
        // Destination 0 is the kernel; a connected socket also refuses messages from others.
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink {
            socket,
            sequence: 0,
            buffer: Vec::new(),
        })
    }

    /// Sends the requests and returns the kernel's answers, in order.
    ///
    /// If the socket itself fails, that is the result of each request without an answer: it may or
    /// may not have been executed.
    pub(super) fn apply(&mut self, batch: &mut Batch) -> Vec<Outcome> {
        let verdicts = self.fetch(batch, |_| None::<()>);
        verdicts
            .into_iter()
            .map(|verdict| verdict.map(drop))
            .collect()
    }

    /// Sends one request and returns the kernel's answer.
    pub(super) fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> Outcome {
        self.apply(&mut Batch::of(message, flags))
            .pop()
            .unwrap_or(Ok(()))
    }

    /// Like [`Self::apply`], for requests that each return one object: the result of `read` for
    /// each answer.
    pub(super) fn fetch<T>(
        &mut self,
        batch: &mut Batch,
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Vec<Result<Option<T>, Refusal>> {
        let mut results = Vec::with_capacity(batch.len());
        let first = self.number(batch);
        for (datagram, requests) in batch.datagrams(AT_ONCE) {
            let expected = results.len() + requests;
            if let Err(refusal) = self.exchange(datagram, first, expected, &mut results, &read) {
                results.resize_with(batch.len(), || Err(refusal.clone()));
                break;
            }
        }
        results
    }

    /// Sends requests numbered from `first`, and reads until there are `expected` results.
    fn exchange<T>(
        &mut self,
        datagram: &[u8],
        first: u32,
        expected: usize,
        results: &mut Vec<Result<Option<T>, Refusal>>,
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<(), Refusal> {
        retry_interrupted(|| self.socket.send(datagram, 0))?;
        let mut found = None;
        while results.len() < expected {
            self.receive(|message| {
                if message.sequence.wrapping_sub(first) as usize != results.len() {
                } else if message.kind == libc::NLMSG_ERROR as u16 {
                    let object = found.take();
                    results.push(verdict(&message).map(|()| object));
                } else {
                    found = read(&message);
                }
            })?;
        }
        Ok(())
    }

    /// Requests a list; `request` creates the request anew for each attempt.
    pub(super) fn dump<T>(
        &mut self,
        request: impl Fn() -> Batch,
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Refusal> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut list = Vec::new();
            let (mut upset, mut end) = (false, None);
            let mut request = request();
            let first = self.number(&mut request);
            retry_interrupted(|| self.socket.send(request.bytes(), 0))?;
            while end.is_none() {
                self.receive(|message| {
                    if message.sequence != first {
                        return;
                    }
                    upset |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                    match i32::from(message.kind) {
                        libc::NLMSG_DONE | libc::NLMSG_ERROR => end = Some(verdict(&message)),
                        _ => list.extend(read(&message)),
                    }
                })?;
            }
            end.unwrap_or(Ok(()))?;
            if !upset {
                return Ok(list);
            }
        }
        Err(Refusal::upset(DUMP_ATTEMPTS))
    }

    /// Numbers the requests, and returns the first number.
    fn number(&mut self, batch: &mut Batch) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(batch.len() as u32);
        batch.number(first);
        first
    }

    fn receive(&mut self, mut each: impl FnMut(Message<'_>)) -> Result<(), Refusal> {
        self.buffer.clear();
        self.buffer.reserve(RECEIVE);
        match retry_interrupted(|| self.socket.recv(&mut self.buffer, 0)) {
            Ok(_) => messages(&self.buffer).for_each(&mut each),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Refusal {
                    errno: Errno::ETIMEDOUT,
                    text: Some(format!("no answer from the kernel in {ANSWER_SECONDS} s")),
                });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
