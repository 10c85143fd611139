//! The tracked connections of deleted pods, which the next pod with the same address must not
//! inherit.
//!
//! ovs-vswitchd answers only after it has removed the pod's port, 15 ms or more after the row, and
//! a DEL would spend that time for the sake of some later ADD. So a DEL only registers its
//! addresses. One task removes the connections of all addresses registered within a moment
//! together, because the kernel walks its whole table for one as for many. An ADD does not end
//! before those of its own addresses are removed (docs/decisions/0014).

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use podwire_netns::Netlink;
use tokio::sync::watch;

use crate::ports::Ports;

/// How long after an address another one may join it: twice as long as the walk that serves all.
const GATHERING: Duration = Duration::from_millis(20);

/// How long the first of them waits at most. One walk in a second is 1 to 2 % of a processor.
const LONGEST_GATHERING: Duration = Duration::from_secs(1);

/// The addresses whose connections are still to be removed.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<watch::Sender<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Registered since the last round began.
    named: HashSet<IpAddr>,
    /// Whether anybody waits for them.
    is_awaited: bool,
    /// In the present round.
    under_way: HashSet<IpAddr>,
}

impl Connections {
    /// Starts the task, on the current tokio runtime.
    pub fn keep(ports: Ports, netlink: Netlink) -> Self {
        let connections = Self::default();
        tokio::spawn(connections.clone().forget_all(ports, netlink));
        connections
    }

    /// Registers addresses whose connections have to be removed; returns at once.
    pub(super) fn forget(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.0.send_if_modified(|known| {
            let before = known.named.len();
            known.named.extend(addresses);
            known.named.len() != before
        });
    }

    /// Has the connections of these addresses removed without further delay; returns at once.
    pub(super) fn hurry(&self, mut addresses: impl Iterator<Item = IpAddr>) {
        self.0.send_if_modified(|known| {
            let is_new = !known.is_awaited && addresses.any(|it| known.named.contains(&it));
            known.is_awaited |= is_new;
            is_new
        });
    }

    /// A wait until the connections of these addresses have been removed, or an attempt has failed;
    /// None if there is nothing to wait for.
    pub(super) fn forgotten(
        &self,
        addresses: impl Iterator<Item = IpAddr> + Clone,
    ) -> Option<impl Future<Output = ()>> {
        let is_done = move |known: &Known| {
            let mut addresses = addresses.clone();
            known.is_empty() || !addresses.any(|address| known.has(address))
        };
        let is_free = is_done(&self.0.borrow());
        (!is_free).then(|| self.wait(is_done))
    }

    /// Waits until all registered addresses are done, or an attempt has failed.
    pub(crate) async fn all_forgotten(&self) {
        self.0.send_modify(|known| known.is_awaited = true);
        self.wait(Known::is_empty).await;
    }

    async fn wait(&self, is_done: impl Fn(&Known) -> bool) {
        // `self` holds the sender, so the wait can't fail.
        let _ = self.0.subscribe().wait_for(is_done).await;
    }

    /// Waits until there are some, and until no others join them any more or somebody waits for
    /// one; then begins a round with all of them.
    async fn begin(&self) -> Vec<IpAddr> {
        self.wait(|known| !known.named.is_empty()).await;
        // However it ends, the round begins.
        let _ = tokio::time::timeout(LONGEST_GATHERING, self.gather()).await;
        let mut round = Vec::new();
        // Nobody waits for the beginning of a round.
        self.0.send_if_modified(|known| {
            known.under_way = std::mem::take(&mut known.named);
            known.is_awaited = false;
            round.extend(&known.under_way);
            false
        });
        round
    }

    /// Waits until no address has joined the others for a moment, or somebody waits for one.
    async fn gather(&self) {
        loop {
            let before = self.0.borrow().named.len();
            let changed = self.wait(|known| known.is_awaited || known.named.len() != before);
            let has_changed = tokio::time::timeout(GATHERING, changed).await.is_ok();
            if !has_changed || self.0.borrow().is_awaited {
                return;
            }
        }
    }

    fn end(&self) {
        self.0.send_modify(|known| known.under_way.clear());
    }

    /// Removes the connections of the registered addresses from the kernel's and the userspace
    /// datapath's tables. What can't be removed expires by its own timeout, so that is no failure.
    /// Never returns.
    async fn forget_all(self, ports: Ports, netlink: Netlink) {
        loop {
            let addresses = self.begin().await;
            let (switch, kernel) = tokio::join!(
                ports.flush_conntrack(&addresses),
                netlink.flush_conntrack(addresses.clone())
            );
            let addresses = list(&addresses);
            if let Err(error) = switch {
                tracing::debug!(addresses, %error, "tracked connections stay in the switch");
            }
            if let Err(error) = kernel {
                tracing::debug!(addresses, %error, "tracked connections stay in the kernel");
            }
            self.end();
        }
    }
}

impl Known {
    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.under_way.is_empty()
    }

    fn has(&self, address: IpAddr) -> bool {
        self.named.contains(&address) || self.under_way.contains(&address)
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const GONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 8));

    #[tokio::test]
    async fn an_address_is_waited_for_until_the_round_that_forgets_it_has_ended() {
        let connections = Connections::default();
        let is_free = |address: IpAddr| connections.forgotten(std::iter::once(address)).is_none();
        assert!(is_free(GONE));
        connections.forget([GONE]);
        assert!(!is_free(GONE) && is_free(OTHER));
        assert_eq!(connections.begin().await, [GONE]);
        assert!(!is_free(GONE));
        connections.end();
        assert!(is_free(GONE));
    }

    #[tokio::test]
    async fn a_round_begins_later_for_nobody_and_at_once_for_who_waits() {
        let connections = Connections::default();
        connections.forget([GONE]);
        connections.hurry(std::iter::once(OTHER));
        assert!(connections.begin().now_or_never().is_none());
        connections.hurry(std::iter::once(GONE));
        assert_eq!(connections.begin().now_or_never().unwrap(), [GONE]);
        connections.forget([OTHER]);
        assert!(connections.begin().now_or_never().is_none());
        assert_eq!(connections.begin().await, [OTHER]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_has_all_that_join_it_one_after_the_other_within_a_second() {
        let connections = Connections::default();
        let joining = async |count: u8| {
            for host in 0..count {
                connections.forget([IpAddr::from([10, 0, 0, host])]);
                tokio::time::sleep(GATHERING / 2).await;
            }
        };
        let (round, ()) = tokio::join!(connections.begin(), joining(20));
        assert_eq!(round.len(), 20);

        let started = tokio::time::Instant::now();
        let first_round = async {
            connections.begin().await;
            started.elapsed()
        };
        let (took, ()) = tokio::join!(first_round, joining(150));
        assert_eq!(took, LONGEST_GATHERING);
    }

    #[tokio::test]
    async fn what_is_named_during_a_round_is_forgotten_in_the_next() {
        let connections = Connections::default();
        connections.forget([GONE]);
        connections.begin().await;
        connections.forget([GONE, OTHER]);
        connections.end();
        assert!(connections.all_forgotten().now_or_never().is_none());
        let mut round = connections.begin().await;
        round.sort_unstable();
        assert_eq!(round, [GONE, OTHER]);
        connections.end();
        assert!(connections.all_forgotten().now_or_never().is_some());
    }
}
