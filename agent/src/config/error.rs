//! What can be wrong with what the agent is told.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::layers::Origin;

/// A setting that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", Setting { flag, value, origin: origin.as_ref() })]
pub struct ConfigError {
    /// The flag's name.
    pub flag: Cow<'static, str>,
    /// Its value; of a secret, what stands for it.
    pub value: String,
    /// What is wrong with it, or what was expected.
    pub problem: String,
    /// Where the value comes from; none for one that follows from others, or from the machine.
    pub origin: Option<Origin>,
}

/// A setting's name and value as they stand where they come from.
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
        /// What the kernel said.
        source: io::Error,
    },
    /// It is not what it should be. The text is not repeated: there may be a token in it.
    #[error("{}{}: {problem}", path.display(), Line(*line))]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1, where it can be told.
        line: Option<usize>,
        /// What is wrong with it.
        problem: String,
    },
}

struct Line(Option<usize>);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(line) => write!(f, ", line {line}"),
            None => Ok(()),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A setting is not valid.
    #[error(transparent)]
    Setting(#[from] ConfigError),
    /// A file is not.
    #[error(transparent)]
    File(#[from] FileError),
}
