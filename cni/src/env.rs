//! The variables with which a runtime calls a plugin (CNI spec, section 2, "Parameters"): which of
//! them each verb needs, and their valid values.

mod args;

use std::ffi::OsString;

use crate::spec::{Command, ErrorCode, SpecError, excerpt};
pub use crate::spec::{MAX_IFNAME, MAX_NAME, is_valid_ifname, is_valid_name};

pub use args::{Args, ArgsError};

/// The variables that [`parse`] reads.
pub const VARIABLES: [&str; 6] = [
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
];

/// The longest container id: NAME_MAX, since it becomes part of a file's name.
pub const MAX_CONTAINER_ID: usize = 255;
/// The longest path of a network namespace: PATH_MAX less the closing NUL.
pub const MAX_NETNS: usize = 4095;
/// The longest namespace (DNS-1123 label, as Kubernetes has it).
pub const MAX_NAMESPACE: usize = 63;
/// The longest CNI_ARGS and CNI_PATH.
pub const MAX_TEXT: usize = 64 * 1024;

/// One call of a plugin: the environment, checked. A variable that the verb does not use may be
/// empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The verb.
    pub command: Command,
    /// The sandbox's id; never empty for ADD, DEL and CHECK.
    pub container_id: String,
    /// The absolute path of the network namespace; never empty for ADD and CHECK.
    pub netns: String,
    /// The interface's name in the sandbox; never empty for ADD, DEL and CHECK.
    pub ifname: String,
    /// CNI_ARGS, not parsed; see [`Args::parse`].
    pub args: String,
    /// The directories of delegated plugins, separated by ':'. The specification requires it for
    /// some verbs; podwire needs it only to find a plugin.
    pub path: String,
}

/// Why a call is refused. The code is always 4.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// CNI_COMMAND is missing or empty.
    #[error("CNI_COMMAND is missing: podwire-cni is a CNI plugin, which a container runtime calls")]
    NoCommand,
    /// CNI_COMMAND is not a verb.
    #[error("CNI_COMMAND: {} is not one of ADD, DEL, CHECK, GC, STATUS, VERSION", excerpt(.0))]
    UnknownCommand(String),
    /// Variables that the verb needs are missing or empty.
    #[error("{command} needs the variables {}", .names.join(", "))]
    Missing {
        /// The verb.
        command: Command,
        /// The missing ones.
        names: Vec<&'static str>,
    },
    /// A variable has an invalid value.
    #[error("{name}: {} is not {expected}", excerpt(.value))]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is valid.
        expected: &'static str,
    },
    /// A DEL of an interface that its ADD was refused for, by its name. To a runtime it is a
    /// success: a failed DEL is repeated for ever.
    #[error("CNI_IFNAME: no attachment has an interface named {}", excerpt(.ifname))]
    NothingToDelete {
        /// CNI_IFNAME.
        ifname: String,
    },
    /// A variable is longer than any valid value.
    #[error("{name} has {length} bytes, and at most {limit} are allowed")]
    TooLong {
        /// The variable.
        name: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl From<EnvError> for SpecError {
    fn from(error: EnvError) -> Self {
        Self::new(ErrorCode::INVALID_ENVIRONMENT, error.to_string())
    }
}

/// Parses a call from pairs of name and value. Names other than [`VARIABLES`] are ignored; if a
/// name occurs more than once, the first counts, as with getenv(3).
///
/// # Errors
/// The verb is missing or unknown, or a variable that it needs is missing or invalid.
pub fn parse<N: AsRef<str>>(
    variables: impl IntoIterator<Item = (N, OsString)>,
) -> Result<Invocation, EnvError> {
    let mut values: [Option<OsString>; 6] = Default::default();
    for (name, value) in variables {
        if let Some(at) = VARIABLES.iter().position(|known| *known == name.as_ref()) {
            values[at].get_or_insert(value);
        }
    }
    let [command, container_id, netns, ifname, args, path] = values;
    let command = text("CNI_COMMAND", command)?;
    if command.is_empty() {
        return Err(EnvError::NoCommand);
    }
    let command = command
        .parse()
        .map_err(|()| EnvError::UnknownCommand(command))?;
    if command == Command::Version {
        // Runtimes set dummies or nothing here; only the verb matters.
        return Ok(Invocation::bare(command));
    }
    Invocation {
        command,
        container_id: text("CNI_CONTAINERID", container_id)?,
        netns: text("CNI_NETNS", netns)?,
        ifname: text("CNI_IFNAME", ifname)?,
        args: text("CNI_ARGS", args)?,
        path: text("CNI_PATH", path)?,
    }
    .checked()
}

impl Invocation {
    /// A call with nothing but a verb.
    pub fn bare(command: Command) -> Self {
        Self {
            command,
            container_id: String::new(),
            netns: String::new(),
            ifname: String::new(),
            args: String::new(),
            path: String::new(),
        }
    }

    /// Checks the variables that the verb uses.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn checked(mut self) -> Result<Self, EnvError> {
        let (of_container, in_netns) = match self.command {
            Command::Add | Command::Check => (true, true),
            Command::Del => (true, false),
            Command::Gc | Command::Status | Command::Version => (false, false),
        };
        let missing: Vec<_> = [
            (
                "CNI_CONTAINERID",
                of_container && self.container_id.is_empty(),
            ),
            ("CNI_NETNS", in_netns && self.netns.is_empty()),
            ("CNI_IFNAME", of_container && self.ifname.is_empty()),
        ]
        .into_iter()
        .filter_map(|(name, missing)| missing.then_some(name))
        .collect();
        if !missing.is_empty() {
            return Err(EnvError::Missing {
                command: self.command,
                names: missing,
            });
        }
        if of_container {
            check_container_id(&self.container_id)?;
            match check_ifname(&self.ifname) {
                Err(_) if self.command == Command::Del => {
                    return Err(EnvError::NothingToDelete {
                        ifname: self.ifname,
                    });
                }
                checked => checked?,
            }
        }
        if let Err(error) = check_netns(&self.netns) {
            if in_netns {
                return Err(error);
            }
            // DEL works without it, and must not fail because of something that it does not need.
            self.netns.clear();
        }
        limit("CNI_ARGS", &self.args, MAX_TEXT)?;
        limit("CNI_PATH", &self.path, MAX_TEXT)?;
        Ok(self)
    }
}

fn check_container_id(id: &str) -> Result<(), EnvError> {
    limit("CNI_CONTAINERID", id, MAX_CONTAINER_ID)?;
    if is_valid_name(id) {
        return Ok(());
    }
    Err(EnvError::Invalid {
        name: "CNI_CONTAINERID",
        value: id.to_owned(),
        expected: "a container id: letters, digits, '_', '.' and '-', the first a letter or digit",
    })
}

fn check_ifname(ifname: &str) -> Result<(), EnvError> {
    limit("CNI_IFNAME", ifname, MAX_IFNAME)?;
    if is_valid_ifname(ifname) {
        return Ok(());
    }
    Err(EnvError::Invalid {
        name: "CNI_IFNAME",
        value: ifname.to_owned(),
        expected: "an interface name: up to 15 characters, not '.' or '..', no '/', ':' or white \
                   space",
    })
}

/// A relative path would be looked up from the agent's directory, not from the runtime's.
fn check_netns(netns: &str) -> Result<(), EnvError> {
    limit("CNI_NETNS", netns, MAX_NETNS)?;
    if netns.is_empty() || netns.starts_with('/') {
        return Ok(());
    }
    Err(EnvError::Invalid {
        name: "CNI_NETNS",
        value: netns.to_owned(),
        expected: "the absolute path of a network namespace",
    })
}

fn limit(name: &'static str, value: &str, limit: usize) -> Result<(), EnvError> {
    match value.len() {
        length if length > limit => Err(EnvError::TooLong {
            name,
            length,
            limit,
        }),
        _ => Ok(()),
    }
}

fn text(name: &'static str, value: Option<OsString>) -> Result<String, EnvError> {
    value
        .unwrap_or_default()
        .into_string()
        .map_err(|bytes| EnvError::Invalid {
            name,
            value: bytes.to_string_lossy().into_owned(),
            expected: "text in UTF-8",
        })
}

#[cfg(test)]
mod tests;
