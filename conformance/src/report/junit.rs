//! JUnit XML: a suite for each version, a test case for each case.

use std::fmt::Write;
use std::time::Duration;

use crate::case::Outcome;
use crate::run::{Finding, Report};
use crate::spec::{Level, Version};

/// The report as JUnit XML. A broken MUST is a failure; a broken SHOULD, for which the form has no
/// word, a skipped test that says so.
pub fn junit(report: &Report) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text.push_str("<testsuites>\n");
    for version in Version::ALL {
        let of_version = |finding: &&Finding| finding.version == version;
        let findings: Vec<&Finding> = report.findings.iter().filter(of_version).collect();
        if !findings.is_empty() {
            suite(
                &mut text,
                &format!("{} {version}", report.plugin),
                &findings,
            );
        }
    }
    text.push_str("</testsuites>\n");
    text
}

fn suite(text: &mut String, name: &str, findings: &[&Finding]) {
    let count = |wanted: fn(&Finding) -> bool| findings.iter().filter(|it| wanted(it)).count();
    let failures = count(|it| it.level == Level::Must && matches!(it.outcome, Outcome::Fail(_)));
    let errors = count(|it| matches!(it.outcome, Outcome::Skipped(_)));
    let skipped = count(|it| match it.outcome {
        Outcome::NotApplicable(_) => true,
        Outcome::Fail(_) => it.level == Level::Should,
        _ => false,
    });
    let took: Duration = findings.iter().map(|finding| finding.took).sum();
    // Writing to a String can't fail, here and below.
    let _ = writeln!(
        text,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" \
         skipped=\"{skipped}\" time=\"{:.3}\">",
        escaped(name),
        findings.len(),
        took.as_secs_f64(),
    );
    for finding in findings {
        case(text, finding);
    }
    text.push_str("  </testsuite>\n");
}

fn case(text: &mut String, finding: &Finding) {
    let (group, name) = finding
        .case
        .id
        .split_once('/')
        .unwrap_or(("", finding.case.id));
    let _ = write!(
        text,
        "    <testcase classname=\"{}.{}\" name=\"{}\" time=\"{:.3}\"",
        finding.version.as_str().replace('.', "_"),
        escaped(group),
        escaped(name),
        finding.took.as_secs_f64(),
    );
    let said = format!(
        "CNI {}, section {}, {}: {}",
        finding.version, finding.case.section, finding.level, finding.case.says
    );
    let inner = match &finding.outcome {
        Outcome::Pass => {
            text.push_str("/>\n");
            return;
        }
        Outcome::Fail(how) if finding.level == Level::Must => format!(
            "<failure message=\"{}\" type=\"MUST\">{}</failure>",
            escaped(how),
            escaped(&said)
        ),
        Outcome::Fail(how) => {
            format!(
                "<skipped message=\"{}\"/>",
                escaped(&format!("SHOULD, broken: {how}"))
            )
        }
        Outcome::NotApplicable(why) => {
            format!(
                "<skipped message=\"{}\"/>",
                escaped(&format!("not applicable: {why}"))
            )
        }
        Outcome::Skipped(why) => {
            format!("<error message=\"{}\" type=\"not judged\"/>", escaped(why))
        }
    };
    let _ = writeln!(text, ">\n      {inner}\n    </testcase>");
}

/// Markup is escaped, and what XML 1.0 has no place for (control characters) replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(' '),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
