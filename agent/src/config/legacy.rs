//! The command line of ovn-kubernetes' `ovnkube`: which of its flags mean something here, and why the others don't.
//!
//! A unit file or manifest that starts `ovnkube --init-node NAME …` is to start podwire with as little change as can be.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::layers::{Given, Layer, Origin};
use super::usual::PLUGIN_NAMES;

/// Flags that name one of our settings differently, and our argument's id.
const RENAMED: [(&str, &str, &str); 6] = [
    ("k8s-kubeconfig", "kubeconfig", "FILE"),
    ("sb-address", "ovn_remote", "REMOTE"),
    ("sb-client-privkey", "ovn_private_key", "FILE"),
    ("sb-client-cert", "ovn_certificate", "FILE"),
    ("sb-client-cacert", "ovn_ca_cert", "FILE"),
    ("logfile", "log_file", "FILE"),
];

/// Flags that are not a node's, or not podwire's, and whose they are.
const REFUSED: [(&str, &str); 14] = [
    ("init-master", CONTROL_PLANE),
    ("init-cluster-manager", CONTROL_PLANE),
    ("init-ovnkube-controller", CONTROL_PLANE),
    (
        "remove-node",
        "to take a node out of the cluster is the control plane's work; ovnkube does it",
    ),
    (
        "cleanup-node",
        "this is `podwire uninstall --pods`; it takes the pods' ports off the node",
    ),
    (
        "cluster-subnets",
        "pods have their addresses from the controller's annotations, and in plain mode from --subnet",
    ),
    (
        "conntrack-zone",
        "it is for the flows of a node's gateway, and podwire makes none",
    ),
    ("nb-address", NORTHBOUND),
    ("nb-client-privkey", NORTHBOUND),
    ("nb-client-cert", NORTHBOUND),
    ("nb-client-cacert", NORTHBOUND),
    ("gateway-mode", GATEWAY),
    ("gateway-init", GATEWAY),
    ("nodeport", GATEWAY),
];

const CONTROL_PLANE: &str = "podwire is the node's half; the cluster's (network controller, address management) stays with ovnkube";
const NORTHBOUND: &str = "the northbound database is written by the cluster's half; a node reads the southbound one alone";
const GATEWAY: &str =
    "a node's gateway and services stay with ovnkube or whoever makes them; podwire wires pods";

/// The flag that makes ovnkube a node's, and names the node.
const INIT_NODE: &str = "init-node";
const LOG_LEVEL: &str = "loglevel";
const CNI_PLUGIN: &str = "cni-plugin";

/// Makes ovnkube's command lines ours: one dash before a long flag counts as two, as Go's flags have it, and a program that is
/// called `ovnkube` is `podwire agent`.
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

/// The agent has no short flag with a value, so that two letters behind one dash can be nothing else.
fn is_long_with_one_dash(argument: &OsStr) -> bool {
    matches!(argument.as_encoded_bytes(), [b'-', a, b, ..]
        if a.is_ascii_lowercase() && (b.is_ascii_alphanumeric() || *b == b'-'))
}

/// ovnkube's level as a log filter.
pub(super) fn log_filter(level: &str) -> Result<String, String> {
    let filter = match level.trim().parse() {
        // 1 is what ends the program; podwire has nothing above an error.
        Ok(1 | 2) => "error",
        Ok(3) => "warn",
        Ok(4) => "info",
        Ok(5) => "debug",
        Ok(6..=10) => "trace",
        Ok(0 | 11u8..) | Err(_) => {
            return Err(format!(
                "expected 1 (fatal), 2 (error), 3 (warn), 4 (info) or 5 (debug), and not {level:?}"
            ));
        }
    };
    Ok(filter.to_owned())
}

/// Whether the runtime's plugin, as ovnkube is told its name, is ours: the agent serves it under either name, and there is nothing
/// to choose.
pub(super) fn check_plugin(name: &str) -> Result<(), String> {
    match PLUGIN_NAMES.contains(&name) {
        true => Ok(()),
        false => Err(format!(
            "expected {}, and not {name:?}",
            PLUGIN_NAMES.join(" or ")
        )),
    }
}

/// Adds ovnkube's flags to a command, out of sight.
pub(super) fn add_flags(command: Command) -> Command {
    let hidden = |name: &'static str, value: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .value_parser(ValueParser::string())
            .hide(true)
    };
    let refused = |(name, _): (&'static str, &'static str)| {
        // With a value or without.
        hidden(name, "VALUE")
            .num_args(0..=1)
            .action(ArgAction::Append)
    };
    command
        .arg(hidden(INIT_NODE, "NAME").conflicts_with("node_name"))
        .arg(hidden(LOG_LEVEL, "1-5").conflicts_with("log"))
        .arg(hidden(CNI_PLUGIN, "NAME").value_parser(PLUGIN_NAMES))
        .args(RENAMED.map(|(name, id, value)| hidden(name, value).conflicts_with(id)))
        .args(REFUSED.map(refused))
}

/// Says of every flag that is refused why, in one message, so that a unit file is mended in one go.
pub(super) fn refusals(matches: &ArgMatches) -> Result<(), clap::Error> {
    let given = |(name, _): &&(&str, &str)| matches.contains_id(name);
    let reasons: Vec<String> = REFUSED
        .iter()
        .filter(given)
        .map(|(name, why)| format!("--{name} is not for podwire: {why}"))
        .collect();
    if reasons.is_empty() {
        return Ok(());
    }
    let kind = clap::error::ErrorKind::UnknownArgument;
    Err(clap::Error::raw(
        kind,
        format!("{}\n", reasons.join("\n       ")),
    ))
}

/// What ovnkube's flags say, and what follows from their being used.
pub(super) fn layers(matches: &ArgMatches) -> Result<(Layer, Layer), clap::Error> {
    let value = |name: &str| matches.get_one::<String>(name).cloned();
    let (mut layer, mut implied) = (Layer::new(), Layer::new());
    for (name, id, _) in RENAMED {
        if let Some(value) = value(name) {
            let origin = Origin::CommandLine(format!("--{name}"));
            layer.insert(id.replace('_', "-"), Given::one(value, origin));
        }
    }
    if let Some(level) = value(LOG_LEVEL) {
        let filter = log_filter(&level).map_err(|problem| {
            let kind = clap::error::ErrorKind::ValueValidation;
            clap::Error::raw(kind, format!("--{LOG_LEVEL} {level}: {problem}\n"))
        })?;
        let origin = Origin::CommandLine(format!("--{LOG_LEVEL}"));
        layer.insert("log".to_owned(), Given::one(filter, origin));
    }
    if let Some(node) = value(INIT_NODE) {
        let flag = format!("--{INIT_NODE}");
        let origin = Origin::CommandLine(flag.clone());
        layer.insert("node-name".to_owned(), Given::one(node, origin));
        let mode = Given::one("ovn", Origin::Implied(flag));
        implied.insert("mode".to_owned(), mode);
    }
    Ok((layer, implied))
}

#[cfg(test)]
mod tests;
