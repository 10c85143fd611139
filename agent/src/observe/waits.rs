//! What operations wait for: how many are waiting now, and how long ended waits took.

use std::time::Instant;

use podwire_daemon::words;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::durations::durations;

words! {
    /// What an operation may wait for.
    pub enum WaitFor {
        /// Its turn: other operations on the same pod or sandbox come first.
        Turn = "turn",
        /// The agent and Open vSwitch: a current replica, the bridge, the cleanup at start.
        Ready = "ready",
        /// The pod's annotation.
        Annotation = "annotation",
        /// A delegated IPAM plugin.
        IpamPlugin = "ipam-plugin",
        /// ovs-vswitchd, to put the port on the bridge.
        Ofport = "ofport",
        /// ovn-controller, to install the port's flows.
        OvnInstalled = "ovn-installed",
    }
}

/// All waits, by what they are for.
#[derive(Debug)]
pub(super) struct Waits([Waiting; WaitFor::ALL.len()]);

#[derive(Debug)]
struct Waiting {
    now: Gauge,
    ended: Histogram,
}

/// A wait in progress. It ends when it is dropped, so also when its operation is cancelled.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Wait<'a> {
    waiting: &'a Waiting,
    began: Instant,
}

impl Waits {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let now = Family::<[(&str, &str); 1], Gauge>::default();
        registry.register(
            "waits",
            "Operations that are waiting now, by reason",
            now.clone(),
        );
        let ended = durations(
            registry,
            "wait_duration",
            "How long ended waits took, by reason, successful or not",
        );
        Self(WaitFor::ALL.map(|wait| {
            let labels = [("reason", wait.word())];
            Waiting {
                now: now.get_or_create_owned(&labels),
                ended: ended.get_or_create_owned(&labels),
            }
        }))
    }

    pub(super) fn begin(&self, wait: WaitFor) -> Wait<'_> {
        let waiting = &self.0[wait as usize];
        waiting.now.inc();
        Wait {
            waiting,
            began: Instant::now(),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waiting.now.dec();
        self.waiting
            .ended
            .observe(self.began.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_has_its_own_place() {
        for (at, wait) in WaitFor::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, at);
        }
    }

    #[test]
    fn a_wait_counts_until_it_is_dropped_and_then_with_its_length() {
        let mut registry = Registry::default();
        let waits = Waits::register(&mut registry);
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let wait = waits.begin(WaitFor::Ofport);
        assert!(
            text().contains("waits{reason=\"ofport\"} 1\n"),
            "{}",
            text()
        );
        assert!(text().contains("wait_duration_seconds_count{reason=\"ofport\"} 0\n"));
        drop(wait);
        assert!(text().contains("waits{reason=\"ofport\"} 0\n"));
        assert!(text().contains("wait_duration_seconds_count{reason=\"ofport\"} 1\n"));
        assert!(text().contains("wait_duration_seconds_count{reason=\"turn\"} 0\n"));
    }
}
