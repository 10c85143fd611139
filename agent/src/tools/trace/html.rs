//! The waterfall as one page that needs nothing else: no script, no font, no other file.

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
        "<header><h1>podwire trace</h1><p>{count} operations, {}</p></header>\n<main>\n",
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

/// How many of each verb, and how long they took.
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
        let _ = write!(page, "<i class=\"{}\"></i>{} ", class(kind), kind.name());
    }
    page.push_str("</p>\n");
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
        "<details{}><summary><b>{}</b> {} <small>{} {}</small> <b>{}</b> {outcome} <time>{}</time></summary>",
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
    page.push_str("<ol>\n");
    let whole = operation.duration_micros.max(0.1);
    for step in in_order(operation) {
        let share = |micros: f64| (micros / whole * 100.0).clamp(0.0, 100.0);
        let _ = writeln!(
            page,
            "<li><span>{}</span><span>{}</span><span class=\"lane\"><i class=\"{}\" \
             style=\"left:{:.2}%;width:{:.2}%\"></i></span></li>",
            escaped(&step.name),
            milliseconds(step.duration_micros),
            match step.failed {
                true => "failed",
                false => class(Kind::of(&step.name)),
            },
            share(step.start_micros),
            share(step.duration_micros),
        );
    }
    page.push_str("</ol></details>\n");
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Wait => "wait",
        Kind::Kernel => "kernel",
        Kind::Database => "database",
        Kind::Agent => "agent",
    }
}

/// Text as HTML: names and messages come from outside.
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
