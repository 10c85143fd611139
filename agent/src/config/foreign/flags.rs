//! The command line of ovn-kubernetes' `ovnkube`. A unit file or manifest that starts `ovnkube
//! --init-node NAME …` is to start podwire with as little change as can be.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::super::layers::{Given, Layer, Origin};
use super::{Name, Node, NotOurs, flags};

/// Makes ovnkube's command lines ours: one dash before a long flag counts as two, as Go's flags
/// have it, and a program that is called `ovnkube` is `podwire agent`.
pub fn command_line(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let called = arguments
        .first()
        .map(|program| Path::new(program).file_name());
    if called == Some(Some(OsStr::new("ovnkube"))) {
        arguments.insert(1, "agent".into());
    }
    if arguments.get(1).is_some_and(|command| command == "agent") {
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

/// The agent has no short flag with a value, so that two letters behind one dash can be nothing
/// else.
fn is_long_with_one_dash(argument: &OsStr) -> bool {
    matches!(argument.as_encoded_bytes(), [b'-', a, b, ..]
        if a.is_ascii_lowercase() && (b.is_ascii_alphanumeric() || *b == b'-'))
}

/// Adds ovnkube's flags to a command, out of sight.
pub(in super::super) fn add(command: Command) -> Command {
    command.args(flags().map(|name| {
        let flag = Arg::new(name.flag)
            .long(name.flag)
            .value_parser(ValueParser::string())
            .hide(true);
        match name.meaning {
            // With a value or without.
            NotOurs(_) => flag.num_args(0..=1).action(ArgAction::Append),
            _ => flag,
        }
    }))
}

/// What ovnkube's flags say, and what follows from their being used.
///
/// # Errors
/// Every flag that is not podwire's with its reason, in one message, so that a unit file is fixed
/// in one go; or a value.
pub(in super::super) fn layers(matches: &ArgMatches) -> Result<(Layer, Layer), clap::Error> {
    let given: Vec<&Name> = flags()
        .filter(|name| matches.contains_id(name.flag))
        .collect();
    let refusals: Vec<String> = given
        .iter()
        .filter_map(|name| match name.meaning {
            NotOurs(why) => Some(format!("--{} is not for podwire: {why}", name.flag)),
            _ => None,
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
            if matches.value_source(&own) == Some(ValueSource::CommandLine) {
                let text = format!("{flag} cannot be used with --{key}\n");
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
            }
            let origin = Origin::CommandLine(flag);
            layer.insert(key.to_owned(), Given::one(converted, origin));
        }
    }
    Ok((layer, implied))
}
