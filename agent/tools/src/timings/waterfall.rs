//! The waterfall in the terminal: one bar for each step, from its start to its end.

use std::fmt::Write as _;

use super::super::paint::{Paint, printable, short_id, wrapped};
use super::super::time::{ago, milliseconds};
use super::{Ended, Kind, Traced, in_order};

/// Columns for the names of steps and for their times.
const NAME: usize = 28;
const TIME: usize = 10;
/// The widest and narrowest chart, in columns.
const CHART: std::ops::RangeInclusive<usize> = 20..=60;

/// Blocks of one to seven eighths of a column, from the left.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// The operations, oldest first, so that the newest is next to the prompt.
pub(super) fn text(operations: &[Traced], now: u64, width: usize, paint: Paint) -> String {
    if operations.is_empty() {
        return "the agent has had no such operation since it started\n".to_owned();
    }
    let chart = width
        .saturating_sub(NAME + TIME + 5)
        .clamp(*CHART.start(), *CHART.end());
    let mut text = String::new();
    for (number, operation) in operations.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        head(&mut text, operation, now, width, paint);
        for step in in_order(operation) {
            let from = step.start_micros / operation.duration_micros;
            let to = (step.start_micros + step.duration_micros) / operation.duration_micros;
            let bar = bar(from, to, chart);
            let (mark, bar) = match step.failed {
                true => (paint.bad("!"), paint.bad(&bar)),
                false => (" ".to_owned(), coloured(&step.name, &bar, paint)),
            };
            let _ = writeln!(
                text,
                "{mark} {:<NAME$} {:>TIME$}  {bar}",
                printable(&step.name),
                milliseconds(step.duration_micros),
            );
        }
    }
    text
}

fn head(text: &mut String, operation: &Traced, now: u64, width: usize, paint: Paint) {
    let id = short_id(&operation.container);
    let mut whose = format!("{} {}", operation.ifname, id);
    if let Some(pod) = &operation.pod {
        whose = format!("{pod} {whose}");
    }
    let outcome = match &operation.outcome {
        Ended::Ok(_) => paint.good("ok"),
        Ended::Failed { code, .. } => paint.bad(&format!("failed, code {code}")),
    };
    let _ = writeln!(
        text,
        "{} {}  {}  {outcome}  {}",
        paint.strong(&operation.verb),
        printable(whose.trim()),
        paint.strong(&milliseconds(operation.duration_micros)),
        paint.faint(&ago(operation.started_unix_micros, now)),
    );
    if let Ended::Failed { msg, .. } = &operation.outcome {
        for line in wrapped(&printable(msg), width.saturating_sub(2).max(40)) {
            let _ = writeln!(text, "  {}", paint.bad(&line));
        }
    }
}

/// A bar over this part of the chart; never empty.
fn bar(from: f64, to: f64, chart: usize) -> String {
    let eighths = |share: f64| (share.clamp(0.0, 1.0) * chart as f64 * 8.0).round() as usize;
    // No block begins within a column, so a bar begins with its column.
    let start = (eighths(from) / 8).min(chart - 1);
    let end = eighths(to).max(start * 8 + 1);
    let (full, rest) = ((end - start * 8) / 8, (end - start * 8) % 8);
    let mut bar = " ".repeat(start);
    bar.extend(std::iter::repeat_n('█', full));
    if rest > 0 {
        bar.push(EIGHTHS[rest - 1]);
    }
    bar
}

fn coloured(step: &str, bar: &str, paint: Paint) -> String {
    let from = bar.len() - bar.trim_start().len();
    let (space, block) = bar.split_at(from);
    let block = match Kind::of(step) {
        Kind::Wait => paint.doubtful(block),
        Kind::Kernel => paint.command(block),
        Kind::Database => paint.good(block),
        Kind::Agent => block.to_owned(),
    };
    format!("{space}{block}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_lies_where_its_step_does_and_is_never_empty() {
        assert_eq!(bar(0.0, 1.0, 4), "████");
        assert_eq!(bar(0.5, 0.75, 4), "  █");
        assert_eq!(bar(0.0, 0.0, 4), "▏");
        assert_eq!(bar(1.0, 1.0, 4), "   █");
        assert_eq!(bar(0.25, 0.375, 4), " ▌");
    }
}
