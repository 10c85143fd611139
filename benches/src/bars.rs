//! What is promised of the ratios within one run, and whether this run keeps it.
//! SPECIFICATION.md says the same for people.

use serde::Serialize;

use crate::report::Report;
use crate::run::Measured;
use crate::sample::{NETLINK, OWN, Sample, Summary, TOTAL};

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
    pub what: String,
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
    let look = Look(report);
    let mut bars = Vec::new();
    let mut bar = |key, what: &str, good, limit, value, unit| {
        bars.push(Bar {
            key,
            what: what.to_owned(),
            good,
            limit,
            value,
            unit,
        });
    };
    let at_most = Good::AtMost;
    let at_least = Good::AtLeast;
    bar(
        "netlink-one",
        "netlink part of ADD ÷ its floor, p50, one at a time",
        at_most,
        1.25,
        ratio(
            look.add("one", "podwire", NETLINK, p50),
            look.add("one", "floor", NETLINK, p50),
        ),
        "×",
    );
    bar(
        "own-one",
        "podwire's own part of ADD ÷ floor, p50, one at a time",
        at_most,
        1.3,
        ratio(
            look.add("one", "podwire", OWN, p50),
            look.add("one", "floor", TOTAL, p50),
        ),
        "×",
    );
    bar(
        "own-eight",
        "the same, p90, 8 at a time ÷ 8 floor threads",
        at_most,
        1.25,
        ratio(
            look.add("eight", "podwire", OWN, p90),
            look.add("eight", "floor", TOTAL, p90),
        ),
        "×",
    );
    bar(
        "bridge-add-one",
        "bridge ADD ÷ whole ADD, p50, one at a time",
        at_least,
        3.0,
        ratio(
            look.add("one", "bridge", TOTAL, p50),
            look.add("one", "podwire", TOTAL, p50),
        ),
        "×",
    );
    bar(
        "bridge-add-eight",
        "bridge ADD ÷ whole ADD, p50, 8 at a time",
        at_least,
        6.0,
        ratio(
            look.add("eight", "bridge", TOTAL, p50),
            look.add("eight", "podwire", TOTAL, p50),
        ),
        "×",
    );
    for (key, cell, title) in [
        ("bridge-del-one", "one", "one at a time"),
        ("bridge-del-eight", "eight", "8 at a time"),
    ] {
        bar(
            key,
            &format!("bridge DEL ÷ DEL, p50, {title}"),
            at_least,
            8.0,
            ratio(look.del(cell, "bridge"), look.del(cell, "podwire")),
            "×",
        );
    }
    bar(
        "forking-add-one",
        "forking ADD ÷ whole ADD, p50, one at a time",
        at_least,
        12.0,
        ratio(
            look.add("one", "forking", TOTAL, p50),
            look.add("one", "podwire", TOTAL, p50),
        ),
        "×",
    );
    bar(
        "burst-bridge",
        "burst of 200: pods per second ÷ bridge's",
        at_least,
        8.0,
        ratio(look.rate("podwire"), look.rate("bridge")),
        "×",
    );
    bar(
        "burst-floor",
        "burst of 200: pods per second ÷ the floor program's",
        at_least,
        0.6,
        ratio(look.rate("podwire"), look.rate("floor")),
        "×",
    );
    bar(
        "group-commit",
        "burst of 200: one transaction per port ÷ group commit, until all are answered",
        at_least,
        2.0,
        report.group_commit.as_ref().and_then(|comparison| {
            let answered = |bursts: &[crate::group_commit::Burst]| {
                crate::sample::median(bursts.iter().map(|burst| burst.answered))
            };
            ratio(answered(&comparison.single), answered(&comparison.grouped))
        }),
        "×",
    );
    let own_at = |present| {
        let level = report.ports.iter().find(|level| level.present == present)?;
        let podwire = level.measured.iter().find(|it| it.subject == "podwire")?;
        p50(&Summary::of(part(&podwire.add, OWN))?)
    };
    bar(
        "own-1000-ports",
        "own time per ADD, 1000 ports present ÷ 10",
        at_most,
        1.2,
        ratio(own_at(1000), own_at(10)),
        "×",
    );
    let mebibytes = |bytes: Option<u64>, unit: f64| bytes.map(|bytes| bytes as f64 / unit);
    bar(
        "plugin-memory",
        "plugin peak memory (VmHWM)",
        at_most,
        1.5,
        mebibytes(report.memory.plugin_peak, 1e6),
        "MB",
    );
    bar(
        "agent-memory",
        "agent resident memory with 500 pods",
        at_most,
        24.0,
        mebibytes(report.memory.agent_with_500_pods, 1e6),
        "MB",
    );
    bar(
        "idle",
        "idle agent with 500 pods: system calls in a minute that are no keepalive",
        at_most,
        0.0,
        report
            .idle
            .as_ref()
            .map(|idle| idle.beyond_keepalive as f64),
        "calls",
    );
    bars
}

struct Look<'a>(&'a Report);

impl Look<'_> {
    fn measured(&self, cell: &str, subject: &str) -> Option<&Measured> {
        let cell = self.0.cells.iter().find(|it| it.cell.name == cell)?;
        cell.measured.iter().find(|it| it.subject == subject)
    }

    fn add(
        &self,
        cell: &str,
        subject: &str,
        name: &str,
        pick: fn(&Summary) -> Option<f64>,
    ) -> Option<f64> {
        pick(&Summary::of(part(
            &self.measured(cell, subject)?.add,
            name,
        ))?)
    }

    fn del(&self, cell: &str, subject: &str) -> Option<f64> {
        p50(&Summary::of(part(
            &self.measured(cell, subject)?.del,
            TOTAL,
        ))?)
    }

    fn rate(&self, subject: &str) -> Option<f64> {
        self.measured("burst", subject)?.pods_per_second()
    }
}

/// One part of each sample that has it.
pub fn part<'a>(samples: &'a [Sample], name: &'a str) -> impl Iterator<Item = f64> + 'a {
    samples
        .iter()
        .filter_map(move |sample| sample.parts.get(name).copied())
}

fn p50(summary: &Summary) -> Option<f64> {
    Some(summary.p50)
}

fn p90(summary: &Summary) -> Option<f64> {
    Some(summary.p90)
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    match (above?, below?) {
        (_, below) if below <= 0.0 => None,
        (above, below) => Some(above / below),
    }
}
