//! Several plugins side by side, in Markdown.

use std::fmt::Write;

use crate::case::{Case, Outcome};
use crate::run::{Finding, Report};
use crate::spec::Level;

/// A table with a column for each report, then what each plugin's broken requirements looked like.
pub fn comparison(reports: &[(&str, &Report)]) -> String {
    let mut text = String::from("| case | level |");
    for (name, _) in reports {
        // Writing to a String can't fail, here and below.
        let _ = write!(text, " {name} |");
    }
    text.push_str("\n| --- | --- |");
    text.push_str(&" --- |".repeat(reports.len()));
    text.push('\n');
    for case in crate::cases() {
        let _ = write!(text, "| `{}` | {} |", case.id, levels(case));
        for (_, report) in reports {
            let _ = write!(text, " {} |", cell(report, case));
        }
        text.push('\n');
    }
    for (name, report) in reports {
        let _ = writeln!(text, "\n### What {name} does otherwise\n");
        let before = text.len();
        for level in [Level::Must, Level::Should] {
            tell(&mut text, report, level);
        }
        if text.len() == before {
            text.push_str("Nothing that the suite sees.\n");
        }
    }
    text
}

/// `pass`, or what it is in which versions.
fn cell(report: &Report, case: &Case) -> String {
    let findings: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|it| it.case.id == case.id)
        .collect();
    let broken = |level: Level| -> Vec<&str> {
        let broken = findings
            .iter()
            .filter(|it| it.level == level && matches!(it.outcome, Outcome::Fail(_)));
        broken.map(|it| it.version.as_str()).collect()
    };
    let passed = findings.iter().any(|it| it.outcome == Outcome::Pass);
    let skipped = findings
        .iter()
        .any(|it| matches!(it.outcome, Outcome::Skipped(_)));
    let judged = findings
        .iter()
        .filter(|it| !matches!(it.outcome, Outcome::NotApplicable(_)))
        .count();
    let (musts, shoulds) = (broken(Level::Must), broken(Level::Should));
    let mut parts = Vec::new();
    for (word, versions) in [("**FAIL**", &musts), ("fail", &shoulds)] {
        if versions.is_empty() {
            continue;
        }
        // In every version that could be judged: that goes without saying.
        match versions.len() == judged {
            true => parts.push(word.to_owned()),
            false => parts.push(format!("{word} in {}", versions.join(", "))),
        }
    }
    match (parts.is_empty(), passed, skipped) {
        (false, ..) => parts.join("; "),
        (true, _, true) => "not judged".into(),
        (true, true, false) => "pass".into(),
        (true, false, false) => "n/a".into(),
    }
}

fn tell(text: &mut String, report: &Report, level: Level) {
    let mut told = Vec::new();
    for finding in report.broken(level) {
        if told.contains(&finding.case.id) {
            continue;
        }
        told.push(finding.case.id);
        if let Outcome::Fail(how) = &finding.outcome {
            let how = lasting(how).replace('|', "\\|");
            let _ = writeln!(
                text,
                "- `{}` ({level}, section {}): {}. Seen in {}: {how}",
                finding.case.id,
                finding.case.section,
                finding.case.says.trim_end_matches('.'),
                finding.version
            );
        }
    }
}

/// What was seen, without what is different in each run: MAC addresses, ids, generated names.
fn lasting(how: &str) -> String {
    let is_part = |character: char| character.is_ascii_alphanumeric() || "-:".contains(character);
    let mut text = String::with_capacity(how.len());
    let mut rest = how;
    while !rest.is_empty() {
        let end = rest.find(|it| !is_part(it)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let is_mac = word.len() == 17 && word.matches(':').count() == 5;
        let generated = ["cni-conformance-", "netns-", "veth"]
            .into_iter()
            .find(|prefix| word.len() > prefix.len() && word.starts_with(prefix));
        let is_id = word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        match generated {
            Some(prefix) => text.extend([prefix, "…"]),
            None if is_mac || is_id => text.push('…'),
            None => text.push_str(word),
        }
        let separator = after.find(is_part).unwrap_or(after.len());
        text.push_str(&after[..separator]);
        rest = &after[separator..];
    }
    text
}

fn levels(case: &Case) -> String {
    match case.levels {
        [(_, level)] => level.to_string(),
        levels => {
            let parts: Vec<String> = levels
                .iter()
                .map(|(since, level)| format!("{level} since {since}"))
                .collect();
            parts.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lasting;

    #[test]
    fn what_differs_in_each_run_is_left_out() {
        for (seen, lasts) in [
            ("mac is 0a:58:0a:f4:01:0b, not", "mac is …, not"),
            (
                "“/run/cni-conformance-84-571/netns-175f8fd17411”",
                "“/run/cni-conformance-…/netns-…”",
            ),
            (
                "file /run/x/feb88fe8f4b09c7b_eth0.json",
                "file /run/x/…_eth0.json",
            ),
            ("veth689fc4e6 and eth0", "veth… and eth0"),
            ("10.1.0.3/24 by fd00::1", "10.1.0.3/24 by fd00::1"),
        ] {
            assert_eq!(lasting(seen), lasts);
        }
    }
}
