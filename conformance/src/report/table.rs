//! A table for a terminal: a line for each case, a column for each version.

use std::fmt::Write;

use super::summary;
use crate::case::{Case, Outcome};
use crate::run::{Finding, Report};
use crate::spec::{Level, Version};

/// The report as a table, then every broken requirement with its sentence and what was seen.
/// Colours are for a terminal.
pub fn table(report: &Report, colours: bool) -> String {
    let paint = Paint(colours);
    let versions: Vec<Version> = Version::ALL
        .into_iter()
        .filter(|version| report.findings.iter().any(|it| it.version == *version))
        .collect();
    let cases = cases(report);
    let width = cases.iter().map(|case| case.id.len()).max().unwrap_or(4);
    let mut text = String::new();
    // Writing to a String can't fail, here and below.
    let _ = write!(text, "{:<width$}  {:<6}", report.plugin, "level");
    for version in &versions {
        let _ = write!(text, "  {version:<5}");
    }
    text.push('\n');
    for case in &cases {
        let _ = write!(text, "{:<width$}  {:<6}", case.id, case.strongest());
        for version in &versions {
            let cell = finding(report, case, *version)
                .map(cell)
                .unwrap_or(("", ""));
            let _ = write!(text, "  {}", paint.cell(cell));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    for level in [Level::Must, Level::Should] {
        let broken: Vec<&Finding> = report.broken(level).collect();
        if !broken.is_empty() {
            let _ = writeln!(text, "\n{level}, broken:");
            tell(&mut text, &broken);
        }
    }
    let skipped: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|it| matches!(it.outcome, Outcome::Skipped(_)))
        .collect();
    if !skipped.is_empty() {
        text.push_str("\nNot judged:\n");
        tell(&mut text, &skipped);
    }
    let _ = writeln!(text, "\n{}", summary(report));
    text
}

/// The cases of a selection with their sentences, for `--list`.
pub fn list<'c>(cases: impl Iterator<Item = &'c Case>) -> String {
    let mut text = String::new();
    for case in cases {
        let last = match case.until {
            Some(until) => format!(", until {until}"),
            None => String::new(),
        };
        let levels: Vec<String> = case
            .levels
            .iter()
            .map(|(since, level)| format!("{level} since {since}"))
            .collect();
        let _ = writeln!(
            text,
            "{}\n    {}{last}; section {}\n    {}",
            case.id,
            levels.join(", "),
            case.section,
            case.says
        );
    }
    text
}

/// A broken requirement once, with the versions that it is broken in in the same way.
fn tell(text: &mut String, broken: &[&Finding]) {
    let mut told: Vec<(&Case, &str, Vec<Version>)> = Vec::new();
    for finding in broken {
        let how = match &finding.outcome {
            Outcome::Fail(how) | Outcome::Skipped(how) | Outcome::NotApplicable(how) => how,
            Outcome::Pass => continue,
        };
        let same = told
            .iter_mut()
            .find(|(case, _, _)| case.id == finding.case.id);
        match same {
            Some((_, _, versions)) => versions.push(finding.version),
            None => told.push((finding.case, how, vec![finding.version])),
        }
    }
    for (case, how, versions) in told {
        let versions: Vec<&str> = versions.into_iter().map(Version::as_str).collect();
        let _ = writeln!(
            text,
            "  {} in {}\n    “{}” (section {})\n    {}",
            case.id,
            versions.join(", "),
            case.says,
            case.section,
            how
        );
    }
}

fn cases(report: &Report) -> Vec<&'static Case> {
    let mut cases: Vec<&'static Case> = report.findings.iter().map(|it| it.case).collect();
    cases.dedup_by_key(|case| case.id);
    cases
}

fn finding<'r>(report: &'r Report, case: &Case, version: Version) -> Option<&'r Finding> {
    let mut findings = report.findings.iter();
    findings.find(|it| it.case.id == case.id && it.version == version)
}

/// The word for an outcome, and its colour.
fn cell(finding: &Finding) -> (&'static str, &'static str) {
    match (&finding.outcome, finding.level) {
        (Outcome::Pass, _) => ("pass", "32"),
        (Outcome::Fail(_), Level::Must) => ("FAIL", "31;1"),
        (Outcome::Fail(_), Level::Should) => ("fail", "33"),
        (Outcome::NotApplicable(_), _) => ("n/a", "2"),
        (Outcome::Skipped(_), _) => ("skip", "35"),
    }
}

struct Paint(bool);

impl Paint {
    fn cell(&self, (word, colour): (&str, &str)) -> String {
        let padded = format!("{word:<5}");
        match self.0 && !word.is_empty() {
            true => format!("\x1b[{colour}m{padded}\x1b[0m"),
            false => padded,
        }
    }
}
