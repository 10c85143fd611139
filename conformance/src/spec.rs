//! The specification's own words: versions, operations, requirement levels and error codes.

use std::fmt;
use std::str::FromStr;

/// A released version of the specification that the suite knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types, reason = "a version's dots")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Version {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Version; 5] = [
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// As a configuration's `cniVersion` has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        Version::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| {
                let known = Version::ALL.map(Version::as_str).join(", ");
                format!("not a version that the suite knows; it knows {known}")
            })
    }
}

/// CNI_COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Version => "VERSION",
        }
    }

    /// Whether it concerns one attachment, and so gets its parameters.
    pub(crate) fn is_of_attachment(self) -> bool {
        matches!(self, Verb::Add | Verb::Del | Verb::Check)
    }
}

/// How strongly a requirement binds (RFC 2119).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Recommended: a plugin may have good reasons against it.
    Should,
    /// Required.
    Must,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Should => "SHOULD",
            Level::Must => "MUST",
        })
    }
}

/// The well-known error codes (section 5, "Error") that cases ask for.
pub(crate) mod code {
    pub(crate) const INCOMPATIBLE_VERSION: u64 = 1;
    pub(crate) const UNSUPPORTED_FIELD: u64 = 2;
    pub(crate) const INVALID_ENVIRONMENT: u64 = 4;
    pub(crate) const IO: u64 = 5;
    pub(crate) const DECODE: u64 = 6;
    pub(crate) const INVALID_CONFIG: u64 = 7;
    /// STATUS: not available; and 51, existing containers may be affected too.
    pub(crate) const NOT_AVAILABLE: [u64; 2] = [50, 51];
    /// All that are given a meaning below 100, where the rest is reserved.
    pub(crate) const WELL_KNOWN: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 11, 50, 51];
    /// From here on a plugin's own.
    pub(crate) const FIRST_OWN: u64 = 100;
}
