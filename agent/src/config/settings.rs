//! The settings as a table: the names of each in every source, and its default. It is derived from
//! the definition of the flags, so that there is no second list to maintain.

use std::any::TypeId;
use std::collections::BTreeMap;

use clap::builder::{BoolishValueParser, OsStr, Resettable};
use clap::{Arg, ArgAction, Args as _, Command, Id};

use super::AgentArgs;

/// Settings that take effect without a restart, by key.
pub(super) const LIVE: [&str; 6] = [
    "add-timeout",
    "log",
    "max-mtu",
    "max-operations",
    "mtu",
    "subnets",
];

/// The setting that is never shown, by key.
const SECRET: &str = "k8s-token";

/// The form of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One value.
    One,
    /// true or false.
    Switch,
    /// Any number of values, which this character separates in a variable.
    List(Option<char>),
}

/// A setting.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its name in podwire's own file and in this module.
    pub key: String,
    /// Its flag, with the dashes.
    pub flag: String,
    /// Its environment variable.
    pub variable: String,
    /// Its default; empty if that follows from something else, or if there is none.
    pub defaults: Vec<String>,
    /// The form of its value.
    pub kind: Kind,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// Whether a change takes effect without a restart.
    pub live: bool,
    /// Its meaning, as in `--help`.
    pub help: String,
    /// The name of the flag's value in `--help`.
    pub value_name: Option<String>,
}

/// All settings of the agent, or of a command of the node role, by key.
#[derive(Debug, Clone)]
pub struct Settings {
    table: BTreeMap<String, Setting>,
    /// Whether they are the node role's.
    pub(super) of_node: bool,
}

impl Settings {
    /// Those of `podwire agent`.
    pub fn of_agent() -> Self {
        Self::of(&flags(Command::new("agent")), false)
    }

    /// Those of a command of `podwire node`. A variable is the setting's own, the agent's, or none.
    pub(super) fn of_node(verb: &Command) -> Self {
        let mut settings = Self::of(verb, true);
        for argument in verb.get_arguments() {
            if let Some(setting) = settings.table.get_mut(&key_of(argument)) {
                let variable = argument.get_env();
                setting.variable = variable
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default();
            }
        }
        settings
    }

    fn of(command: &Command, of_node: bool) -> Self {
        let settings = command.get_arguments().map(|argument| {
            let setting = Setting::of(argument);
            (setting.key.clone(), setting)
        });
        Self {
            table: settings.collect(),
            of_node,
        }
    }

    /// All of them, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.table.values()
    }

    /// The setting with this key.
    pub fn find(&self, key: &str) -> Option<&Setting> {
        self.table.get(key)
    }

    /// The setting with this flag, including the dashes.
    pub(super) fn by_flag(&self, flag: &str) -> Option<&Setting> {
        self.iter().find(|setting| setting.flag == flag)
    }

    /// The key that was probably meant.
    pub(super) fn nearest(&self, key: &str) -> Option<&str> {
        let wanted = key.to_lowercase().replace('_', "-");
        nearest(&wanted, self.table.keys().map(String::as_str))
    }
}

/// The name most similar to what was written, if they differ by no more than one in three letters.
pub(super) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &&str| strsim::damerau_levenshtein(name, written);
    let found = names.min_by_key(distance)?;
    (distance(&found) <= written.len().div_ceil(3)).then_some(found)
}

impl Setting {
    fn of(argument: &Arg) -> Self {
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let key = key_of(argument);
        Self {
            flag: format!("--{}", argument.get_long().unwrap_or(&key)),
            variable: variable_of(&key),
            defaults: argument
                .get_default_values()
                .iter()
                .map(|value| text(value))
                .collect(),
            kind: match argument.get_action() {
                ArgAction::Append => Kind::List(argument.get_value_delimiter()),
                _ if argument.get_value_parser().type_id() == TypeId::of::<bool>() => Kind::Switch,
                _ => Kind::One,
            },
            secret: key == SECRET,
            live: LIVE.contains(&key.as_str()),
            help: argument
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default(),
            value_name: argument
                .get_value_names()
                .and_then(|names| names.first())
                .map(ToString::to_string),
            key,
        }
    }
}

/// Adds the settings' flags to a command. Their variables rank below the files, and which of two
/// alternatives counts is decided for all sources together.
pub(super) fn flags(command: Command) -> Command {
    let command = with_switches(AgentArgs::augment_args(command));
    command.mut_args(|flag| {
        let flag = flag.env(Resettable::<OsStr>::Reset);
        flag.conflicts_with(Resettable::<Id>::Reset)
    })
}

/// A switch accepts a value too: a source may turn off what a lower one turns on.
pub(super) fn with_switches(command: Command) -> Command {
    command.mut_args(|flag| match flag.get_action() {
        ArgAction::SetTrue => flag
            .action(ArgAction::Set)
            .value_parser(BoolishValueParser::new())
            .default_value("false")
            .default_missing_value("true")
            .num_args(0..=1)
            .require_equals(true),
        _ => flag,
    })
}

/// The environment variable of a setting.
pub(super) fn variable_of(key: &str) -> String {
    format!("PODWIRE_{}", key.replace('-', "_").to_uppercase())
}

/// The key of a setting that is this argument on the command line.
pub(super) fn key_of(argument: &Arg) -> String {
    argument.get_id().as_str().replace('_', "-")
}
