//! Samples and their statistics.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// The plugin's, or the floor's, whole time.
pub const TOTAL: &str = "total";
/// All but what ovs-vswitchd and OVN took for themselves.
pub const OWN: &str = "own";
/// From the first netlink message to the last ack.
pub const NETLINK: &str = "netlink";
/// One OVSDB transaction, until its reply.
pub const TRANSACTION: &str = "transaction";
/// From the later of reply and last ack to the ofport.
pub const VSWITCHD: &str = "vswitchd";
/// From the ofport until ovn-controller has installed the port.
pub const OVN: &str = "ovn";
/// Fork, exec and end of a process.
pub const SPAWN: &str = "spawn";
/// From the request's arrival in the agent to its answer.
pub const AGENT: &str = "agent";

/// One step of a traced operation.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// What was done.
    pub name: String,
    /// Microseconds from the operation's start.
    pub start: f64,
    /// Microseconds that it took.
    pub took: f64,
}

/// One measured operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// The seat's container id; by it the agent's trace is found.
    #[serde(skip)]
    pub container: String,
    /// Times in microseconds; [`TOTAL`] is always among them.
    pub parts: BTreeMap<&'static str, f64>,
    /// The agent's own trace.
    #[serde(skip)]
    pub phases: Vec<Phase>,
}

impl Sample {
    /// A sample of which only the whole is known.
    pub fn whole(container: &str, took: Duration) -> Self {
        let mut sample = Self {
            container: container.to_owned(),
            ..Self::default()
        };
        sample.set(TOTAL, micros(took));
        sample
    }

    /// Sets a part, in microseconds.
    pub fn set(&mut self, part: &'static str, micros: f64) {
        self.parts.insert(part, micros);
    }

    /// The whole, in microseconds.
    pub fn total(&self) -> f64 {
        self.parts.get(TOTAL).copied().unwrap_or_default()
    }
}

/// What is told of many times.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// How many there are.
    pub count: usize,
    /// The median, in microseconds.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Summary {
    /// Of at least one time; `None` of none.
    pub fn of(times: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times.into_iter().collect();
        times.sort_by(f64::total_cmp);
        Some(Self {
            count: times.len(),
            p50: quantile(&times, 0.5)?,
            p90: quantile(&times, 0.9)?,
            p99: quantile(&times, 0.99)?,
            max: *times.last()?,
        })
    }
}

/// The value below which the share `q` of the sorted values lies, by the nearest rank.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// The median; `None` of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Summary::of(values).map(|summary| summary.p50)
}

/// The medians of the phases of many samples, in the order in which they begin.
pub fn waterfall(samples: &[Sample]) -> Vec<Phase> {
    let mut times: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for phase in samples.iter().flat_map(|sample| &sample.phases) {
        let (starts, lengths) = times.entry(&phase.name).or_default();
        starts.push(phase.start);
        lengths.push(phase.took);
    }
    let mut phases: Vec<Phase> = times
        .into_iter()
        .filter_map(|(name, (starts, lengths))| {
            Some(Phase {
                name: name.to_owned(),
                start: median(starts)?,
                took: median(lengths)?,
            })
        })
        .collect();
    phases.sort_by(|a, b| a.start.total_cmp(&b.start));
    phases
}

/// A duration in microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let summary = Summary::of((1..=10).rev().map(f64::from)).unwrap();
        assert_eq!((summary.p50, summary.p90, summary.p99), (5.0, 9.0, 10.0));
        assert_eq!((summary.count, summary.max), (10, 10.0));
        assert!(Summary::of([]).is_none());
        assert_eq!(median([3.0]), Some(3.0));
    }
}
