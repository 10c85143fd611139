//! The settings of the node role, `podwire node`, from the same sources in the same order as the
//! agent's: those from files and variables are added as flags to its command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::builder::{OsStr, Resettable};
use clap::{ArgMatches, Args as _, Command};
use podwire_node::NodeCommand;

use super::command::{
    HIDDEN, OvnkubeCommand, TOKEN_FLAG, TOKEN_VARIABLE, named, places, with_files, with_variable,
};
use super::environment::{Environment, UNIT_FILE};
use super::error::LoadError;
use super::files::Places;
use super::foreign;
use super::layers::{Layer, Merged, Origin};
use super::load::{flags_of, locate, refused};
use super::settings::{Settings, with_switches};

/// A command of the node role with all its settings.
#[derive(Debug)]
pub struct RoleLine {
    /// `podwire node`, the command and its flags.
    pub arguments: Vec<OsString>,
    /// What was ignored.
    pub warnings: Vec<String>,
    /// The source of each flag's value that is not from the command line.
    origins: BTreeMap<String, Origin>,
}

impl RoleLine {
    /// The source of a flag's value, in brackets after a space; empty for the command line.
    pub fn origin(&self, flag: &str) -> String {
        let origin = self.origins.get(flag);
        origin.map(|it| format!(" ({it})")).unwrap_or_default()
    }
}

/// Adds the flags for the configuration files to the commands of `podwire node`, and leaves their
/// variables, which rank below the files, to [`node_line`].
pub fn node_command(node: Command) -> Command {
    node.mut_subcommands(|verb| {
        let verb = with_files(with_switches(verb));
        verb.mut_args(|flag| {
            let flag = match flag.get_default_values() == ["false"] {
                true => flag
                    .hide_default_value(true)
                    .hide_possible_values(true)
                    .value_name("BOOL"),
                false => flag,
            };
            match flag
                .get_env()
                .map(|variable| variable.to_string_lossy().into_owned())
            {
                Some(name) => with_variable(flag.env(Resettable::<OsStr>::Reset), &name),
                None => flag,
            }
        })
    })
}

/// The complete command line of a command of `podwire node`, from the given part.
///
/// # Errors
/// The first invalid file or setting.
pub fn node_line(node: &ArgMatches) -> Result<Option<RoleLine>, LoadError> {
    let Some((verb, given)) = node.subcommand() else {
        return Ok(None);
    };
    let settings = settings(verb);
    let layer = named(given, &settings);
    line(
        verb,
        &settings,
        layer,
        places(given),
        &Environment::of_process().with_file(Path::new(UNIT_FILE))?,
    )
    .map(Some)
}

/// How to start the node role beside the agent.
#[derive(Debug, Clone)]
pub struct RoleCommand {
    /// The arguments of `podwire`.
    pub arguments: Vec<OsString>,
    /// Variables for its environment: the token, and what follows from flags unless set elsewhere.
    pub variables: Vec<(String, String)>,
}

impl OvnkubeCommand {
    /// The matching command of the node role, which reads files and variables itself.
    pub fn role(&self) -> RoleCommand {
        let verb = if self.cleans_up { "cleanup" } else { "run" };
        let mut arguments: Vec<OsString> = ["node", verb].map(Into::into).into();
        let mut variables = Vec::new();
        for (flag, value) in self.flags(verb) {
            // Everybody can read another process' arguments.
            let hides = flag == TOKEN_FLAG && !self.cleans_up;
            let shown = if hides { HIDDEN } else { value.as_str() };
            arguments.push(format!("{flag}={shown}").into());
            if hides {
                variables.push((TOKEN_VARIABLE.to_owned(), value));
            }
        }
        for (key, given) in &self.agent.implied {
            if let Some(setting) = settings(verb).find(key)
                && std::env::var_os(&setting.variable).is_none()
            {
                variables.push((setting.variable.clone(), given.values.concat()));
            }
        }
        arguments.push(match self.cleans_up {
            true => "--cluster".into(),
            false => "--until-stdin-ends".into(),
        });
        RoleCommand {
            arguments,
            variables,
        }
    }

    fn flags(&self, verb: &str) -> Vec<(String, String)> {
        let settings = settings(verb);
        let mut flags = Vec::new();
        for (key, given) in &self.agent.given {
            let setting = settings.find(key).filter(|_| key != "metrics-address");
            let flag = match (setting, foreign::ovn_options().find(|known| known == key)) {
                (Some(setting), _) => setting.flag.clone(),
                (None, Some(option)) if verb == "run" => format!("--ovn-option={option}"),
                (None, _) => continue,
            };
            flags.extend(
                given
                    .values
                    .iter()
                    .map(|value| (flag.clone(), value.clone())),
            );
        }
        for (flag, path) in self.agent.places.named() {
            flags.push((flag.to_owned(), path.display().to_string()));
        }
        flags
    }
}

fn settings(verb: &str) -> Settings {
    let mut node = NodeCommand::augment_args(Command::new("node"));
    let found = node.find_subcommand_mut(verb).map(std::mem::take);
    Settings::of_node(&with_switches(found.unwrap_or_default()))
}

fn line(
    verb: &str,
    settings: &Settings,
    given: Layer,
    mut places: Places,
    environment: &Environment,
) -> Result<RoleLine, LoadError> {
    environment.place(&mut places.own);
    let files = places.read(settings)?;
    let mut layers = vec![given];
    layers.extend(files.layers);
    layers.extend(environment.layers(settings));
    let merged = Merged::of(layers);
    let flags = flags_of(settings, &merged);
    let node = node_command(NodeCommand::augment_args(Command::new("node")));
    let words = ["node", verb].map(str::to_owned).into_iter();
    node.try_get_matches_from(words.chain(flags.iter().cloned()))
        .map_err(|error| locate(settings, &merged, refused(settings, &error)))?;
    let mut arguments: Vec<OsString> = ["podwire", "node", verb].map(Into::into).into();
    // podwire's own setting for a key comes last, and so counts.
    let has_options = settings.find("ovn-options").is_some();
    for option in foreign::ovn_options().filter(|_| has_options) {
        if let Some(given) = merged.find(option) {
            arguments.push(format!("--ovn-option={option}={}", given.values.concat()).into());
        }
    }
    arguments.extend(flags.into_iter().map(Into::into));
    let origins = settings.iter().filter_map(|setting| {
        let origin = &merged.find(&setting.key)?.origin;
        let elsewhere = !matches!(origin, Origin::CommandLine(_));
        elsewhere.then(|| (setting.flag.clone(), origin.clone()))
    });
    Ok(RoleLine {
        arguments,
        warnings: files.warnings,
        origins: origins.collect(),
    })
}

#[cfg(test)]
mod tests;
