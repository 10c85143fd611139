//! A case: one sentence of the specification, and the test that checks it.

use crate::bench::Bench;
use crate::spec::{Level, Version};
use crate::subject::Kind;
use crate::trouble::Trouble;

/// Levels of a requirement, each with the first version that has it; oldest first.
pub(crate) type Levels = &'static [(Version, Level)];

/// What judges a plugin.
pub(crate) type Test = fn(&Bench<'_>) -> Held;

/// One requirement of the specification.
#[derive(Debug)]
pub struct Case {
    /// Its name: the group, a slash, and what is asked.
    pub id: &'static str,
    /// Where the specification says it (section numbers of 1.0.0 and later).
    pub section: &'static str,
    /// The sentence that is held.
    pub says: &'static str,
    /// From which version on it is a SHOULD or a MUST; oldest first.
    pub levels: Levels,
    /// The last version that says so; `None` when it still does.
    pub until: Option<Version>,
    /// The kinds of plugins that it concerns.
    pub kinds: &'static [Kind],
    /// Whether the plugin has to delegate address management for it to mean anything.
    pub delegation: bool,
    pub(crate) test: Test,
}

impl Case {
    /// A case of the plugins that make an interface.
    pub(crate) const fn new(id: &'static str, test: Test, levels: Levels) -> Self {
        Self {
            id,
            section: "",
            says: "",
            levels,
            until: None,
            kinds: &[Kind::Interface],
            delegation: false,
            test,
        }
    }

    /// With other kinds of plugins.
    pub(crate) const fn of(mut self, kinds: &'static [Kind]) -> Self {
        self.kinds = kinds;
        self
    }

    /// Up to this version.
    pub(crate) const fn until(mut self, version: Version) -> Self {
        self.until = Some(version);
        self
    }

    /// Where the plugin delegates address management.
    pub(crate) const fn delegating(mut self) -> Self {
        self.delegation = true;
        self
    }

    /// Of this section of the specification.
    pub(crate) const fn section(mut self, section: &'static str) -> Self {
        self.section = section;
        self
    }

    /// By this sentence.
    pub(crate) const fn says(mut self, sentence: &'static str) -> Self {
        self.says = sentence;
        self
    }

    /// How strongly a version asks for it; `None` when it does not.
    pub fn level(&self, version: Version) -> Option<Level> {
        if self.until.is_some_and(|until| version > until) {
            return None;
        }
        let so_far = self.levels.iter().rev();
        so_far
            .copied()
            .find(|(since, _)| *since <= version)
            .map(|(_, level)| level)
    }

    /// The strongest level over all versions.
    pub fn strongest(&self) -> Level {
        self.levels
            .iter()
            .map(|(_, level)| *level)
            .max()
            .unwrap_or(Level::Should)
    }
}

/// What came of a case in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The requirement is met.
    Pass,
    /// It is not, and how that showed.
    Fail(String),
    /// It does not concern this plugin or this version, and why.
    NotApplicable(String),
    /// It could not be judged, and why: no fault of the plugin's.
    Skipped(String),
}

/// What a test returns: nothing when the requirement is met.
pub(crate) type Held = Result<(), Verdict>;

/// Why a test ended early.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The plugin breaks the requirement.
    Broken(String),
    /// The requirement does not concern the plugin.
    NotApplicable(String),
    /// The suite could not do its part.
    Unable(Trouble),
}

impl From<Trouble> for Verdict {
    fn from(trouble: Trouble) -> Verdict {
        Verdict::Unable(trouble)
    }
}

impl From<Held> for Outcome {
    fn from(held: Held) -> Outcome {
        match held {
            Ok(()) => Outcome::Pass,
            Err(Verdict::Broken(how)) => Outcome::Fail(how),
            Err(Verdict::NotApplicable(why)) => Outcome::NotApplicable(why),
            Err(Verdict::Unable(trouble)) => Outcome::Skipped(trouble.to_string()),
        }
    }
}

/// Says how the requirement is broken.
pub(crate) fn broken<T>(how: impl Into<String>) -> Result<T, Verdict> {
    Err(Verdict::Broken(how.into()))
}

/// Says why the requirement does not concern the plugin.
pub(crate) fn not_applicable<T>(why: impl Into<String>) -> Result<T, Verdict> {
    Err(Verdict::NotApplicable(why.into()))
}

/// Breaks the requirement unless it is so.
pub(crate) fn require(so: bool, otherwise: impl FnOnce() -> String) -> Held {
    if so { Ok(()) } else { broken(otherwise()) }
}
