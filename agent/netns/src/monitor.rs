//! The state of the host's links, kept current by the kernel's notifications (RTNLGRP_LINK), and
//! the waiters for changes.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netlink_sys::{Socket, SocketAddr};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::sync::{broadcast, watch};

use super::socket::Outcome;
use super::wire::{Batch, messages};
use super::{LinkState, answer, request, socket};

/// Room for some thousand notifications; a node that restarts its pods causes that many while the
/// thread waits for a CPU.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A notification is one message of at most this (`NLMSG_GOODSIZE`, or a page).
const RECEIVE: usize = 32 * 1024;

/// The links of the host's namespace, as last reported by the kernel.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<Table>);

#[derive(Debug)]
struct Table {
    by_index: HashMap<u32, LinkState>,
    watches: HashMap<String, watch::Sender<Option<LinkState>>>,
    awaited_ends: HashMap<u32, Vec<WhenGone>>,
    /// Notified of each change of any link.
    changes: watch::Sender<()>,
    /// Receives the name of each removed link.
    departures: broadcast::Sender<String>,
}

/// Names of removed links that wait for a slow reader, who learns if there were more.
const DEPARTURES: usize = 1024;

impl Default for Table {
    fn default() -> Self {
        Self {
            by_index: HashMap::new(),
            watches: HashMap::new(),
            awaited_ends: HashMap::new(),
            changes: watch::Sender::default(),
            departures: broadcast::Sender::new(DEPARTURES),
        }
    }
}

/// Called when a link is gone, or can't be removed.
pub(super) struct WhenGone(Box<dyn FnOnce(Outcome) + Send>);

impl WhenGone {
    pub(super) fn new(call: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self(Box::new(call))
    }

    pub(super) fn call(self, outcome: Outcome) {
        (self.0)(outcome);
    }
}

impl fmt::Debug for WhenGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WhenGone")
    }
}

impl Links {
    /// A notification of later changes of any link.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.table().changes.subscribe()
    }

    /// The names of the links removed from now on.
    pub(super) fn departures(&self) -> broadcast::Receiver<String> {
        self.table().departures.subscribe()
    }

    /// The latest state of the link with that name, from now on.
    pub(super) fn watch(&self, name: &str) -> watch::Receiver<Option<LinkState>> {
        let table = &mut *self.table();
        let now = || {
            table
                .by_index
                .values()
                .find(|link| link.name == name)
                .cloned()
        };
        match table.watches.get(name) {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, receiver) = watch::channel(now());
                table.watches.insert(name.to_owned(), sender);
                receiver
            }
        }
    }

    /// The link with that index, as last reported.
    pub(super) fn of_index(&self, ifindex: u32) -> Option<LinkState> {
        self.table().by_index.get(&ifindex).cloned()
    }

    /// Calls it once the kernel reports that this link is gone.
    pub(super) fn when_gone(&self, ifindex: u32, call: WhenGone) {
        let ends = &mut self.table().awaited_ends;
        ends.entry(ifindex).or_default().push(call);
    }

    /// Removes and returns the waiters for this link's end, to be called otherwise.
    pub(super) fn take_waiting(&self, ifindex: u32) -> Vec<WhenGone> {
        let ends = &mut self.table().awaited_ends;
        ends.remove(&ifindex).unwrap_or_default()
    }

    /// Whether any link is in this group.
    pub(super) fn has_group(&self, group: u32) -> bool {
        self.table()
            .by_index
            .values()
            .any(|link| link.group == group)
    }

    fn changed(&self, link: LinkState) {
        let table = &mut *self.table();
        let before = table.by_index.insert(link.ifindex, link.clone());
        if before.as_ref() == Some(&link) {
            return;
        }
        if let Some(before) = before.filter(|before| before.name != link.name) {
            table.report(&before.name, None);
        }
        table.report(&link.name.clone(), Some(link));
    }

    fn gone(&self, ifindex: u32) {
        let waiting = {
            let table = &mut *self.table();
            if let Some(link) = table.by_index.remove(&ifindex) {
                table.report(&link.name, None);
                // There may be no receivers.
                let _ = table.departures.send(link.name);
            }
            table.awaited_ends.remove(&ifindex).unwrap_or_default()
        };
        for waiting in waiting {
            waiting.call(Ok(()));
        }
    }

    /// Replaces the state by the kernel's full list, after notifications were lost.
    pub(super) fn replace(&self, list: Vec<LinkState>) {
        let missing: Vec<u32> = {
            let table = self.table();
            let known = table.by_index.keys().chain(table.awaited_ends.keys());
            known
                .filter(|i| !list.iter().any(|link| link.ifindex == **i))
                .copied()
                .collect()
        };
        missing.into_iter().for_each(|ifindex| self.gone(ifindex));
        list.into_iter().for_each(|link| self.changed(link));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is complete before anything that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn report(&mut self, name: &str, state: Option<LinkState>) {
        self.changes.send_replace(());
        let Some(sender) = self.watches.get(name) else {
            return;
        };
        if sender.receiver_count() == 0 {
            self.watches.remove(name);
            return;
        }
        // The end of one link must not hide another that has its name already.
        let stale = state.is_none() && self.by_index.values().any(|link| link.name == name);
        if !stale {
            sender.send_replace(state);
        }
    }
}

/// Listens until [`Stopper::stop`].
pub(super) struct Monitor {
    links: Arc<Links>,
    events: Socket,
    list: socket::Netlink,
    stopper: u32,
}

impl Monitor {
    /// Subscribes before it reads the list, so that changes in between are reported again.
    pub(super) fn new() -> io::Result<(Monitor, Stopper)> {
        let mut events = Socket::new(netlink_sys::protocols::NETLINK_ROUTE)?;
        setsockopt(&events.as_fd(), sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
        events.bind(&SocketAddr::new(0, 1 << (libc::RTNLGRP_LINK - 1)))?;
        let mut target = SocketAddr::new(0, 0);
        events.get_address(&mut target)?;
        let mut stop = Socket::new(netlink_sys::protocols::NETLINK_ROUTE)?;
        let stopper = stop.bind_auto()?.port_number();

        let mut monitor = Monitor {
            links: Arc::default(),
            events,
            list: socket::Netlink::route()?,
            stopper,
        };
        monitor
            .read_list()
            .map_err(|refusal| io::Error::from(refusal.errno))?;
        Ok((
            monitor,
            Stopper {
                socket: stop,
                target,
            },
        ))
    }

    /// The links that it keeps current.
    pub(super) fn links(&self) -> Arc<Links> {
        self.links.clone()
    }

    /// The thread's main function.
    pub(super) fn run(mut self) {
        let mut buffer = Vec::with_capacity(RECEIVE);
        loop {
            buffer.clear();
            match self.events.recv_from(&mut buffer, 0) {
                Ok((_, from)) if from.port_number() == self.stopper => return,
                // Any privileged process may send to a netlink socket; only the kernel is trusted.
                Ok((_, from)) if from.port_number() != 0 => {}
                Ok(_) => self.process(&buffer),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    tracing::warn!("link notifications were lost; reading the list of links");
                    if let Err(refusal) = self.read_list() {
                        tracing::error!(%refusal, "cannot read the list of links");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "cannot receive link notifications any more");
                    return;
                }
            }
        }
    }

    fn process(&self, datagram: &[u8]) {
        for message in messages(datagram) {
            // The bridge family reports bridge ports with the same message types.
            if message.body.first() != Some(&(libc::AF_UNSPEC as u8)) {
                continue;
            }
            match (message.kind, answer::link(&message)) {
                (libc::RTM_NEWLINK, Some(link)) => self.links.changed(link),
                (libc::RTM_DELLINK, Some(link)) => self.links.gone(link.ifindex),
                _ => {}
            }
        }
    }

    fn read_list(&mut self) -> Result<(), super::Refusal> {
        let request = || Batch::of(request::list_links(None), request::DUMP);
        let list = self.list.dump(request, answer::link)?;
        self.links.replace(list);
        Ok(())
    }
}

/// Ends the monitor's thread, which nothing else can wake from `recv`, by a message from this
/// socket.
#[derive(Debug)]
pub(super) struct Stopper {
    socket: Socket,
    target: SocketAddr,
}

impl Stopper {
    pub(super) fn stop(&self) {
        let mut nothing = Batch::default();
        nothing.push_raw(libc::NLMSG_NOOP as u16, 0, &[]);
        if let Err(error) = self.socket.send_to(nothing.bytes(), &self.target, 0) {
            tracing::warn!(%error, "cannot stop the link monitor");
        }
    }
}
