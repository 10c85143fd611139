//! The versions of the specification, ordered by age.

use std::fmt;
use std::str::FromStr;

use super::Command;
use super::error::excerpt;

/// A supported version of the CNI specification; older ones compare as less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CniVersion {
    /// 0.3.0, the first with interfaces in the result.
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0, the first with CHECK.
    V0_4_0,
    /// 1.0.0, the first without `version` in a result's ips.
    V1_0_0,
    /// 1.1.0, the first with GC and STATUS.
    V1_1_0,
}

/// A `cniVersion` that is not supported. Its code is always 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Absent or empty, which according to the specification's first edition means 0.1.0.
    #[error(
        "cniVersion is missing, which means 0.1.0; podwire supports {}",
        CniVersion::list()
    )]
    Missing,
    /// Not one of [`CniVersion::ALL`].
    #[error("cniVersion {} is not supported; podwire supports {}", excerpt(.0), CniVersion::list())]
    Unsupported(String),
    /// The version is known but lacks the verb.
    #[error("{command} needs cniVersion {needed} or later, but the configuration has {version}")]
    Verb {
        /// The verb.
        command: Command,
        /// The first version with it.
        needed: CniVersion,
        /// The configuration's version.
        version: CniVersion,
    },
}

impl CniVersion {
    /// All supported versions, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];
    /// The newest, and the version of errors if the caller's is unknown.
    pub const LATEST: Self = Self::V1_1_0;

    /// The version as written in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Refuses a verb that this version does not have: CHECK came with 0.4.0, GC and STATUS
    /// with 1.1.0.
    pub fn allows(self, command: Command) -> Result<(), VersionError> {
        let needed = match command {
            Command::Add | Command::Del | Command::Version => Self::V0_3_0,
            Command::Check => Self::V0_4_0,
            Command::Gc | Command::Status => Self::V1_1_0,
        };
        if self < needed {
            return Err(VersionError::Verb {
                command,
                needed,
                version: self,
            });
        }
        Ok(())
    }

    fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl FromStr for CniVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        if text.is_empty() {
            return Err(VersionError::Missing);
        }
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| VersionError::Unsupported(text.to_owned()))
    }
}

impl fmt::Display for CniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
