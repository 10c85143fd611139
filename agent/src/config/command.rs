//! The command line of `podwire agent`: the settings' flags, the configuration files, and what to
//! print.

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
use super::foreign::{Caller, OVNKUBE};
use super::layers::{Given, Layer, Origin};
use super::settings::{Setting, Settings, key_of};
use super::{foreign, settings};

const CONFIG: &str = "config";
const CONFIG_FILE: &str = "config-file";
const PRINT_CONFIG: &str = "print-config";
/// The variable for `--config`.
pub(super) const CONFIG_VARIABLE: &str = "PODWIRE_CONFIG";

pub(super) const TOKEN_FLAG: &str = "--k8s-token";
/// The variable that a token on the command line is moved to.
pub(super) const TOKEN_VARIABLE: &str = "PODWIRE_K8S_TOKEN_OF_FLAG";
/// What replaces the token on the command line.
pub(super) const HIDDEN: &str = "(hidden)";

/// The command line of `podwire ovnkube`, which is ovn-kubernetes' for a node: the agent's and the
/// node role's in one.
#[derive(Debug, Clone, Default)]
pub struct OvnkubeCommand {
    /// The agent's part; its settings are the node role's too.
    pub agent: AgentCommand,
    /// Whether to remove everything from the node.
    pub cleans_up: bool,
}

impl Args for OvnkubeCommand {
    fn augment_args(command: Command) -> Command {
        AgentCommand::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OvnkubeCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            agent: AgentCommand::of(matches, Caller::Ovnkube)?,
            cleans_up: matches.contains_id("cleanup-node"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The command line of `podwire agent` only. Variables, files and defaults are added when the
/// settings are loaded.
#[derive(Debug, Clone, Default)]
pub struct AgentCommand {
    /// The settings on it.
    pub(super) given: Layer,
    /// Settings that follow from flags, unless set elsewhere.
    pub(super) implied: Layer,
    /// The configuration files.
    pub(super) places: Places,
    /// Print the settings and exit.
    pub print_config: bool,
}

impl Args for AgentCommand {
    fn augment_args(command: Command) -> Command {
        // The variable is shown in the help only: clap would treat its value as the flag's own, but
        // it ranks below the files.
        let command = settings::flags(command).mut_args(|flag| {
            let variable = settings::variable_of(&key_of(&flag));
            with_variable(flag, &variable)
        });
        let command = with_files(command).arg(
            Arg::new(PRINT_CONFIG)
                .long(PRINT_CONFIG)
                .action(ArgAction::SetTrue)
                .help_heading("Where settings come from")
                .help("Print every setting, its value and where the value comes from, and exit"),
        );
        foreign::add_flags(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AgentCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::of(matches, Caller::Agent)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl AgentCommand {
    fn of(matches: &ArgMatches, caller: Caller) -> Result<Self, clap::Error> {
        let (mut given, implied) = foreign::flag_layers(matches, caller)?;
        given.extend(named(matches, &Settings::of_agent()));
        Ok(Self {
            given,
            implied,
            places: places(matches),
            print_config: matches.get_flag(PRINT_CONFIG),
        })
    }
}

/// Adds the flags for the configuration files.
pub(super) fn with_files(command: Command) -> Command {
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
                    _ => "ovn-kubernetes' file; the agent uses a node's settings",
                },
                usual.path.display()
            ))
    };
    command
        .arg(file(CONFIG, &usual.own))
        .mut_arg(CONFIG, |arg| with_variable(arg, CONFIG_VARIABLE))
        .arg(file(CONFIG_FILE, &usual.ovn_k8s))
}

/// The configuration files.
pub(super) fn places(matches: &ArgMatches) -> Places {
    let usual = Places::default();
    let place = |name: &str, usual: Place| match matches.get_one::<PathBuf>(name) {
        Some(path) => Place {
            path: path.clone(),
            named: true,
        },
        None => usual,
    };
    Places {
        own: place(CONFIG, usual.own),
        ovn_k8s: place(CONFIG_FILE, usual.ovn_k8s),
        microshift: usual.microshift,
        node: usual.node,
    }
}

/// Every user of the machine can read a process' arguments, but only root its environment. So a
/// token on the command line is moved there: this program executes itself again, in its own place,
/// with otherwise the same arguments.
///
/// # Errors
/// execve(2) failed. Without a token, it returns and does nothing.
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

/// The position of a token among the arguments of a command that accepts one.
fn token_at(arguments: &[OsString]) -> Option<(usize, OsString)> {
    let of_ours = |command: &OsString| {
        let ours = ["agent", OVNKUBE, "node"];
        ours.iter().any(|name| command == name)
    };
    if !arguments.get(1).is_some_and(of_ours) {
        return None;
    }
    arguments.iter().enumerate().find_map(|(at, argument)| {
        let value = argument.as_bytes().strip_prefix(TOKEN_FLAG.as_bytes())?;
        let value = value.strip_prefix(b"=")?;
        Some((at, OsStr::from_bytes(value).to_owned()))
    })
}

/// Adds the variable's name to the help.
pub(super) fn with_variable(argument: Arg, variable: &str) -> Arg {
    let help = argument.get_help().map(ToString::to_string);
    let help = format!("{} [env: {variable}]", help.unwrap_or_default());
    argument.help(StyledStr::from(help))
}

/// The settings on the command line, even those with their default value.
pub(super) fn named(matches: &ArgMatches, settings: &Settings) -> Layer {
    let named = settings.iter().filter_map(|setting| {
        let given = named_one(matches, setting)?;
        Some((setting.key.clone(), given))
    });
    named.collect()
}

fn named_one(matches: &ArgMatches, setting: &Setting) -> Option<Given> {
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
