//! Errors in the configuration.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;

use podwire_daemon::output::part;
use podwire_daemon::settings::SettingsError;

use super::layers::Origin;

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", Setting { flag, value, origin: origin.as_ref() })]
pub struct ConfigError {
    /// The flag's name.
    pub flag: Cow<'static, str>,
    /// Its value; a placeholder for a secret.
    pub value: String,
    /// What is wrong with it, or what is valid.
    pub problem: String,
    /// The source of the value; None if it follows from other settings or from the machine.
    pub origin: Option<Origin>,
}

impl From<SettingsError> for ConfigError {
    fn from(error: SettingsError) -> Self {
        Self {
            flag: error.flag.into(),
            value: error.value,
            problem: error.problem,
            origin: None,
        }
    }
}

/// A setting's name and value as its source writes them.
struct Setting<'a> {
    flag: &'a str,
    value: &'a str,
    origin: Option<&'a Origin>,
}

impl fmt::Display for Setting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, value, .. } = self;
        match self.origin {
            None | Some(Origin::Implied(_)) => write!(f, "{flag} {value}"),
            Some(Origin::CommandLine(flag)) => write!(f, "{flag} {value}"),
            Some(Origin::Variable(name)) => write!(f, "{name}={value}"),
            Some(origin) => write!(f, "{origin} = {value}"),
        }
    }
}

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Its content is invalid. The text is not quoted: it may contain a token.
    #[error("{}{}: {problem}", path.display(), part(", line ", *line, ""))]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1, if known.
        line: Option<usize>,
        /// What is wrong with it.
        problem: String,
    },
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A setting is invalid.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// A file is invalid.
    #[error(transparent)]
    File(#[from] FileError),
}
