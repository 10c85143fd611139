//! The report as one page that needs nothing else.

use std::fmt::Write;

use super::change::{Change, Quantity};
use super::svg::{Axis, Curve, Scale, Span, escape, plot, waterfall};
use super::{CellReport, Report, table};
use crate::bars::{Bar, Good, part};
use crate::perf::ALL;
use crate::run::Measured;
use crate::sample::{AGENT, OWN, TOTAL, quantile};

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>podwire: pod-startup latency</title>\
         <style>{STYLE}</style><main><h1>Pod-startup latency</h1>"
    );
    machine(&mut page, report);
    promises(&mut page, &report.bars);
    let milliseconds = Axis {
        title: "milliseconds",
        scale: Scale::Log,
    };
    let share = Axis {
        title: "share of ADDs",
        scale: Scale::Linear,
    };
    for cell in &report.cells {
        let figure = plot(&distributions(cell), milliseconds, share);
        section(
            &mut page,
            &format!("ADD, {}", cell.cell.title),
            DISTRIBUTION,
            &figure,
        );
        if let Some(podwire) = cell.measured.iter().find(|it| it.subject == "podwire")
            && cell.cell.threads == 1
        {
            let title = format!("Where an ADD's time goes, {}", cell.cell.title);
            section(&mut page, &title, WATERFALL, &waterfall(&spans(podwire)));
        }
    }
    let axis = |title, scale| Axis { title, scale };
    for (title, words, curves, x, y) in [
        (
            "Throughput against concurrency",
            THROUGHPUT,
            throughput(report),
            "operations under way at once",
            "pods per second",
        ),
        (
            "Cost against pods present",
            PORTS,
            beside_ports(report),
            "pods present",
            "milliseconds, p50",
        ),
        (
            "ovs-vswitchd's processor time of one ADD, by function",
            FUNCTIONS,
            functions(report),
            "pods present",
            "milliseconds of processor time",
        ),
    ] {
        let drawn = plot(&curves, axis(x, Scale::Log), axis(y, Scale::Linear));
        section(&mut page, title, words, &drawn);
    }
    for quantity in Quantity::ALL {
        let title = format!("Before and after: {}", quantity.title());
        let curves = before_and_after(&report.changes, quantity);
        let x = axis("pods present", Scale::Log);
        let drawn = plot(&curves, x, axis("milliseconds", Scale::Linear));
        section(&mut page, &title, CHANGES, &drawn);
    }
    let _ = write!(page, "<h2>The floor's netlink messages</h2><ol>");
    for message in &report.floor.messages {
        let _ = write!(page, "<li>{}</li>", escape(message));
    }
    let ways: Vec<String> = report
        .floor
        .medians
        .iter()
        .map(|(way, micros)| format!("{way:?} {} ms", table::milliseconds(*micros)))
        .collect();
    let _ = write!(
        page,
        "</ol><p>The fastest of three ways of sending them; medians: {}.</p>",
        ways.join(", ")
    );
    let _ = write!(
        page,
        "<h2>All numbers</h2><pre>{}</pre></main></html>",
        escape(&table::table(report))
    );
    page
}

const DISTRIBUTION: &str = "Each curve tells which share of ADDs was done within a time. The floor \
                            is the spawn of an empty process, the netlink messages of the same end \
                            state, and one OVSDB transaction; “podwire, own” is the whole ADD \
                            without the time that ovs-vswitchd needs to put the port into service.";
const WATERFALL: &str = "Medians of each step, from the agent's own trace. Steps below each other \
                         at the same time overlap.";
const THROUGHPUT: &str = "Median of the batches of one degree of concurrency.";
const FUNCTIONS: &str = "Each function with all that it calls, by perf. They are not called by \
                         each other: what is missing to all is shared by many.";
const PORTS: &str = "One ADD at a time, on a node that has so many pods already.";
const CHANGES: &str = "One at a time beside other pods: an earlier run's report.json, and this \
                       run. “All numbers” has the other cells.";

fn section(page: &mut String, title: &str, text: &str, figure: &str) {
    if !figure.is_empty() {
        let _ = write!(
            page,
            "<h2>{}</h2><p>{text}</p><figure>{figure}</figure>",
            escape(title)
        );
    }
}

fn machine(page: &mut String, report: &Report) {
    let machine = &report.machine;
    let _ = write!(
        page,
        "<p class=\"quiet\">{} × {} · Linux {} · {} · {:.0} s · load {}</p><p>All in one run, the \
         subjects in turn on one node. Compare the ratios; the times are those of this \
         machine.</p>",
        machine.cores,
        escape(&machine.processor),
        escape(&machine.kernel),
        escape(&machine.open_vswitch),
        machine.seconds,
        escape(&machine.load.join(" → "))
    );
}

fn promises(page: &mut String, bars: &[Bar]) {
    page.push_str("<h2>Promises</h2><table><tr><th>what<th>promised<th>measured<th>");
    for bar in bars {
        let sign = match bar.good {
            Good::AtMost => "≤",
            Good::AtLeast => "≥",
        };
        let (class, verdict) = match bar.holds() {
            Some(true) => ("good", "holds"),
            Some(false) => ("bad", "missed"),
            None => ("quiet", "not measured"),
        };
        let value = bar
            .value
            .map_or("–".into(), |value| format!("{value:.2} {}", bar.unit));
        let _ = write!(
            page,
            "<tr><td>{}<td>{sign} {} {}<td>{value}<td class=\"{class}\">{verdict}",
            escape(bar.what),
            bar.limit,
            bar.unit
        );
    }
    page.push_str("</table>");
}

fn distributions(cell: &CellReport) -> Vec<Curve> {
    let mut curves = Vec::new();
    for measured in &cell.measured {
        let mut curve = |name: &str, class: &str, name_of_part: &str| {
            let mut times: Vec<f64> = part(&measured.add, name_of_part).collect();
            times.sort_by(f64::total_cmp);
            // As many points as the eye can tell apart.
            let points = (1..=200).filter_map(|n| {
                let share = f64::from(n) / 200.0;
                Some((quantile(&times, share)? / 1e3, share))
            });
            curves.push(Curve {
                name: name.into(),
                class: class.into(),
                points: points.collect(),
            });
        };
        curve(measured.subject, measured.subject, TOTAL);
        if measured.subject == "podwire" {
            curve("podwire, own", "own", OWN);
        }
    }
    curves.retain(|curve| !curve.points.is_empty());
    curves
}

/// The plugin's and the agent's steps over one axis. The agent's clock starts when it has the
/// request; half of what the plugin's whole time is longer lies before that.
fn spans(podwire: &Measured) -> Vec<Span> {
    let middle = |name| podwire.add_summary(name).map_or(0.0, |summary| summary.p50);
    let (total, agent) = (middle(TOTAL), middle(AGENT));
    let before = (total - agent).max(0.0) / 2.0;
    let span = |name: &str, class: &str, start: f64, took: f64| Span {
        name: name.into(),
        class: class.into(),
        start: start / 1e3,
        took: took / 1e3,
    };
    let mut spans = vec![
        span("whole ADD", "podwire", 0.0, total),
        span("agent", "own", before, agent),
    ];
    for phase in &podwire.waterfall {
        let class = match phase.name.split(':').next() {
            Some("ovs-vswitchd" | "ovn-controller") => "bridge",
            Some("ovsdb") => "forking",
            _ => "floor",
        };
        spans.push(span(&phase.name, class, before + phase.start, phase.took));
    }
    spans
}

fn throughput(report: &Report) -> Vec<Curve> {
    let cells = || {
        report
            .throughput
            .iter()
            .chain(&report.cells)
            .filter(|cell| cell.cell.pods > 1)
    };
    let rate = |cell: &CellReport, subject: &str| {
        let measured = cell.measured.iter().find(|it| it.subject == subject)?;
        Some((cell.cell.threads as f64, measured.pods_per_second()?))
    };
    ["floor", "podwire", "bridge", "forking"]
        .into_iter()
        .map(|subject| {
            let mut points: Vec<_> = cells()
                .filter(|cell| cell.cell.name != "burst")
                .filter_map(|cell| rate(cell, subject))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve {
                name: subject.into(),
                class: subject.into(),
                points,
            }
        })
        .filter(|curve| curve.points.len() > 1)
        .collect()
}

fn functions(report: &Report) -> Vec<Curve> {
    // The names are those of Open vSwitch 3.1 to 4.0.
    let shown = [
        (ALL, "podwire"),
        ("bridge_reconfigure", "own"),
        ("iface_refresh_netdev_status", "bridge"),
        ("port_run", "forking"),
        ("route_table_run", "floor"),
    ];
    let curve = |(function, class): (&str, &str)| {
        let points = report.ports.iter().filter_map(|level| {
            let time = level.switch.add_functions.get(function)?;
            Some((level.present.max(1) as f64, *time))
        });
        Curve {
            name: function.into(),
            class: class.into(),
            points: points.collect(),
        }
    };
    let curves = shown.into_iter().map(curve);
    curves.filter(|curve| curve.points.len() > 1).collect()
}

/// A quantity of an earlier run and of this one, beside other pods.
fn before_and_after(changes: &[Change], quantity: Quantity) -> Vec<Curve> {
    let curve = |name: &str, class: &str, value: fn(&Change) -> f64| {
        let changes = changes.iter().filter(|it| it.quantity == quantity);
        let points = changes.filter_map(|it| Some((it.present?.max(1) as f64, value(it))));
        Curve {
            name: name.into(),
            class: class.into(),
            points: points.collect(),
        }
    };
    let mut curves = vec![
        curve("before", "floor", |it| it.before),
        curve("now", "podwire", |it| it.now),
    ];
    curves.retain(|curve| curve.points.len() > 1);
    curves
}

fn beside_ports(report: &Report) -> Vec<Curve> {
    let curve = |name: &str, class: &str, subject: &str, part: &str| {
        let points = report.ports.iter().filter_map(|level| {
            let measured = level.measured.iter().find(|it| it.subject == subject)?;
            Some((
                level.present.max(1) as f64,
                measured.add_summary(part)?.p50 / 1e3,
            ))
        });
        Curve {
            name: name.into(),
            class: class.into(),
            points: points.collect(),
        }
    };
    let mut curves = vec![
        curve("floor", "floor", "floor", TOTAL),
        curve("podwire, own", "own", "podwire", OWN),
        curve("podwire", "podwire", "podwire", TOTAL),
    ];
    curves.retain(|curve| curve.points.len() > 1);
    curves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_runs_have_a_curve_by_the_number_of_pods() {
        let change = |present, quantity, before, now| Change {
            situation: String::new(),
            present,
            quantity,
            before,
            now,
        };
        let changes = [
            change(None, Quantity::Add, 1.0, 1.0),
            change(Some(10), Quantity::Add, 20.0, 10.0),
            change(Some(10), Quantity::Del, 8.0, 9.0),
            change(Some(300), Quantity::Add, 200.0, 90.0),
        ];
        let curves = before_and_after(&changes, Quantity::Add);
        let shown = |it: &Curve| (it.name.clone(), it.points.clone());
        assert_eq!(
            curves.iter().map(shown).collect::<Vec<_>>(),
            [
                ("before".into(), vec![(10.0, 20.0), (300.0, 200.0)]),
                ("now".into(), vec![(10.0, 10.0), (300.0, 90.0)]),
            ]
        );
        // One point is no curve.
        assert!(before_and_after(&changes, Quantity::Del).is_empty());
    }
}
