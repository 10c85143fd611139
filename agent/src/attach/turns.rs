//! The order of operations: requests for one pod run in the order of arrival, those for different
//! pods at the same time.
//!
//! kubelet may start a second sandbox of a pod while the first one's ADD is still running, and the
//! order in which their ADDs end would be chance. The rule is that the last ADD to arrive whose
//! client is still connected wins. A running one is cancelled and undoes itself; a waiting one is
//! refused when its turn comes, since by then the newer one's client may have gone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Why an operation is cancelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The client's connection was closed: the runtime killed the plugin.
    #[error("the client closed its connection before the ADD ended; the ADD was rolled back")]
    ClientGone,
    /// An ADD for a newer sandbox of the same pod arrived.
    #[error("the newer sandbox {by} of the same pod replaces this one; this ADD was rolled back")]
    Superseded {
        /// The newer sandbox's container id.
        by: String,
    },
    /// A DEL of the same attachment arrived.
    #[error("a DEL of this attachment arrived while its ADD ran; the ADD was rolled back")]
    Deleted,
}

/// A handle for cancelling a running operation.
#[derive(Debug, Default)]
pub struct Cancel {
    token: CancellationToken,
    reason: OnceLock<Reason>,
}

impl Cancel {
    /// Cancels the operation; the first reason stays.
    pub fn cancel(&self, reason: Reason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    /// The reason, if it was cancelled.
    pub fn reason(&self) -> Option<&Reason> {
        self.reason.get()
    }

    /// Fails if the operation was cancelled.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self) -> Result<(), Reason> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(reason.clone()),
        }
    }

    /// Completes with the reason when the operation is cancelled.
    pub async fn cancelled(&self) -> Reason {
        self.token.cancelled().await;
        self.reason.get().cloned().unwrap_or(Reason::ClientGone)
    }
}

/// An operation in a queue.
#[derive(Debug)]
struct Waiter {
    sandbox: String,
    /// None for a DEL, which nobody cancels.
    add: Option<Adding>,
    turn: Notify,
}

#[derive(Debug)]
struct Adding {
    ifname: String,
    cancel: Arc<Cancel>,
}

/// Names a queue.
type Key = (String, String);

type Lines = Mutex<HashMap<Key, VecDeque<Arc<Waiter>>>>;

/// One queue for each key.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lines: Arc<Lines>,
}

/// A place in a queue; dropping it lets the next one run.
#[derive(Debug)]
pub(crate) struct Place {
    lines: Arc<Lines>,
    key: Key,
    waiter: Arc<Waiter>,
}

impl Turns {
    /// Queues an ADD last for `key`. Cancels the ADD at the front if it is for another sandbox.
    pub(super) fn join_add(
        &self,
        key: Key,
        sandbox: &str,
        ifname: &str,
        cancel: Arc<Cancel>,
    ) -> Place {
        let add = Adding {
            ifname: ifname.to_owned(),
            cancel,
        };
        self.join(key, sandbox, Some(add), |front| {
            if front.sandbox != sandbox {
                front.cancel(Reason::Superseded {
                    by: sandbox.to_owned(),
                });
            }
        })
    }

    /// Queues a DEL last for `key`. Cancels the ADDs of the same attachment that are ahead.
    pub(super) fn join_del(&self, key: Key, sandbox: &str, ifname: &str) -> Place {
        let place = self.join(key, sandbox, None, |_| {});
        for waiter in lock(&self.lines).get(&place.key).into_iter().flatten() {
            if waiter.sandbox == sandbox
                && waiter.add.as_ref().is_some_and(|add| add.ifname == ifname)
            {
                waiter.cancel(Reason::Deleted);
            }
        }
        place
    }

    /// Queues last for `key` and cancels nothing.
    pub(super) fn join_quietly(&self, key: Key, sandbox: &str) -> Place {
        self.join(key, sandbox, None, |_| {})
    }

    /// Whether anything is queued for `key`.
    pub(super) fn is_busy(&self, key: &Key) -> bool {
        lock(&self.lines).contains_key(key)
    }

    /// The queues that are not empty, each with the interfaces of its ADDs.
    pub(super) fn under_way(&self) -> HashMap<Key, Vec<String>> {
        let ifname = |waiter: &Arc<Waiter>| Some(waiter.add.as_ref()?.ifname.clone());
        lock(&self.lines)
            .iter()
            .map(|(key, line)| (key.clone(), line.iter().filter_map(ifname).collect()))
            .collect()
    }

    fn join(
        &self,
        key: Key,
        sandbox: &str,
        add: Option<Adding>,
        tell_front: impl FnOnce(&Waiter),
    ) -> Place {
        let waiter = Arc::new(Waiter {
            sandbox: sandbox.to_owned(),
            add,
            turn: Notify::new(),
        });
        let mut lines = lock(&self.lines);
        let line = lines.entry(key.clone()).or_default();
        match line.front() {
            None => waiter.turn.notify_one(),
            Some(front) => tell_front(front),
        }
        line.push_back(Arc::clone(&waiter));
        Place {
            lines: Arc::clone(&self.lines),
            key,
            waiter,
        }
    }
}

impl Waiter {
    fn cancel(&self, reason: Reason) {
        if let Some(add) = &self.add {
            add.cancel.cancel(reason);
        }
    }
}

impl Place {
    /// Completes when this place is the first in its queue.
    pub(crate) async fn turn(&self) {
        self.waiter.turn.notified().await;
    }

    /// The sandbox of a later ADD for another sandbox whose client is still connected.
    pub(super) fn newer_sandbox(&self) -> Option<String> {
        let lines = lock(&self.lines);
        let line = lines.get(&self.key)?;
        line.iter()
            .rev()
            .take_while(|waiter| !Arc::ptr_eq(waiter, &self.waiter))
            .find(|waiter| waiter.add.is_some() && waiter.sandbox != self.waiter.sandbox)
            .map(|waiter| waiter.sandbox.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines);
        let Some(line) = lines.get_mut(&self.key) else {
            return;
        };
        let was_first = line
            .front()
            .is_some_and(|front| Arc::ptr_eq(front, &self.waiter));
        line.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        match line.front() {
            None => drop(lines.remove(&self.key)),
            Some(next) if was_first => next.turn.notify_one(),
            Some(_) => {}
        }
    }
}

fn lock(lines: &Lines) -> MutexGuard<'_, HashMap<Key, VecDeque<Arc<Waiter>>>> {
    // No code panics while it holds the lock.
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    fn key(name: &str) -> Key {
        (String::new(), name.to_owned())
    }

    fn add(turns: &Turns, sandbox: &str) -> (Place, Arc<Cancel>) {
        let cancel = Arc::new(Cancel::default());
        (
            turns.join_add(key("pod"), sandbox, "eth0", Arc::clone(&cancel)),
            cancel,
        )
    }

    async fn is_my_turn(place: &Place) -> bool {
        let mut turn = std::pin::pin!(place.turn());
        std::future::poll_fn(|context| Poll::Ready(turn.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn turns_come_in_order_of_arrival_and_a_line_is_gone_with_its_last_place() {
        let turns = Turns::default();
        let (first, _) = add(&turns, "a");
        let (second, _) = add(&turns, "a");
        assert!(is_my_turn(&first).await);
        assert!(!is_my_turn(&second).await);
        drop(first);
        assert!(is_my_turn(&second).await);
        drop(second);
        assert!(!turns.is_busy(&key("pod")));
    }

    #[tokio::test]
    async fn lines_of_different_pods_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let (first, _) = add(&turns, "a");
        let other = turns.join_add(key("other"), "b", "eth0", Arc::default());
        assert!(is_my_turn(&first).await);
        assert!(is_my_turn(&other).await);
    }

    #[tokio::test]
    async fn a_newer_sandbox_ends_the_add_that_runs_and_outranks_those_that_wait() {
        let turns = Turns::default();
        let (running, running_cancel) = add(&turns, "a");
        let (waiting, waiting_cancel) = add(&turns, "b");
        let (newest, newest_cancel) = add(&turns, "c");
        assert_eq!(
            running_cancel.reason(),
            Some(&Reason::Superseded { by: "b".into() })
        );
        assert_eq!(waiting_cancel.reason(), None);
        assert_eq!(waiting.newer_sandbox().as_deref(), Some("c"));
        drop(newest);
        assert_eq!(
            waiting.newer_sandbox(),
            None,
            "the newer one's client went away before its turn"
        );
        assert_eq!(newest_cancel.reason(), None);
        drop(running);
    }

    #[tokio::test]
    async fn a_second_interface_of_one_sandbox_waits_and_cancels_nothing() {
        let turns = Turns::default();
        let (first, cancel) = add(&turns, "a");
        let second = turns.join_add(key("pod"), "a", "net1", Arc::default());
        assert_eq!(cancel.reason(), None);
        assert_eq!(first.newer_sandbox(), None);
        drop(first);
        assert!(is_my_turn(&second).await);
    }

    #[tokio::test]
    async fn a_del_ends_the_add_of_its_own_attachment_and_of_no_other() {
        let turns = Turns::default();
        let (running, cancel) = add(&turns, "a");
        let other_cancel = Arc::new(Cancel::default());
        let _other = turns.join_add(key("pod"), "a", "net1", Arc::clone(&other_cancel));
        let del = turns.join_del(key("pod"), "a", "eth0");
        assert_eq!(cancel.cancelled().await, Reason::Deleted);
        assert_eq!(other_cancel.reason(), None);
        assert!(!is_my_turn(&del).await);
        drop(running);
    }

    #[tokio::test]
    async fn a_place_given_up_while_waiting_is_skipped() {
        let turns = Turns::default();
        let (first, _) = add(&turns, "a");
        let (second, _) = add(&turns, "a");
        let (third, _) = add(&turns, "a");
        drop(second);
        drop(first);
        assert!(is_my_turn(&third).await);
    }
}
