//! Deleting links. The kernel tells that a link is gone (RTM_DELLINK) about a millisecond after the
//! request, but answers the request itself only after an `rcu_barrier` (`netdev_run_todo`), some 18
//! ms later and outside of RTNL. So the notification is what a caller waits for, and a few threads
//! wait out the answers.
//!
//! Links that arrive while a deletion holds RTNL are gathered and go together, by a link group of
//! their own: one grace period for all. More than [`TOGETHER`] would hold RTNL for long enough to
//! be felt by every ADD on the node.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use tokio::sync::oneshot;

use super::monitor::{Links, WhenGone};
use super::socket::{Netlink, Outcome};
use super::wire::Batch;
use super::{HostLink, answer, request};

/// The most links that go in one group.
const TOGETHER: usize = 16;

/// Threads: one deletes while the others sit in `rcu_barrier`. With DELs that follow each other
/// every 2 ms nine are in there; one that finds no thread free waits 15 ms longer (measured with
/// six).
const REAPERS: usize = 12;

/// The links that are to go, shared by the reapers and those who ask.
#[derive(Debug)]
pub(super) struct Reaper {
    links: Arc<Links>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Removal>,
    /// The batch that has not been told gone yet; until then others gather.
    unlisting: Option<u32>,
    /// Numbers the batches, and their link groups.
    last_batch: u32,
    closed: bool,
}

/// A link that is to go, and who waits for its end.
#[derive(Debug)]
struct Removal {
    link: HostLink,
    done: oneshot::Sender<Outcome>,
}

impl Reaper {
    pub(super) fn new(links: Arc<Links>) -> Arc<Reaper> {
        // Link groups are numbers without an owner: begin where nobody else is likely to be.
        let last_batch = RandomState::new().hash_one(std::process::id()) as u32;
        let state = State {
            waiting: VecDeque::new(),
            unlisting: None,
            last_batch,
            closed: false,
        };
        Arc::new(Reaper {
            links,
            state: Mutex::new(state),
            work: Condvar::new(),
        })
    }

    /// Hands a link over; the receiver is told when it is gone.
    pub(super) fn submit(&self, link: HostLink) -> oneshot::Receiver<Outcome> {
        let (done, gone) = oneshot::channel();
        self.state().waiting.push_back(Removal { link, done });
        self.work.notify_one();
        gone
    }

    /// Lets the threads end once all that was submitted is done.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.work.notify_all();
    }

    /// A reaper thread's whole life.
    pub(super) fn run(self: Arc<Reaper>, mut socket: Netlink) {
        while let Some((number, removals)) = self.next_batch() {
            self.remove(&mut socket, number, removals);
            self.finished(number);
        }
    }

    fn next_batch(&self) -> Option<(u32, Vec<Removal>)> {
        let mut state = self.state();
        loop {
            if state.unlisting.is_none() && !state.waiting.is_empty() {
                let size = state.waiting.len().min(TOGETHER);
                state.last_batch = state.last_batch.wrapping_add(1);
                state.unlisting = Some(state.last_batch);
                return Some((state.last_batch, state.waiting.drain(..size).collect()));
            }
            if state.closed && state.waiting.is_empty() {
                return None;
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finished(&self, number: u32) {
        let mut state = self.state();
        if state.unlisting == Some(number) {
            state.unlisting = None;
            drop(state);
            self.work.notify_one();
        }
    }

    /// Sees a batch to its end, answer included. The next may follow when all its links are gone.
    fn remove(self: &Arc<Reaper>, socket: &mut Netlink, number: u32, removals: Vec<Removal>) {
        let left = Arc::new(AtomicUsize::new(removals.len()));
        let mut links = Vec::with_capacity(removals.len());
        // Waiting begins before the request, or the notification could come first.
        for Removal { link, done } in removals {
            let (reaper, left) = (self.clone(), left.clone());
            let when_gone = WhenGone::new(move |outcome| {
                // Nobody may be waiting any more; the link is gone all the same.
                let _ = done.send(outcome);
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    reaper.finished(number);
                }
            });
            self.links.when_gone(link.ifindex, when_gone);
            links.push(link);
        }
        let links = self.keep_ours(socket, links);
        let outcomes = match &links[..] {
            [] => return,
            [_] => delete_each(socket, &links),
            _ => delete_group(socket, &links, self.group(number))
                .unwrap_or_else(|| delete_each(socket, &links)),
        };
        // The answer settles what the notification has not: it was lost, or the link was gone
        // before.
        for (link, outcome) in links.iter().zip(outcomes) {
            self.settle(link, outcome);
        }
    }

    /// Leaves those that may be deleted: still there, a veth, and of that name. The others count as
    /// gone, for the link that was meant no longer exists.
    fn keep_ours(&self, socket: &mut Netlink, links: Vec<HostLink>) -> Vec<HostLink> {
        let mut batch = Batch::default();
        links
            .iter()
            .for_each(|link| batch.push(request::get_link(link.ifindex), 0));
        let mut found = socket.fetch(&mut batch, answer::link).into_iter();
        links
            .into_iter()
            .filter(|link| {
                let refusal = match found.next() {
                    Some(Ok(Some(there)))
                        if there.name == link.name && there.kind.as_deref() == Some("veth") =>
                    {
                        return true;
                    }
                    Some(Ok(_)) => None,
                    Some(Err(refusal)) if refusal.errno == Errno::ENODEV => None,
                    Some(Err(refusal)) => Some(refusal),
                    None => Some(Errno::EIO.into()),
                };
                self.settle(link, refusal.map_or(Ok(()), Err));
                false
            })
            .collect()
    }

    fn settle(&self, link: &HostLink, outcome: Outcome) {
        for waiting in self.links.take_waiting(link.ifindex) {
            waiting.call(outcome.clone());
        }
    }

    /// A group that no link is in. High, for people count theirs from 1.
    fn group(&self, number: u32) -> u32 {
        let mut group = 1 << 30 | number & 0x3fff_ffff;
        while self.links.has_group(group) {
            group = 1 << 30 | (group + 1) & 0x3fff_ffff;
        }
        group
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can happen while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens one socket for each reaper.
pub(super) fn sockets() -> io::Result<Vec<Netlink>> {
    (0..REAPERS).map(|_| Netlink::route()).collect()
}

/// Deletes all of them as one group; `None` when the kernel would not have it and each must be
/// tried alone.
fn delete_group(socket: &mut Netlink, links: &[HostLink], group: u32) -> Option<Vec<Outcome>> {
    let mut batch = Batch::default();
    links
        .iter()
        .for_each(|link| batch.push(request::set_group(link.ifindex, group), 0));
    batch.push(request::delete_group(group), 0);
    let mut outcomes = socket.apply(&mut batch);
    match outcomes.pop()? {
        Ok(()) => {}
        // Nothing bears the group: all were gone.
        Err(refusal) if refusal.errno == Errno::ENODEV => {}
        Err(_) => return None,
    }
    // A link that could not be put into the group was either gone or is still there.
    let all_in = outcomes.iter().all(|o| forgive_gone(o.clone()).is_ok());
    all_in.then(|| outcomes.into_iter().map(forgive_gone).collect())
}

fn delete_each(socket: &mut Netlink, links: &[HostLink]) -> Vec<Outcome> {
    let delete = |link: &HostLink| socket.request(request::delete_link(link.ifindex), 0);
    links.iter().map(delete).map(forgive_gone).collect()
}

fn forgive_gone(outcome: Outcome) -> Outcome {
    match outcome {
        Err(refusal) if refusal.errno == Errno::ENODEV => Ok(()),
        outcome => outcome,
    }
}
