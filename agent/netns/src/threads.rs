//! This module's threads, and their queues.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::attach::{Attachment, Wiring};
use super::conntrack::{self, Flush};
use super::monitor::{Links, Monitor, Stopper};
use super::ns::Home;
use super::realtime::RealTime;
use super::reaper::{self, Reaper};
use super::{Error, Refusal, socket};

/// A read for the reading thread; the closure sends the result.
pub(super) type Read = Box<dyn FnOnce(&mut Reader) + Send>;

/// The reading thread's state.
pub(super) struct Reader {
    /// The way back from a pod's namespace.
    pub(super) home: Home,
    /// The host's links.
    pub(super) host: socket::Netlink,
    /// Leads to the thread that closes packet sockets.
    pub(super) closer: Sender<OwnedFd>,
}

/// The near ends of the threads' queues. Dropping this ends the threads, each after its queued
/// work.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) attachments: Sender<Box<Attachment>>,
    pub(super) reads: Sender<Read>,
    pub(super) flushes: Sender<Flush>,
    pub(super) links: Arc<Links>,
    pub(super) reaper: Arc<Reaper>,
    stopper: Stopper,
}

impl Threads {
    /// Opens every socket, and starts the threads once all are open.
    pub(super) fn start(real_time: Option<RealTime>) -> Result<Threads, Error> {
        let home = || Home::of_this_thread().map_err(opening("own namespace"));
        let route = || socket::Netlink::route().map_err(opening("route"));
        let (monitor, stopper) = Monitor::new().map_err(opening("link notification"))?;
        let links = monitor.links();
        let reaper = Reaper::new(links.clone());
        let reaper_sockets = reaper::sockets().map_err(opening("route"))?;
        let (closer, to_close) = channel::<OwnedFd>();
        let wiring = Wiring::new(home()?, route()?, reaper.clone(), closer.clone());
        let reader = Reader {
            home: home()?,
            host: route()?,
            closer,
        };
        let conntrack = socket::Netlink::open(netlink_sys::protocols::NETLINK_NETFILTER).ok();

        let (attachments, to_make) = channel();
        let (reads, to_read) = channel();
        let (flushes, to_flush) = channel();
        // From here on, a failure drops this, which ends the running threads.
        let threads = Threads {
            attachments,
            reads,
            flushes,
            links,
            reaper,
            stopper,
        };
        spawn("podwire-netlink", move || make(wiring, &to_make))?;
        // Only that thread has inherited it.
        let left = real_time.map_or(Ok(()), RealTime::leave);
        left.map_err(|errno| Error::StartThread {
            thread: "podwire-links",
            refusal: errno.into(),
        })?;
        spawn("podwire-links", move || monitor.run())?;
        spawn("podwire-observe", move || read(reader, &to_read))?;
        spawn("podwire-close", move || to_close.into_iter().for_each(drop))?;
        spawn("podwire-flush", move || {
            conntrack::run(conntrack, &to_flush)
        })?;
        for socket in reaper_sockets {
            let reaper = threads.reaper.clone();
            spawn("podwire-reaper", move || reaper.run(socket))?;
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stopper.stop();
        self.reaper.close();
    }
}

/// The netlink thread. Each attachment is finished before the next begins. Creating all waiting
/// pairs first would give Open vSwitch a median pair 7 % sooner in a burst of 16, but each pod its
/// addresses 60 % later.
fn make(mut wiring: Wiring, attachments: &Receiver<Box<Attachment>>) {
    while let Ok(attachment) = attachments.recv() {
        wiring.attach(*attachment);
    }
}

fn read(mut reader: Reader, reads: &Receiver<Read>) {
    while let Ok(read) = reads.recv() {
        read(&mut reader);
    }
}

fn spawn(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| Error::StartThread {
            thread: name,
            refusal: error.into(),
        })
}

fn opening<E: Into<Refusal>>(what: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::OpenSocket {
        what,
        refusal: error.into(),
    }
}
