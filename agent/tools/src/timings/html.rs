//! The waterfall as a self-contained page: no script, no font, no other file.

use std::fmt::Write as _;

use super::super::paint::short_id;
use super::super::time::{milliseconds, utc};
use super::{Ended, Kind, Traced, in_order};

const HEAD: &str = include_str!("page.html");

/// The page, newest operation first.
pub(super) fn page(operations: &[Traced], now: u64) -> String {
    let mut page = HEAD.to_owned();
    let count = operations.len();
    let _ = write!(
        page,
        "<header><h1>podwire timings</h1><p>{count} operations, {}</p></header>\n<main>\n",
        utc(now)
    );
    summary(&mut page, operations);
    legend(&mut page);
    for (number, operation) in operations.iter().rev().enumerate() {
        article(&mut page, operation, number == 0 || operations.len() <= 20);
    }
    page.push_str("</main>\n</html>\n");
    page
}

/// The number of operations of each verb, and how long they took.
fn summary(page: &mut String, operations: &[Traced]) {
    let mut verbs: Vec<&str> = operations.iter().map(|it| it.verb.as_str()).collect();
    verbs.sort_unstable();
    verbs.dedup();
    page.push_str(
        "<table><tr><th>verb<th>count<th>failed<th>fastest<th>median<th>99 %<th>slowest</tr>\n",
    );
    for verb in verbs {
        let of_verb = || operations.iter().filter(|it| it.verb == verb);
        let failed = of_verb()
            .filter(|it| matches!(it.outcome, Ended::Failed { .. }))
            .count();
        let mut times: Vec<f64> = of_verb().map(|it| it.duration_micros).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = ((times.len() - 1) as f64 * share).round() as usize;
            milliseconds(times[place])
        };
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{failed}<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(verb),
            times.len(),
            at(0.0),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    page.push_str("</table>\n");
}

fn legend(page: &mut String) {
    page.push_str("<p class=\"legend\">");
    for kind in Kind::ALL {
        let _ = write!(page, "<i class=\"{}\"></i>{} ", class(kind), kind.word());
    }
    page.push_str("<i class=\"gap\"></i>in no step</p>\n");
}

fn article(page: &mut String, operation: &Traced, open: bool) {
    let outcome = match &operation.outcome {
        Ended::Ok(_) => "<span class=\"ok\">ok</span>".to_owned(),
        Ended::Failed { code, .. } => format!("<span class=\"failed\">failed, code {code}</span>"),
    };
    let id = short_id(&operation.container);
    let whose = operation.pod.as_deref().unwrap_or("");
    let _ = writeln!(
        page,
        "<details{}><summary><b>{}</b> {} <small>{} {}</small> <b>{}</b> {outcome} \
         <time>{}</time></summary>",
        if open { " open" } else { "" },
        escaped(&operation.verb),
        escaped(whose),
        escaped(&operation.ifname),
        escaped(&id),
        milliseconds(operation.duration_micros),
        utc(operation.started_unix_micros),
    );
    if let Ended::Failed { msg, .. } = &operation.outcome {
        let _ = writeln!(page, "<p class=\"failed\">{}</p>", escaped(msg));
    }
    if let Some(traceparent) = &operation.traceparent {
        let _ = writeln!(
            page,
            "<p><small>traceparent {}</small></p>",
            escaped(traceparent)
        );
    }
    let whole = operation.duration_micros.max(0.1);
    let share = |micros: f64| (micros / whole * 100.0).clamp(0.0, 100.0);
    let tick = tick(whole);
    let _ = write!(
        page,
        "<ol style=\"--tick:{:.2}%\">\n<li class=\"axis\"><span></span><span></span><span \
         class=\"lane\">",
        share(tick)
    );
    let mut at = 0.0;
    while at < whole * 0.95 {
        let _ = write!(
            page,
            "<b style=\"left:{:.2}%\">{}</b>",
            share(at),
            label(at, tick)
        );
        at += tick;
    }
    page.push_str("</span></li>\n");
    for row in rows(operation) {
        let _ = writeln!(
            page,
            "<li{}><span>{}</span><span>{}</span><span class=\"lane\"><i class=\"{}\" \
             style=\"left:{:.2}%;width:{:.2}%\"></i></span></li>",
            if row.class == GAP {
                " class=\"gap\""
            } else {
                ""
            },
            escaped(row.name),
            milliseconds(row.micros),
            row.class,
            share(row.start),
            share(row.micros),
        );
    }
    page.push_str("</ol></details>\n");
}

const GAP: &str = "gap";
/// A gap is shown from this share of the whole.
const VISIBLE: f64 = 0.01;

/// A step, or a gap between two, in microseconds.
struct Row<'a> {
    name: &'a str,
    class: &'static str,
    start: f64,
    micros: f64,
}

/// The steps in order, with the time that belongs to no step.
fn rows(operation: &Traced) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut seen = 0.0;
    let gap = |from: f64, to: f64| {
        (to - from > operation.duration_micros * VISIBLE).then_some(Row {
            name: "",
            class: GAP,
            start: from,
            micros: to - from,
        })
    };
    for step in in_order(operation) {
        rows.extend(gap(seen, step.start_micros));
        rows.push(Row {
            name: &step.name,
            class: match step.failed {
                true => "failed",
                false => class(Kind::of(&step.name)),
            },
            start: step.start_micros,
            micros: step.duration_micros,
        });
        seen = f64::max(seen, step.start_micros + step.duration_micros);
    }
    rows.extend(gap(seen, operation.duration_micros));
    rows
}

/// The distance between the scale's lines: 1, 2 or 5 times a power of ten, so that there are four
/// to ten of them.
fn tick(whole: f64) -> f64 {
    let power = 10_f64.powf((whole / 10.0).log10().ceil());
    let fits = |factor: &f64| whole / (power * factor) >= 4.0;
    [1.0, 0.5, 0.2].into_iter().find(fits).unwrap_or(0.1) * power
}

/// A position on the scale, with the decimals that its lines need.
fn label(micros: f64, tick: f64) -> String {
    let (value, unit, tick) = match tick {
        1_000_000.0.. => (micros / 1e6, "s", tick / 1e6),
        _ => (micros / 1e3, "ms", tick / 1e3),
    };
    let decimals = (-tick.log10()).ceil().clamp(0.0, 4.0) as usize;
    format!("{value:.decimals$} {unit}")
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Wait => "wait",
        Kind::Kernel => "kernel",
        Kind::Database => "database",
        Kind::Agent => "agent",
    }
}

/// Escapes text for HTML: names and messages come from outside.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
