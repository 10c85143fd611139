//! The promised ratios within one run, and whether this run keeps them.
//! SPECIFICATION.md says the same for people.

use serde::Serialize;

use crate::group_commit::Burst;
use crate::report::Report;
use crate::run::Measured;
use crate::sample::{NETLINK, OWN, Sample, Summary, TOTAL, median};

/// Which side of the limit is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Good {
    /// At most the limit.
    AtMost,
    /// At least the limit.
    AtLeast,
}

/// One promise, and how this run stands to it.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// By what the baseline knows it.
    pub key: &'static str,
    /// What is compared with what.
    pub what: &'static str,
    /// Which side is good.
    pub good: Good,
    /// The limit.
    pub limit: f64,
    /// What was measured; `None` when this run did not measure it.
    pub value: Option<f64>,
    /// `×` for ratios, else a unit.
    pub unit: &'static str,
}

impl Bar {
    /// Whether it is kept; `None` when it was not measured.
    pub fn holds(&self) -> Option<bool> {
        let value = self.value?;
        Some(match self.good {
            Good::AtMost => value <= self.limit,
            Good::AtLeast => value >= self.limit,
        })
    }
}

/// All promises of a run.
pub fn bars(report: &Report) -> Vec<Bar> {
    let rate = |subject| measured(report, "burst", subject)?.pods_per_second();
    let megabytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / 1e6);
    let mut bars: Vec<Bar> = TIMES.iter().map(|promise| promise.bar(report)).collect();
    bars.extend([
        Bar {
            key: "burst-bridge",
            what: "burst of 200: pods per second ÷ bridge's",
            good: Good::AtLeast,
            limit: 8.0,
            value: ratio(rate("podwire"), rate("bridge")),
            unit: "×",
        },
        Bar {
            key: "burst-floor",
            what: "burst of 200: pods per second ÷ the floor program's",
            good: Good::AtLeast,
            limit: 0.6,
            value: ratio(rate("podwire"), rate("floor")),
            unit: "×",
        },
        Bar {
            key: "group-commit",
            what: "burst of 200: one transaction per port ÷ group commit, until all are answered",
            good: Good::AtLeast,
            limit: 2.0,
            value: report.group_commit.as_ref().and_then(|comparison| {
                let answered = |bursts: &[Burst]| median(bursts.iter().map(|burst| burst.answered));
                ratio(answered(&comparison.single), answered(&comparison.grouped))
            }),
            unit: "×",
        },
        Bar {
            key: "own-1000-ports",
            what: "own time per ADD, 1000 ports present ÷ 10",
            good: Good::AtMost,
            limit: 1.2,
            value: beside_above_ten(report, 1000, own),
            unit: "×",
        },
        Bar {
            key: "add-300-ports",
            what: "whole ADD, p50, 300 ports present ÷ 10",
            good: Good::AtMost,
            limit: 3.0,
            value: beside_above_ten(report, 300, whole),
            unit: "×",
        },
        Bar {
            key: "add-500-ports",
            what: "whole ADD, p50, 500 ports present ÷ 10",
            good: Good::AtMost,
            limit: 3.0,
            value: beside_above_ten(report, 500, whole),
            unit: "×",
        },
        Bar {
            key: "agent-300-ports",
            what: "agent's processor time of an ADD, 300 ports present ÷ 10",
            good: Good::AtMost,
            limit: 1.2,
            value: beside_above_ten(report, 300, of_agent),
            unit: "×",
        },
        Bar {
            key: "agent-burst",
            what: "burst of 200: agent's processor time per pod",
            good: Good::AtMost,
            limit: 1.2,
            value: measured(report, "burst", "podwire")
                .and_then(of_agent)
                .map(|seconds| seconds * 1e3),
            unit: "ms",
        },
        Bar {
            key: "plugin-memory",
            what: "plugin peak memory (VmHWM)",
            good: Good::AtMost,
            limit: 1.5,
            value: megabytes(report.memory.plugin_peak),
            unit: "MB",
        },
        Bar {
            key: "agent-memory",
            what: "agent resident memory with 500 pods",
            good: Good::AtMost,
            limit: 24.0,
            value: megabytes(report.memory.agent_with_500_pods),
            unit: "MB",
        },
        Bar {
            key: "idle",
            what: "idle agent with 500 pods: system calls in a minute that are no keepalive",
            good: Good::AtMost,
            limit: 0.0,
            value: report
                .idle
                .as_ref()
                .map(|idle| idle.beyond_keepalive as f64),
            unit: "calls",
        },
    ]);
    bars
}

/// A promise of two times of one cell: the one above divided by the one below.
struct Times {
    key: &'static str,
    what: &'static str,
    good: Good,
    limit: f64,
    /// The cell, which of its operations, and at which rank.
    of: (&'static str, Operations, Rank),
    /// The subject, and which part of its time.
    above: (&'static str, &'static str),
    below: (&'static str, &'static str),
}

type Operations = fn(&Measured) -> &[Sample];
type Rank = fn(&Summary) -> f64;

const ADD: Operations = |measured| &measured.add;
const DEL: Operations = |measured| &measured.del;
const P50: Rank = |summary| summary.p50;
const P90: Rank = |summary| summary.p90;

const TIMES: [Times; 10] = [
    Times {
        key: "second-bridge",
        what: "ADD on a second bridge ÷ on the first, p50",
        good: Good::AtMost,
        limit: 1.25,
        of: ("bridges", ADD, P50),
        above: ("second bridge", TOTAL),
        below: ("first bridge", TOTAL),
    },
    Times {
        key: "three-networks",
        what: "ADDs of a pod on three networks ÷ of one on one, p50",
        good: Good::AtMost,
        limit: 4.0,
        of: ("bridges", ADD, P50),
        above: ("three networks", TOTAL),
        below: ("first bridge", TOTAL),
    },
    Times {
        key: "netlink-one",
        what: "netlink part of ADD ÷ its floor, p50, one at a time",
        good: Good::AtMost,
        limit: 1.25,
        of: ("one", ADD, P50),
        above: ("podwire", NETLINK),
        below: ("floor", NETLINK),
    },
    Times {
        key: "own-one",
        what: "podwire's own part of ADD ÷ floor, p50, one at a time",
        good: Good::AtMost,
        limit: 1.3,
        of: ("one", ADD, P50),
        above: ("podwire", OWN),
        below: ("floor", TOTAL),
    },
    Times {
        key: "own-eight",
        what: "the same, p90, 8 at a time ÷ 8 floor threads",
        good: Good::AtMost,
        limit: 1.25,
        of: ("eight", ADD, P90),
        above: ("podwire", OWN),
        below: ("floor", TOTAL),
    },
    Times {
        key: "bridge-add-one",
        what: "bridge ADD ÷ whole ADD, p50, one at a time",
        good: Good::AtLeast,
        limit: 3.0,
        of: ("one", ADD, P50),
        above: ("bridge", TOTAL),
        below: ("podwire", TOTAL),
    },
    Times {
        key: "bridge-add-eight",
        what: "bridge ADD ÷ whole ADD, p50, 8 at a time",
        good: Good::AtLeast,
        limit: 6.0,
        of: ("eight", ADD, P50),
        above: ("bridge", TOTAL),
        below: ("podwire", TOTAL),
    },
    Times {
        key: "bridge-del-one",
        what: "bridge DEL ÷ DEL, p50, one at a time",
        good: Good::AtLeast,
        limit: 8.0,
        of: ("one", DEL, P50),
        above: ("bridge", TOTAL),
        below: ("podwire", TOTAL),
    },
    Times {
        key: "bridge-del-eight",
        what: "bridge DEL ÷ DEL, p50, 8 at a time",
        good: Good::AtLeast,
        limit: 8.0,
        of: ("eight", DEL, P50),
        above: ("bridge", TOTAL),
        below: ("podwire", TOTAL),
    },
    Times {
        key: "forking-add-one",
        what: "forking ADD ÷ whole ADD, p50, one at a time",
        good: Good::AtLeast,
        limit: 12.0,
        of: ("one", ADD, P50),
        above: ("forking", TOTAL),
        below: ("podwire", TOTAL),
    },
];

impl Times {
    fn bar(&self, report: &Report) -> Bar {
        let (cell, operations, rank) = self.of;
        let time = |(subject, name)| {
            let samples = operations(measured(report, cell, subject)?);
            Summary::of(part(samples, name)).as_ref().map(rank)
        };
        Bar {
            key: self.key,
            what: self.what,
            good: self.good,
            limit: self.limit,
            value: ratio(time(self.above), time(self.below)),
            unit: "×",
        }
    }
}

fn measured<'a>(report: &'a Report, cell: &str, subject: &str) -> Option<&'a Measured> {
    let cell = report.cells.iter().find(|it| it.cell.name == cell)?;
    cell.measured.iter().find(|it| it.subject == subject)
}

/// What was measured of podwire while so many other pods were there.
fn beside(report: &Report, present: usize) -> Option<&Measured> {
    let level = report.ports.iter().find(|level| level.present == present)?;
    level.measured.iter().find(|it| it.subject == "podwire")
}

/// A quantity beside so many ports, above the same beside ten.
fn beside_above_ten(
    report: &Report,
    present: usize,
    quantity: impl Fn(&Measured) -> Option<f64>,
) -> Option<f64> {
    let at = |present| beside(report, present).and_then(&quantity);
    ratio(at(present), at(10))
}

fn own(measured: &Measured) -> Option<f64> {
    median(part(&measured.add, OWN))
}

fn whole(measured: &Measured) -> Option<f64> {
    median(part(&measured.add, TOTAL))
}

/// The agent's processor time of one ADD, in seconds.
fn of_agent(measured: &Measured) -> Option<f64> {
    let mut processes = measured.of_one(&measured.add_cpu);
    processes.find_map(|(name, seconds)| (name == "podwire").then_some(seconds))
}

/// One part of each sample that has it.
pub fn part<'a>(samples: &'a [Sample], name: &'a str) -> impl Iterator<Item = f64> + 'a {
    samples
        .iter()
        .filter_map(move |sample| sample.parts.get(name).copied())
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    match (above?, below?) {
        (_, below) if below <= 0.0 => None,
        (above, below) => Some(above / below),
    }
}
