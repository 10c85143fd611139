//! TAP, version 14: a test point for each case and version.

use std::fmt::Write;

use crate::case::Outcome;
use crate::run::Report;

/// The report as TAP. A broken SHOULD is a `TODO`, which a harness tells and does not count.
pub fn tap(report: &Report) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", report.findings.len());
    for (finding, number) in report.findings.iter().zip(1..) {
        let (case, version, level) = (finding.case, finding.version, finding.level);
        let name = format!("{number} - {} in {version}", case.id);
        let (point, why) = match &finding.outcome {
            Outcome::Pass => (format!("ok {name}"), None),
            Outcome::Fail(how) if level == crate::spec::Level::Should => {
                (format!("not ok {name} # TODO a SHOULD"), Some(how))
            }
            Outcome::Fail(how) => (format!("not ok {name}"), Some(how)),
            Outcome::NotApplicable(why) => (format!("ok {name} # SKIP {}", escaped(why)), None),
            Outcome::Skipped(why) => (
                format!("not ok {name} # SKIP not judged: {}", escaped(why)),
                None,
            ),
        };
        text.push_str(&point);
        text.push('\n');
        if let Some(how) = why {
            // JSON is YAML, and has quotes and line ends escaped.
            let quoted = |text: &str| serde_json::Value::from(text).to_string();
            let lines = [
                ("level", quoted(&level.to_string())),
                ("section", quoted(case.section)),
                ("requirement", quoted(case.says)),
                ("found", quoted(how)),
            ];
            text.push_str("  ---\n");
            for (key, value) in lines {
                // Writing to a String can't fail.
                let _ = writeln!(text, "  {key}: {value}");
            }
            text.push_str("  ...\n");
        }
    }
    text
}

/// A description or reason: `#` begins a directive, and a line end the next line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('#', "\\#")
        .replace('\n', " ")
}
