//! ovn-northd and the nodes in a status: which version runs, how long new pods wait for them, and
//! what to do where that is long.

use serde::Serialize;

use crate::delays::{DelayReport, Last};

/// The key of `NB_Global`'s options with the version of the ovn-northd that works: it compares it
/// with its own at each start (`ovn_get_internal_version` in lib/ovn-util.c).
pub(super) const VERSION: &str = "northd_internal_version";

/// From this on, ovn-northd is what a new pod waits for; the rest of an ADD takes a tenth of it.
const SLOW_MS: u64 = 200;
/// From this on, a node's flows are.
const SLOW_NODE_MS: u64 = 500;
/// A wait that no run of a working ovn-northd takes, short of the largest clusters.
const STUCK_MS: u64 = 30_000;

/// The first version that computes a changed port, load balancer and address translation alone.
const INCREMENTAL: (u32, u32) = (24, 3);

/// The cluster's size, for the advice.
pub(super) struct Size {
    pub(super) pods: usize,
    pub(super) services: usize,
}

/// ovn-northd and the nodes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Northd {
    /// The version of OVN of the ovn-northd that works.
    version: Option<String>,
    /// As the leader told with its last renewal; None without a leader that knows the southbound
    /// database.
    delays: Option<DelayReport>,
    /// What is slow, and what to do.
    advice: Option<String>,
}

/// `23.03.1` of `23.03.1-20.27.0-70.6`.
pub(super) fn version(internal: &str) -> String {
    let end = internal.find('-').unwrap_or(internal.len());
    internal[..end].to_owned()
}

impl Northd {
    pub(super) fn new(version: Option<String>, delays: Option<DelayReport>, size: Size) -> Self {
        let advice = delays.and_then(|report| advice(version.as_deref(), report, &size));
        Self {
            version,
            delays,
            advice,
        }
    }

    /// Pods wait for an ovn-northd that probably does not work.
    pub(super) fn is_stuck(&self) -> bool {
        self.delays.is_some_and(is_stuck)
    }

    /// For people.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let version = match &self.version {
            Some(version) => format!("{version} (ovn-northd)"),
            None => "no ovn-northd has worked on this database".to_owned(),
        };
        let mut lines = vec![("OVN", version)];
        if let Some(report) = &self.delays {
            lines.push(("northd", northd(report)));
            if let Some(last) = &report.nodes {
                let words = "took the nodes from their claim until the flows were installed";
                lines.push(("nodes", format!("{} {words}", of_last(last))));
            }
        }
        lines.extend(self.advice.clone().map(|advice| ("advice", advice)));
        lines
    }
}

fn northd(report: &DelayReport) -> String {
    let mut text = match &report.northd {
        Some(last) => format!("{} was the wait for ovn-northd", of_last(last)),
        None => "no new pod yet since this controller leads".to_owned(),
    };
    if report.waiting > 0 {
        text.push_str(&format!(
            "; {} wait now, the first for {} ms",
            report.waiting, report.longest_ms
        ));
    }
    text
}

fn of_last(last: &Last) -> String {
    let Last {
        pods,
        p50_ms,
        p99_ms,
    } = last;
    format!("last {pods} pods: {p50_ms} ms (p50), {p99_ms} ms (p99)")
}

fn is_stuck(report: DelayReport) -> bool {
    report.longest_ms >= STUCK_MS
}

/// What the slowest part is, if it is slow, and what to do.
fn advice(version: Option<&str>, report: DelayReport, size: &Size) -> Option<String> {
    if is_stuck(report) {
        return Some(
            "ovn-northd takes up no new pod: on the machines with the databases, systemctl status \
             ovn-northd (ovn-central on Debian), and ovn-appctl -t ovn-northd status, which \
             should say active on one of them"
                .to_owned(),
        );
    }
    let p50 = |last: Option<Last>| last.map_or(0, |last| last.p50_ms);
    if p50(report.northd) >= SLOW_MS {
        let is_old = version.and_then(numbers).is_some_and(|it| it < INCREMENTAL);
        let what = match is_old {
            true => format!(
                "OVN {} computes everything again for each new pod: with OVN 25.03 or newer on \
                 the machines with the databases it takes milliseconds, and until then jemalloc \
                 halves it",
                version.unwrap_or_default()
            ),
            false => format!(
                "give it a processor of its own and jemalloc, or divide the cluster: what it \
                 takes grows with its {} pods and {} services",
                size.pods, size.services
            ),
        };
        return Some(format!(
            "ovn-northd is what new pods wait for; {what} (docs/scale.md)"
        ));
    }
    (p50(report.nodes) >= SLOW_NODE_MS).then(|| {
        "the nodes' ovn-controllers are what new pods wait for; podwire doctor on a slow node says \
         more (docs/scale.md)"
            .to_owned()
    })
}

/// Year and month of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(version: &str, northd: u64, nodes: u64, longest_ms: u64) -> Option<String> {
        let last = |ms| {
            Some(Last {
                pods: 100,
                p50_ms: ms,
                p99_ms: 2 * ms,
            })
        };
        let report = DelayReport {
            northd: last(northd),
            nodes: last(nodes),
            waiting: usize::from(longest_ms > 0),
            longest_ms,
        };
        let size = Size {
            pods: 5000,
            services: 500,
        };
        Northd::new(Some(version.to_owned()), Some(report), size).advice
    }

    #[test]
    fn what_is_slow_is_named_with_what_helps() {
        assert_eq!(said("23.03.1", 199, 499, 29_999), None);
        for (advice, words) in [
            (
                said("23.03.1", 200, 0, 0),
                "OVN 23.03.1 computes everything",
            ),
            (
                said("25.03.0", 200, 900, 0),
                "its 5000 pods and 500 services",
            ),
            (said("25.03.0", 20, 500, 0), "the nodes' ovn-controllers"),
            (said("25.03.0", 20, 20, 30_000), "takes up no new pod"),
        ] {
            let advice = advice.unwrap();
            assert!(advice.contains(words), "{advice}");
        }
    }

    #[test]
    fn the_version_is_the_first_part_of_the_internal_one() {
        assert_eq!(version("23.03.1-20.27.0-70.6"), "23.03.1");
        assert_eq!(version("26.03.1"), "26.03.1");
        assert_eq!(numbers("26.03.1"), Some((26, 3)));
        assert_eq!(numbers("next"), None);
    }
}
