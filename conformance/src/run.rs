//! Running the cases, each in every version that the plugin speaks and the requirement is in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bench::Bench;
use crate::case::{Case, Held, Outcome, Verdict};
use crate::cases;
use crate::exec::Input;
use crate::spec::{Level, Verb, Version};
use crate::subject::Subject;
use crate::trouble::Trouble;

/// What is to be run.
#[derive(Debug, Default)]
pub struct Selection {
    /// Only the case of this name; or, where there is none, those whose name has this part, or is
    /// as this pattern with `*` for any text.
    pub pattern: Option<String>,
    /// Only these versions; empty is all.
    pub versions: Vec<Version>,
    /// Set from elsewhere to end the run: what is left is skipped.
    pub stop: Arc<AtomicBool>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plugin's file name.
    pub plugin: String,
    /// The versions that VERSION lists and the suite knows.
    pub speaks: Vec<Version>,
    /// One for each case and version, versions in order within a case.
    pub findings: Vec<Finding>,
}

/// A case in one version.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The requirement.
    pub case: &'static Case,
    /// The version that it was judged in.
    pub version: Version,
    /// How strongly that version asks for it.
    pub level: Level,
    /// What came of it.
    pub outcome: Outcome,
    /// How long that took.
    pub took: Duration,
}

impl Report {
    /// Whether no MUST is broken.
    pub fn conforms(&self) -> bool {
        self.broken(Level::Must).next().is_none()
    }

    /// The broken requirements of a level.
    pub fn broken(&self, level: Level) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| {
            finding.level == level && matches!(finding.outcome, Outcome::Fail(_))
        })
    }

    /// Whether every case could be judged.
    pub fn is_complete(&self) -> bool {
        let skipped = |finding: &Finding| matches!(finding.outcome, Outcome::Skipped(_));
        !self.findings.iter().any(skipped)
    }
}

/// Runs the selected cases one after the other; `told` hears of each before and after it ran.
///
/// # Errors
/// The plugin could not even be asked for its versions. What keeps a single case from being judged
/// is [`Outcome::Skipped`].
pub fn run(
    subject: &Subject,
    selection: &Selection,
    told: &mut dyn FnMut(&'static Case, Option<&Finding>),
) -> Result<Report, Trouble> {
    let speaks = versions(subject)?;
    let mut findings = Vec::new();
    for case in cases::all().filter(|case| selection.takes(case)) {
        for version in Version::ALL {
            let Some(level) = case.level(version) else {
                continue;
            };
            if !selection.versions.is_empty() && !selection.versions.contains(&version) {
                continue;
            }
            told(case, None);
            let started = Instant::now();
            let outcome = if selection.stop.load(Ordering::Relaxed) {
                Outcome::Skipped("the run was interrupted".into())
            } else if !speaks.contains(&version) {
                Outcome::NotApplicable(format!("VERSION does not list {version}"))
            } else if !case.kinds.contains(&subject.kind) {
                Outcome::NotApplicable("it is not for plugins of this kind".into())
            } else if case.delegation && !subject.delegates {
                Outcome::NotApplicable("it does not delegate address management".into())
            } else {
                judge(case, subject, version)
            };
            let finding = Finding {
                case,
                version,
                level,
                outcome,
                took: started.elapsed(),
            };
            told(case, Some(&finding));
            findings.push(finding);
        }
    }
    Ok(Report {
        plugin: subject.name(),
        speaks,
        findings,
    })
}

impl Selection {
    /// Whether a case is to be run.
    pub fn takes(&self, case: &Case) -> bool {
        match &self.pattern {
            None => true,
            Some(name) if cases::all().any(|case| case.id == name) => case.id == name,
            Some(pattern) if pattern.contains('*') => matches(pattern, case.id),
            Some(part) => case.id.contains(part.as_str()),
        }
    }
}

fn judge(case: &'static Case, subject: &Subject, version: Version) -> Outcome {
    on_bench(subject, version, |bench| (case.test)(bench)).into()
}

/// Does something on a bench of its own; all that it has goes with its thread.
fn on_bench(
    subject: &Subject,
    version: Version,
    work: impl FnOnce(&Bench<'_>) -> Held + Send,
) -> Held {
    let panicked = thread::scope(|scope| {
        let case = scope.spawn(|| {
            let bench = Bench::new(subject, version)?;
            let held = work(&bench);
            bench.clean();
            held
        });
        case.join()
    });
    panicked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("without a text").to_owned();
        Err(Verdict::Unable(Trouble::Panic(text)))
    })
}

/// The versions that the plugin lists, as far as it answers VERSION in any usable way.
fn versions(subject: &Subject) -> Result<Vec<Version>, Trouble> {
    let mut listed = None;
    let asked = on_bench(subject, Version::V1_1_0, |bench| {
        let input = json!({"cniVersion": bench.version.as_str()}).to_string();
        let call = bench.call(Verb::Version).input(Input::Bytes(input.into()));
        let answer: Option<Value> = serde_json::from_slice(call.run()?.stdout()).ok();
        listed = answer.and_then(|it| it["supportedVersions"].as_array().cloned());
        Ok(())
    });
    if let Err(Verdict::Unable(trouble)) = asked {
        return Err(trouble);
    }
    let speaks = |version: &Version| match &listed {
        Some(listed) => listed.iter().any(|it| it == version.as_str()),
        // Without an answer there is nothing to go by; each case will tell.
        None => true,
    };
    Ok(Version::ALL.into_iter().filter(speaks).collect())
}

/// Whether a text is as a pattern with `*` for any part.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| matches(rest, &text[at..]))
        }),
    }
}
