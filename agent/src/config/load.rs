//! From all sources to one checked configuration.

use std::num::ParseIntError;
use std::path::{self, Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::{Command, FromArgMatches as _};

use super::command::AgentCommand;
use super::environment::Environment;
use super::error::{ConfigError, LoadError};
use super::layers::{Layer, Merged};
use super::live::{self, Change};
use super::settings::{self, Kind, Settings};
use super::{AgentArgs, Config};

/// All sources of settings, which can be read repeatedly. Command line and environment stay as they
/// were at start; files are read again.
#[derive(Debug, Clone)]
pub struct Loader {
    command: AgentCommand,
    environment: Environment,
    settings: Settings,
}

/// A configuration, and the source of each setting.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings, checked.
    pub config: Config,
    /// The settings as given, by key.
    pub merged: Merged,
    /// The files that exist.
    pub found: Vec<PathBuf>,
    /// What was ignored.
    pub warnings: Vec<String>,
}

impl Loader {
    /// From a command line and an environment.
    pub fn new(mut command: AgentCommand, environment: Environment) -> Self {
        environment.place(&mut command.places.own);
        Self {
            command,
            environment,
            settings: Settings::of_agent(),
        }
    }

    /// The table of all settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The possible files, in order of precedence.
    pub fn files(&self) -> [&Path; 4] {
        self.command.places.paths()
    }

    /// The file in which a setting can be changed: podwire's own, whether it exists or not. None if
    /// the command line sets it, which no file overrides.
    pub fn file_for(&self, key: &str) -> Option<PathBuf> {
        let own = &self.command.places.own.path;
        let is_free = !self.command.given.contains_key(key);
        is_free.then(|| path::absolute(own).unwrap_or_else(|_| own.clone()))
    }

    /// Reads the files and merges all sources.
    ///
    /// # Errors
    /// The first invalid file or setting, with its value, what is valid, and its source.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let files = self.command.places.read(&self.settings)?;
        let mut layers = vec![self.command.given.clone()];
        layers.extend(files.layers);
        layers.extend(self.environment.layers(&self.settings));
        layers.push(self.command.implied.clone());
        layers.push(files.node.clone());
        let mut merged = Merged::of(layers);
        merged.leave_to_node(&files.node);
        let mut warnings = files.warnings;
        warnings.extend(self.environment.unknown(&self.settings));
        warnings.extend(merged.passed_over.iter().map(|(key, counts)| {
            format!("{key} is not used, for {counts} is given in the same place")
        }));
        Ok(Loaded {
            config: config(&self.settings, &merged)?,
            merged,
            found: files.found,
            warnings,
        })
    }

    /// The part of `now` that an agent running with `before` can apply: the live settings, checked
    /// against the others in force.
    ///
    /// # Errors
    /// A live setting is invalid without a change that needs a restart.
    pub fn without_restart(&self, before: &Loaded, now: &Loaded) -> Result<Loaded, ConfigError> {
        let is_live = |key: &str| self.settings.find(key).is_some_and(|setting| setting.live);
        let pick = |layer: &Layer, live: bool| -> Layer {
            let picked = layer.iter().filter(|(key, _)| is_live(key) == live);
            picked
                .map(|(key, given)| (key.clone(), given.clone()))
                .collect()
        };
        let mut merged = before.merged.clone();
        merged.given = pick(&before.merged.given, false);
        merged.given.extend(pick(&now.merged.given, true));
        Ok(Loaded {
            config: config(&self.settings, &merged)?,
            merged,
            found: now.found.clone(),
            warnings: now.warnings.clone(),
        })
    }

    /// The differences.
    pub fn changes(&self, before: &Loaded, now: &Loaded) -> Vec<Change> {
        live::changes(&self.settings, &before.merged, &now.merged)
    }
}

/// Parses and checks the settings.
fn config(settings: &Settings, merged: &Merged) -> Result<Config, ConfigError> {
    let located = |error: ConfigError| locate(settings, merged, error);
    let args = parse(settings, merged).map_err(located)?;
    Config::from_args(args).map_err(located)
}

/// Parses the values with the flags' own parser, whatever their source.
fn parse(settings: &Settings, merged: &Merged) -> Result<AgentArgs, ConfigError> {
    let command = Command::new("settings").no_binary_name(true);
    let command = settings::flags(command);
    command
        .try_get_matches_from(flags_of(settings, merged))
        .and_then(|matches| AgentArgs::from_arg_matches(&matches))
        .map_err(|error| refused(settings, &error))
}

/// The settings as flags.
pub(super) fn flags_of(settings: &Settings, merged: &Merged) -> Vec<String> {
    let told = settings.iter().filter_map(|setting| {
        let given = merged.find(&setting.key)?;
        Some(given.values.iter().map(|value| {
            let flag = &setting.flag;
            format!("{flag}={value}")
        }))
    });
    told.flatten().collect()
}

/// A parser's error in podwire's form.
pub(super) fn refused(settings: &Settings, error: &clap::Error) -> ConfigError {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // `--mtu <BYTES>`
    let shown = context(ContextKind::InvalidArg).unwrap_or_default();
    let flag = shown.split([' ', '=', '[']).next().unwrap_or_default();
    let is_switch = settings
        .by_flag(flag)
        .is_some_and(|setting| setting.kind == Kind::Switch);
    let source = std::error::Error::source(error);
    let problem = match (context(ContextKind::ValidValue), source) {
        (Some(values), _) if !values.is_empty() => format!("expected {values}"),
        _ if is_switch => "expected true or false".to_owned(),
        (_, Some(source)) if source.is::<ParseIntError>() => {
            format!("expected a whole number ({source})")
        }
        (_, Some(source)) => source.to_string(),
        (_, None) => error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
    };
    ConfigError {
        flag: flag.to_owned().into(),
        value: context(ContextKind::InvalidValue).unwrap_or_default(),
        problem,
        origin: None,
    }
}

/// Adds the source of a refused value; hides a secret.
pub(super) fn locate(settings: &Settings, merged: &Merged, error: ConfigError) -> ConfigError {
    let Some(setting) = settings.by_flag(&error.flag) else {
        return error;
    };
    let origin = merged.find(&setting.key).map(|given| given.origin.clone());
    ConfigError {
        value: if setting.secret {
            "…".to_owned()
        } else {
            error.value
        },
        origin,
        ..error
    }
}

#[cfg(test)]
mod tests;
