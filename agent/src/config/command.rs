//! The command line of `podwire agent`: the settings' flags, where the files are, and what is to be
//! shown.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process;

use clap::builder::{StyledStr, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::files::{Place, Places};
use super::layers::{Given, Layer, Origin};
use super::settings::{Setting, Settings, key_of};
use super::{foreign, settings};

const CONFIG: &str = "config";
const CONFIG_FILE: &str = "config-file";
const PRINT_CONFIG: &str = "print-config";
/// The variable for `--config`.
pub(super) const CONFIG_VARIABLE: &str = "PODWIRE_CONFIG";

const TOKEN_FLAG: &str = "--k8s-token";
/// The variable that a token of the command line is moved to.
pub(super) const TOKEN_VARIABLE: &str = "PODWIRE_K8S_TOKEN_OF_FLAG";
/// What stands in its place.
const HIDDEN: &str = "(hidden)";

/// What the command line of `podwire agent` says. Only what is on it: variables, files and defaults
/// come in below, when the settings are loaded.
#[derive(Debug, Clone, Default)]
pub struct AgentCommand {
    /// The settings that it names.
    pub(super) given: Layer,
    /// What follows from flags unless something is said.
    pub(super) implied: Layer,
    /// Where the files are.
    pub(super) places: Places,
    /// Show the settings and end.
    pub print_config: bool,
}

impl Args for AgentCommand {
    fn augment_args(command: Command) -> Command {
        // The variable is named in the help alone: clap would take its value for the flag's own,
        // and it is to stand below the files.
        let command = settings::flags(command).mut_args(|flag| {
            let variable = settings::variable_of(&key_of(&flag));
            with_variable(flag, &variable)
        });
        let usual = Places::default();
        let file = |name: &'static str, usual: &Place| {
            Arg::new(name)
                .long(name)
                .value_name("FILE")
                .value_parser(ValueParser::path_buf())
                .help_heading("Where settings come from")
                .help(format!(
                    "{} [default: {}]",
                    match name {
                        CONFIG => "The settings, in TOML; read again when it changes",
                        _ => "ovn-kubernetes' own, of which a node's part is taken",
                    },
                    usual.path.display()
                ))
        };
        let command = command
            .arg(file(CONFIG, &usual.own))
            .mut_arg(CONFIG, |arg| with_variable(arg, CONFIG_VARIABLE))
            .arg(file(CONFIG_FILE, &usual.ovn_k8s))
            .arg(
                Arg::new(PRINT_CONFIG)
                    .long(PRINT_CONFIG)
                    .action(ArgAction::SetTrue)
                    .help_heading("Where settings come from")
                    .help("Show every setting, its value and where that comes from, and end"),
            );
        foreign::add_flags(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AgentCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (mut given, implied) = foreign::flag_layers(matches)?;
        for setting in Settings::of_agent().iter() {
            if let Some(value) = named(matches, setting) {
                given.insert(setting.key.clone(), value);
            }
        }
        let usual = Places::default();
        let place = |name: &str, usual: Place| match matches.get_one::<PathBuf>(name) {
            Some(path) => Place {
                path: path.clone(),
                named: true,
            },
            None => usual,
        };
        Ok(Self {
            given,
            implied,
            places: Places {
                own: place(CONFIG, usual.own),
                ovn_k8s: place(CONFIG_FILE, usual.ovn_k8s),
                microshift: usual.microshift,
                node: usual.node,
            },
            print_config: matches.get_flag(PRINT_CONFIG),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Every user of the machine can read a process's arguments, and root alone its environment. So a
/// token on the command line is moved there, by starting this very program anew in its own place;
/// that one gets its arguments from here as they were.
///
/// # Errors
/// Of execve(2); else it returns only with nothing to move.
pub fn with_hidden_token(mut arguments: Vec<OsString>) -> io::Result<Vec<OsString>> {
    if let Some(at) = arguments.iter().position(|argument| argument == TOKEN_FLAG)
        && at + 1 < arguments.len()
    {
        let value = arguments.remove(at + 1);
        arguments[at].push("=");
        arguments[at].push(value);
    }
    let Some((at, token)) = token_at(&arguments) else {
        return Ok(arguments);
    };
    let with = |token: &OsStr| {
        let mut argument = OsString::from(TOKEN_FLAG);
        argument.push("=");
        argument.push(token);
        argument
    };
    match std::env::var_os(TOKEN_VARIABLE) {
        Some(moved) if token == HIDDEN => {
            arguments[at] = with(&moved);
            Ok(arguments)
        }
        _ => {
            arguments[at] = with(OsStr::new(HIDDEN));
            let mut again = process::Command::new("/proc/self/exe");
            again.arg0(&arguments[0]).args(&arguments[1..]);
            Err(again.env(TOKEN_VARIABLE, token).exec())
        }
    }
}

/// Where a token is among the agent's arguments.
fn token_at(arguments: &[OsString]) -> Option<(usize, OsString)> {
    if arguments.get(1).is_none_or(|command| command != "agent") {
        return None;
    }
    arguments.iter().enumerate().find_map(|(at, argument)| {
        let value = argument.as_bytes().strip_prefix(TOKEN_FLAG.as_bytes())?;
        let value = value.strip_prefix(b"=")?;
        Some((at, OsStr::from_bytes(value).to_owned()))
    })
}

/// Names the variable in the help.
fn with_variable(argument: Arg, variable: &str) -> Arg {
    let help = argument.get_help().map(ToString::to_string);
    let help = format!("{} [env: {variable}]", help.unwrap_or_default());
    argument.help(StyledStr::from(help))
}

/// What the command line says of a setting, even when that is the default.
fn named(matches: &ArgMatches, setting: &Setting) -> Option<Given> {
    let id = setting.key.replace('-', "_");
    if matches.value_source(&id) != Some(ValueSource::CommandLine) {
        return None;
    }
    let values = matches.get_raw(&id)?;
    Some(Given {
        values: values
            .map(|value| value.to_string_lossy().into_owned())
            .collect(),
        origin: Origin::CommandLine(setting.flag.clone()),
    })
}
