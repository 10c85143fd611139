//! The report in a terminal.

use std::fmt::Write;

use super::change::Change;
use super::{CellReport, PortsLevel, Report};
use crate::bars::{Bar, Good};
use crate::run::Measured;
use crate::sample::{NETLINK, OVN, OWN, SPAWN, Summary, TOTAL, TRANSACTION, VSWITCHD};

/// The whole table.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for cell in &report.cells {
        cell_lines(&mut text, cell);
    }
    for level in &report.ports {
        let title = format!("one at a time beside {} pods", level.present);
        lines(&mut text, &title, &level.measured);
        switch_lines(&mut text, level);
    }
    if let Some(comparison) = &report.group_commit {
        let median = |pick: &dyn Fn(&crate::group_commit::Burst) -> f64,
                      bursts: &[crate::group_commit::Burst]| {
            crate::sample::median(bursts.iter().map(pick)).map_or("-".into(), milliseconds)
        };
        let _ = writeln!(
            text,
            "\n{} ports in one burst, OVSDB and switch alone{:14} answered  last ofport",
            comparison.ports, ""
        );
        for (name, bursts) in [
            ("group commit", &comparison.grouped),
            ("one transaction per request", &comparison.single),
        ] {
            let answered = median(&|burst| burst.answered, bursts);
            let last = median(&|burst| burst.last_ofport, bursts);
            let _ = writeln!(text, "  {name:52} {answered:>8}     {last:>8}");
        }
    }
    if let Some(ahead) = &report.ahead {
        let _ = writeln!(text, "\na pod's link made before its ADD{:28} p50", "");
        for (name, times) in [
            ("the pair made in its place", &ahead.in_place),
            ("the end of a pair made before, moved", &ahead.moved),
        ] {
            let p50 = crate::sample::median(times.iter().copied()).map_or("-".into(), milliseconds);
            let _ = writeln!(text, "  {name:52} {p50:>8}");
        }
    }
    if !report.changes.is_empty() {
        let _ = writeln!(
            text,
            "\n{:72} {:>8} {:>8} {:>6}  ms",
            "before and after", "before", "now", "÷"
        );
    }
    for Change {
        situation,
        quantity,
        before,
        now,
        ..
    } in &report.changes
    {
        let what = format!("{situation}: {}", quantity.title());
        let ratio = now / before;
        let _ = writeln!(text, "  {what:70} {before:>8.2} {now:>8.2} {ratio:>6.2}");
    }
    let _ = writeln!(text, "\n{:>76} {:>9} {:>9}", "promised", "measured", "");
    for bar in &report.bars {
        let _ = writeln!(text, "{}", bar_line(bar));
    }
    text
}

fn cell_lines(text: &mut String, report: &CellReport) {
    lines(text, report.cell.title, &report.measured);
}

fn lines(text: &mut String, title: &str, measured: &[Measured]) {
    let _ = writeln!(
        text,
        "\n{title:30} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>9}  ms",
        "n", "p50", "p90", "p99", "max", "pods/s", "CPU ms/pod", "DEL p50"
    );
    for it in measured {
        let rate = it
            .pods_per_second()
            .map_or("-".into(), |rate| format!("{rate:.0}"));
        let cpu = it.of_one(&it.add_cpu).map(|(_, cpu)| cpu).sum::<f64>() * 1e3;
        let del = match it.subject {
            "floor" => "-".into(),
            _ => it
                .del_summary()
                .map_or("-".into(), |del| milliseconds(del.p50)),
        };
        if let Some(total) = it.add_summary(TOTAL) {
            let numbers = numbers(&total);
            let _ = writeln!(
                text,
                "  {:28} {numbers} {rate:>8} {cpu:>10.2} {del:>9}",
                it.subject
            );
        }
        for (part, name) in [
            (OWN, "own"),
            (SPAWN, "spawn"),
            (NETLINK, "netlink"),
            (TRANSACTION, "OVSDB transaction"),
            (VSWITCHD, "ovs-vswitchd"),
            (OVN, "ovn-controller"),
        ] {
            if let Some(summary) = it.add_summary(part) {
                let _ = writeln!(text, "    {name:26} {}", numbers(&summary));
            }
        }
        for (verb, cpu) in [("ADD", &it.add_cpu), ("DEL", &it.del_cpu)] {
            let each = it.of_one(cpu);
            let each = each.map(|(name, cpu)| format!("{name} {:.2}", cpu * 1e3));
            let each: Vec<String> = each.collect();
            let _ = writeln!(text, "    CPU of one {verb}: {}", each.join(", "));
        }
    }
}

/// What ovs-vswitchd did for one ADD and one DEL.
fn switch_lines(text: &mut String, level: &PortsLevel) {
    for (verb, counts) in [("ADD", &level.switch.add), ("DEL", &level.switch.del)] {
        let mut counts: Vec<(&String, &f64)> = counts.iter().filter(|it| *it.1 >= 1.0).collect();
        counts.sort_by(|a, b| b.1.total_cmp(a.1));
        let counts: Vec<String> = counts
            .iter()
            .map(|(name, count)| format!("{name} {count:.0}"))
            .collect();
        let _ = writeln!(
            text,
            "    ovs-vswitchd for one {verb}: {}",
            counts.join(", ")
        );
    }
}

fn numbers(summary: &Summary) -> String {
    format!(
        "{:>6} {:>8} {:>8} {:>8} {:>8}",
        summary.count,
        milliseconds(summary.p50),
        milliseconds(summary.p90),
        milliseconds(summary.p99),
        milliseconds(summary.max)
    )
}

/// One promise in a line.
pub fn bar_line(bar: &Bar) -> String {
    let sign = match bar.good {
        Good::AtMost => "≤",
        Good::AtLeast => "≥",
    };
    let verdict = match bar.holds() {
        Some(true) => "holds",
        Some(false) => "MISSED",
        None => "not measured",
    };
    let limit = format!("{sign} {} {}", bar.limit, bar.unit);
    let value = bar
        .value
        .map_or("-".into(), |value| format!("{value:.2} {}", bar.unit));
    format!("{:64} {limit:>12} {value:>10}  {verdict}", bar.what)
}

/// Microseconds as milliseconds, to the hundredth.
pub fn milliseconds(micros: f64) -> String {
    format!("{:.2}", micros / 1e3)
}
