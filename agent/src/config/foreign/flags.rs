//! The command line of ovn-kubernetes' `ovnkube`. A unit file or manifest that starts `ovnkube
//! --init-node NAME …` should start podwire with as few changes as possible.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::super::layers::{Given, Layer, Origin};
use super::{Fixed, Name, Node, NotOurs, OvnOption, TRUE, flags};

/// ovn-kubernetes' program, and podwire's command that replaces it.
pub(in super::super) const OVNKUBE: &str = "ovnkube";

/// The command that got the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Caller {
    /// The agent alone.
    Agent,
    /// The agent and the node role, as `ovnkube`.
    Ovnkube,
}

/// Converts ovnkube's command lines: one dash before a long flag counts as two, as with Go's flags,
/// and a program called as `ovnkube` is `podwire ovnkube`.
pub fn command_line(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let called = arguments
        .first()
        .map(|program| Path::new(program).file_name());
    let is_it = |word: Option<&OsString>| word.is_some_and(|word| word == OVNKUBE);
    // A process that executed itself again has the command already.
    if called == Some(Some(OsStr::new(OVNKUBE))) && !is_it(arguments.get(1)) {
        arguments.insert(1, OVNKUBE.into());
    }
    let is_agent = arguments.get(1).is_some_and(|command| command == "agent");
    if is_agent || is_it(arguments.get(1)) {
        for argument in arguments.iter_mut().skip(2) {
            if is_long_with_one_dash(argument) {
                let mut long = OsString::from("-");
                long.push(&*argument);
                *argument = long;
            }
        }
    }
    arguments
}

/// The agent has no short flag with a value, so two letters after one dash can't be anything else.
fn is_long_with_one_dash(argument: &OsStr) -> bool {
    matches!(argument.as_encoded_bytes(), [b'-', a, b, ..]
        if a.is_ascii_lowercase() && (b.is_ascii_alphanumeric() || *b == b'-'))
}

/// Adds ovnkube's flags to a command, hidden.
pub(in super::super) fn add(command: Command) -> Command {
    command.args(flags().map(|name| {
        let flag = Arg::new(name.flag)
            .long(name.flag)
            .value_parser(ValueParser::string())
            .hide(true);
        match name.meaning {
            // With or without a value.
            NotOurs(_) => flag.num_args(0..=1).action(ArgAction::Append),
            Fixed(..) | OvnOption(_) => flag.num_args(0..=1).default_missing_value(TRUE),
            _ => flag,
        }
    }))
}

/// The agent's and the node role's settings in ovnkube's flags, and what follows from their use.
///
/// # Errors
/// All flags that podwire can't accept, with their reasons, in one message, so that a unit file is
/// fixed in one go; or an invalid value.
pub(in super::super) fn layers(
    matches: &ArgMatches,
    caller: Caller,
) -> Result<(Layer, Layer), clap::Error> {
    let given: Vec<&Name> = flags()
        .filter(|name| matches.contains_id(name.flag))
        .collect();
    let refusals: Vec<String> = given
        .iter()
        .filter_map(|name| {
            let why = name.meaning.refusal(caller)?;
            Some(format!("--{} is not for podwire: {why}", name.flag))
        })
        .collect();
    if !refusals.is_empty() {
        let text = format!("{}\n", refusals.join("\n       "));
        return Err(clap::Error::raw(ErrorKind::UnknownArgument, text));
    }
    let (mut layer, mut implied) = (Layer::new(), Layer::new());
    for name in given {
        let flag = format!("--{}", name.flag);
        let value = matches
            .get_one::<String>(name.flag)
            .cloned()
            .unwrap_or_default();
        let converted = name.meaning.convert(&value).map_err(|problem| {
            let text = format!("{flag} {value}: {problem}\n");
            clap::Error::raw(ErrorKind::ValueValidation, text)
        })?;
        if matches!(name.meaning, Node) {
            let mode = Given::one("ovn", Origin::Implied(flag.clone()));
            implied.insert("mode".to_owned(), mode);
        }
        if let Some(key) = name.meaning.key() {
            let own = key.replace('-', "_");
            // The agent has no flag for a setting of the node role.
            let is_flag = matches.try_contains_id(&own).is_ok();
            if is_flag && matches.value_source(&own) == Some(ValueSource::CommandLine) {
                let text = format!("{flag} cannot be used with --{key}\n");
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
            }
            let origin = Origin::CommandLine(flag);
            layer.insert(key.to_owned(), Given::one(converted, origin));
        }
    }
    Ok((layer, implied))
}
