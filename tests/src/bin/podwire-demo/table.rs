//! The demo's table: what each pod got, and where the time of its ADD went.

use podwire_tests::{Agent, Failure, TestNode};
use serde_json::Value;

use crate::Wired;
use crate::proof::expect;

/// Characters that the longest bar takes.
const BAR_WIDTH: usize = 36;

/// The table of pods, then one chart for each ADD.
pub(crate) fn render(
    node: &TestNode,
    agent: &Agent<'_>,
    pods: &[Wired<'_>],
) -> Result<String, Failure> {
    let head = ["pod", "addresses", "MAC", "host veth", "ofport", "ADD"].map(str::to_owned);
    let mut rows = vec![head];
    for wired in pods {
        let name = format!("demo/{}", wired.wish.name);
        let interface = node.interface_of(&wired.pod.container);
        expect(
            &name,
            "an Interface row with its sandbox",
            interface.is_some(),
            || "none".to_owned(),
        )?;
        let column = |column: &str| {
            interface
                .as_ref()
                .map_or(Value::Null, |row| row[column].clone())
        };
        let addresses: Vec<String> = members(&wired.result["ips"])
            .iter()
            .map(|ip| text(&ip["address"]))
            .collect();
        let mut addresses = addresses.into_iter();
        rows.push([
            name,
            addresses.next().unwrap_or_default(),
            wired.wish.mac.to_owned(),
            text(&column("name")),
            column("ofport").to_string(),
            format!("{:.1} ms", wired.add_ms),
        ]);
        rows.extend(addresses.map(|address| ["", &address, "", "", "", ""].map(str::to_owned)));
    }
    let mut shown = format!("\n{}", aligned(&rows));
    for wired in pods {
        let name = format!("demo/{}", wired.wish.name);
        shown.push_str(&chart_of_add(
            agent,
            &name,
            &wired.pod.container,
            wired.add_ms,
        )?);
    }
    Ok(shown)
}

/// Where the time of one ADD went.
pub(crate) fn chart_of_add(
    agent: &Agent<'_>,
    name: &str,
    container: &str,
    add_ms: f64,
) -> Result<String, Failure> {
    let traces = agent.get_json("/v1/traces");
    let mut operations = members(&traces["operations"]).iter().rev();
    let add = operations.find(|trace| trace["verb"] == "ADD" && trace["container"] == container);
    expect(name, "a trace of its ADD", add.is_some(), || {
        traces.to_string()
    })?;
    Ok(add.map(|add| chart(name, add_ms, add)).unwrap_or_default())
}

/// One line for each phase: when it began, how long it took, and both as a bar.
fn chart(pod: &str, add_ms: f64, trace: &Value) -> String {
    let ms = |micros: &Value| micros.as_f64().unwrap_or_default() / 1e3;
    let total = ms(&trace["durationMicros"]);
    let outside = add_ms - total;
    let mut text = format!("  Where the {add_ms:.1} ms of {pod} went\n");
    text.push_str(&line(
        "exec, plugin, socket, exit",
        None,
        outside,
        String::new(),
    ));
    let mut phases: Vec<_> = members(&trace["phases"]).iter().collect();
    phases.sort_by(|a, b| ms(&a["startMicros"]).total_cmp(&ms(&b["startMicros"])));
    let mut covered: f64 = 0.0;
    for phase in phases {
        let (start, took) = (ms(&phase["startMicros"]), ms(&phase["durationMicros"]));
        covered = covered.max(start + took);
        let name = phase["name"].as_str().unwrap_or("?");
        text.push_str(&line(name, Some(start), took, bar(start, took, total)));
    }
    let rest = total - covered;
    text.push_str(&line(
        "after the last of these",
        Some(covered),
        rest,
        bar(covered, rest, total),
    ));
    text.push_str(&line(
        "agent, from request to reply",
        Some(0.0),
        total,
        bar(0.0, total, total),
    ));
    text.push('\n');
    text
}

fn line(name: &str, start: Option<f64>, took: f64, bar: String) -> String {
    let start = start.map_or(String::new(), |start| format!("+{start:.2}"));
    format!("    {name:<38} {start:>7} {took:>7.2} ms  {bar}")
        .trim_end()
        .to_owned()
        + "\n"
}

/// A bar of eighths of a character, so that short phases are not all alike.
fn bar(start: f64, took: f64, total: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let scale = |ms: f64| {
        (ms / total.max(f64::MIN_POSITIVE) * BAR_WIDTH as f64).clamp(0.0, BAR_WIDTH as f64)
    };
    let indent = scale(start).floor();
    let eighths = (scale(took) * 8.0).round().max(1.0) as usize;
    format!(
        "{:indent$}{}{}",
        "",
        "█".repeat(eighths / 8),
        PARTS[eighths % 8],
        indent = indent as usize
    )
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}", width = *width))
            .collect();
        text.push_str(&format!("  {}\n", cells.join("   ").trim_end()));
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            text.push_str(&format!("  {}\n", rules.join("───")));
        }
    }
    text + "\n"
}

fn members(array: &Value) -> &[Value] {
    array.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
