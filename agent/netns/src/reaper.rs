//! Deletes links. The kernel reports that a link is gone (RTM_DELLINK) about a millisecond after
//! the request, but answers the request only after an `rcu_barrier` (`netdev_run_todo`), some 18 ms
//! later and outside of RTNL. So callers wait for the notification, and a few threads wait for the
//! answers.
//!
//! Links that arrive while a deletion holds RTNL are collected and deleted together, through a link
//! group: one grace period for all. More than [`TOGETHER`] would hold RTNL long enough to delay
//! every ADD on the node.

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

/// The maximum number of links in one group.
const TOGETHER: usize = 16;

/// Number of threads: one deletes while the others are in `rcu_barrier`. With DELs every 2 ms, nine
/// are in there; one that finds no free thread waits 15 ms longer (measured with six).
const REAPERS: usize = 12;

/// The links to delete, shared by the reapers and the callers.
#[derive(Debug)]
pub(super) struct Reaper {
    links: Arc<Links>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Removal>,
    /// The batch whose links have not all been reported gone; until then, others are collected.
    unlisting: Option<u32>,
    /// Numbers the batches, and their link groups.
    last_batch: u32,
    closed: bool,
}

/// A link to delete, and its waiter.
#[derive(Debug)]
struct Removal {
    link: HostLink,
    done: oneshot::Sender<Outcome>,
}

impl Reaper {
    pub(super) fn new(links: Arc<Links>) -> Arc<Reaper> {
        // Link groups are numbers without an owner: start where nobody else is likely to be.
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

    /// Queues a link; the receiver is notified when it is gone.
    pub(super) fn submit(&self, link: HostLink) -> oneshot::Receiver<Outcome> {
        let (done, gone) = oneshot::channel();
        self.state().waiting.push_back(Removal { link, done });
        self.work.notify_one();
        gone
    }

    /// Ends the threads once everything submitted is done.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.work.notify_all();
    }

    /// A reaper thread's main function.
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

    /// Deletes a batch and waits for the answer. The next batch may start when all links are gone.
    fn remove(self: &Arc<Reaper>, socket: &mut Netlink, number: u32, removals: Vec<Removal>) {
        let left = Arc::new(AtomicUsize::new(removals.len()));
        let mut links = Vec::with_capacity(removals.len());
        // Waiting begins before the request, because the notification could come first.
        for Removal { link, done } in removals {
            let (reaper, left) = (self.clone(), left.clone());
            let when_gone = WhenGone::new(move |outcome| {
                // The caller may no longer wait; the link is gone nevertheless.
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
        // The answer decides what the notification has not: it was lost, or the link was already
        // gone.
        for (link, outcome) in links.iter().zip(outcomes) {
            self.complete(link, outcome);
        }
    }

    /// Keeps those that may be deleted: an existing veth with that name. The others count as gone,
    /// because the intended link no longer exists.
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
                self.complete(link, refusal.map_or(Ok(()), Err));
                false
            })
            .collect()
    }

    fn complete(&self, link: &HostLink, outcome: Outcome) {
        for waiting in self.links.take_waiting(link.ifindex) {
            waiting.call(outcome.clone());
        }
    }

    /// A group that contains no link. A high number, because people count theirs from 1.
    fn group(&self, number: u32) -> u32 {
        let mut group = 1 << 30 | number & 0x3fff_ffff;
        while self.links.has_group(group) {
            group = 1 << 30 | (group + 1) & 0x3fff_ffff;
        }
        group
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens one socket for each reaper.
pub(super) fn sockets() -> io::Result<Vec<Netlink>> {
    (0..REAPERS).map(|_| Netlink::route()).collect()
}

/// Deletes all of them as one group; `None` if the kernel refused and each must be tried alone.
fn delete_group(socket: &mut Netlink, links: &[HostLink], group: u32) -> Option<Vec<Outcome>> {
    let mut batch = Batch::default();
    links
        .iter()
        .for_each(|link| batch.push(request::set_group(link.ifindex, group), 0));
    batch.push(request::delete_group(group), 0);
    let mut outcomes = socket.apply(&mut batch);
    match outcomes.pop()? {
        Ok(()) => {}
        // No link is in the group: all were gone.
        Err(refusal) if refusal.errno == Errno::ENODEV => {}
        Err(_) => return None,
    }
    // A link that could not be put into the group is either gone or still exists.
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
