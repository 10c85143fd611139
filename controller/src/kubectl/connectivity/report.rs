//! The results of a test of connectivity: a table for people, JSON, and JUnit's XML.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Serialize;

/// Failures of one path that are shown to people.
const MOST: usize = 5;

/// What was tried, and what came of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Everything that was to be tried ended as it should.
    pub(super) is_well: bool,
    pub(super) attempts: Vec<Attempt>,
    /// What could not be tried, with reasons.
    pub(super) not_tried: Vec<String>,
}

/// One client's attempt.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attempt {
    /// The path, such as `pod to another node's pod`.
    pub(super) path: &'static str,
    /// The pods or addresses.
    pub(super) from: String,
    pub(super) to: String,
    /// `IPv4` or `IPv6`; null for a name.
    pub(super) family: Option<&'static str>,
    /// `TCP`, `UDP` or `DNS`.
    pub(super) protocol: &'static str,
    /// Whether it ended as it should: reached, or where a policy denies it, not.
    pub(super) is_well: bool,
    /// Until the connection was made, or the answer was there.
    pub(super) micros: Option<u64>,
    pub(super) problem: Option<String>,
}

impl Report {
    /// One test case for each attempt (the form that CI systems read).
    pub(super) fn junit(&self) -> String {
        let failures = self.attempts.iter().filter(|it| !it.is_well).count();
        let (tests, skipped) = (
            self.attempts.len() + self.not_tried.len(),
            self.not_tried.len(),
        );
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"podwire connectivity\" \
             tests=\"{tests}\" failures=\"{failures}\" skipped=\"{skipped}\">\n"
        );
        for it in &self.attempts {
            let seconds = it.micros.unwrap_or_default() as f64 / 1e6;
            let name = escaped(&format!("{} to {} by {}", it.from, it.to, it.protocol));
            let path = escaped(it.path);
            let _ = write!(
                text,
                "  <testcase classname=\"{path}\" name=\"{name}\" time=\"{seconds:.6}\""
            );
            match (&it.problem, it.is_well) {
                (Some(problem), false) => {
                    let problem = escaped(problem);
                    let _ = writeln!(text, "><failure message=\"{problem}\"/></testcase>");
                }
                _ => text.push_str("/>\n"),
            }
        }
        for what in &self.not_tried {
            let what = escaped(what);
            let _ = writeln!(text, "  <testcase name=\"{what}\"><skipped/></testcase>");
        }
        text + "</testsuite>\n"
    }
}

/// Text in an attribute of XML (XML 1.0 §2.4), whose control characters are not allowed at all.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// For people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut paths: BTreeMap<(&str, &str, &str), Vec<&Attempt>> = BTreeMap::new();
        for it in &self.attempts {
            let family = it.family.unwrap_or("-");
            paths
                .entry((it.path, family, it.protocol))
                .or_default()
                .push(it);
        }
        let width = paths.keys().map(|(path, ..)| path.len()).max().unwrap_or(4);
        writeln!(
            f,
            "{:<width$}  FAMILY  BY   AS IT SHOULD  MEDIAN    SLOWEST",
            "PATH"
        )?;
        for ((path, family, protocol), all) in &paths {
            let well = all.iter().filter(|it| it.is_well).count();
            let mut times: Vec<u64> = all.iter().filter_map(|it| it.micros).collect();
            times.sort_unstable();
            let shown = |time: Option<&u64>| {
                time.map_or("-".to_owned(), |it| format!("{:.1} ms", *it as f64 / 1e3))
            };
            let (median, slowest) = (shown(times.get(times.len() / 2)), shown(times.last()));
            let counts = format!("{well} of {}", all.len());
            writeln!(
                f,
                "{path:<width$}  {family:<6}  {protocol:<3}  {counts:<12}  {median:<8}  {slowest}"
            )?;
            let failed: Vec<_> = all.iter().filter(|it| !it.is_well).collect();
            for it in failed.iter().take(MOST) {
                let problem = it.problem.as_deref().unwrap_or_default();
                writeln!(f, "    {} to {}: {problem}", it.from, it.to)?;
            }
            if failed.len() > MOST {
                writeln!(f, "    and {} more", failed.len() - MOST)?;
            }
        }
        writeln!(f)?;
        for what in &self.not_tried {
            writeln!(f, "not tried: {what}")?;
        }
        let failed = self.attempts.iter().filter(|it| !it.is_well).count();
        match failed {
            0 if self.is_well => writeln!(f, "all {} attempts ended well", self.attempts.len()),
            0 => writeln!(f, "not everything could be tried"),
            _ => writeln!(f, "{failed} of {} attempts failed", self.attempts.len()),
        }
    }
}
