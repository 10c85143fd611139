//! The settings for operators: `--print-config`, and the table in docs/configuration.md.

use std::fmt::Write as _;
use std::path::Path;

use itertools::Itertools as _;

use super::load::{Loaded, Loader};
use super::settings::{Kind, Setting, Settings};
use super::{Config, Mode, Need};

/// The column in which `--print-config` shows the source of a value.
const COLUMN: usize = 44;

impl Loader {
    /// Mode and servers, each with its source, in one line.
    pub fn servers(&self, loaded: &Loaded) -> String {
        let settings = SERVERS.iter().filter_map(|key| self.settings().find(key));
        let lines = settings.map(|setting| line(setting, loaded));
        let is_on = |value: &str| !value.starts_with('#') && !value.ends_with("= false");
        let given = lines.filter(|(value, _)| is_on(value));
        let mut given = given.map(|(value, origin)| format!("{value} ({origin})"));
        given.join(", ")
    }

    /// Every setting with its value and source, in the form of a file that podwire accepts: unset
    /// and secret ones are comments.
    ///
    /// `detected` is the MTU in bytes that fits the node, and how it was found.
    pub fn print(&self, loaded: &Loaded, detected: Option<(u32, String)>) -> String {
        let mut text = String::new();
        for path in self.files() {
            let is_found = loaded.found.iter().any(|found| found == path);
            let what = if is_found { "read" } else { "not there" };
            let _ = writeln!(text, "# {what}: {}", path.display());
        }
        for warning in &loaded.warnings {
            let _ = writeln!(text, "# {warning}");
        }
        for setting in self.settings().iter() {
            let (value, origin) = match (&detected, loaded.merged.find(&setting.key)) {
                (Some((mtu, how)), None) if setting.key == "mtu" => {
                    (format!("# mtu = {mtu}"), format!("detected: {how}"))
                }
                _ => line(setting, loaded),
            };
            let _ = writeln!(text, "{value:COLUMN$} # {origin}");
        }
        text
    }
}

/// The settings that say which mode and which servers.
const SERVERS: [&str; 5] = ["mode", "ovsdb", "kubeconfig", "k8s-apiserver", "in-cluster"];

/// A setting's line, in its two parts.
fn line(setting: &Setting, loaded: &Loaded) -> (String, String) {
    let key = &setting.key;
    if let Some(given) = loaded.merged.find(key) {
        let origin = given.origin.to_string();
        return match setting.secret {
            true => (format!("# {key} = …"), format!("{origin} (secret)")),
            false => (format!("{key} = {}", toml(setting, &given.values)), origin),
        };
    }
    if !setting.defaults.is_empty() {
        let value = toml(setting, &setting.defaults);
        return (format!("{key} = {value}"), "default".to_owned());
    }
    match loaded.config.follows(key) {
        Follows::Values(values) => {
            let value = toml(setting, &values);
            (format!("{key} = {value}"), "default".to_owned())
        }
        Follows::Later(when) => (format!("# {key}"), when.to_owned()),
        Follows::Nothing => (format!("# {key}"), "not set".to_owned()),
    }
}

fn toml(setting: &Setting, values: &[String]) -> String {
    let quoted = |value: &String| toml::Value::String(value.clone()).to_string();
    let is_number = |value: &str| value.parse::<u32>().is_ok_and(|n| n.to_string() == value);
    match (setting.kind, values) {
        (Kind::List(_), values) => format!("[{}]", values.iter().map(quoted).join(", ")),
        (Kind::Switch, [value]) => {
            let is_on =
                ["true", "1", "yes", "on", "y", "t"].contains(&value.to_lowercase().as_str());
            is_on.to_string()
        }
        (_, [value]) if is_number(value) => value.clone(),
        (_, values) => values.iter().map(quoted).collect(),
    }
}

/// The effective value of a setting that is not set and has no fixed default.
enum Follows {
    /// These values, from other settings or from the machine.
    Values(Vec<String>),
    /// Known only at run time.
    Later(&'static str),
    /// None.
    Nothing,
}

impl Config {
    fn follows(&self, key: &str) -> Follows {
        let path = |path: &Path| vec![path.display().to_string()];
        Follows::Values(match key {
            "socket" => path(&self.socket),
            "ovs-rundir" => path(&self.ovs_rundir),
            "wait" => vec![self.ovn.wait.name().to_owned()],
            "annotations" => vec![
                match self.sources.annotations {
                    Need::Required => "required",
                    Need::Optional => "optional",
                }
                .to_owned(),
            ],
            "sources" => {
                let order = self.sources.order.iter();
                order.map(|source| source.name().to_owned()).collect()
            }
            "node-name" => match &self.sources.kube {
                Some(kube) => vec![kube.node.clone()],
                None => return Follows::Nothing,
            },
            "subnets" if self.ovn.mode == Mode::Plain => {
                let subnets = self.live.subnets.iter();
                subnets.map(|subnet| subnet.subnet().to_string()).collect()
            }
            "mtu" => {
                return Follows::Later(match self.ovn.mode {
                    Mode::Plain => "detected: the uplink's",
                    Mode::Ovn => "detected: the uplink's, less the tunnel's overhead",
                });
            }
            "ovn-remote" if self.ovn.mode == Mode::Ovn => {
                return Follows::Later("external_ids:ovn-remote of Open vSwitch");
            }
            _ => return Follows::Nothing,
        })
    }
}

/// The table of all settings for docs/configuration.md.
pub fn reference(settings: &Settings) -> String {
    let mut text = "| key in the file | flag | variable | default | live | meaning |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    for setting in settings.iter() {
        let (meaning, default) = meaning_and_default(setting);
        let flag = match (&setting.value_name, setting.kind) {
            (_, Kind::Switch) | (None, _) => setting.flag.clone(),
            (Some(value), _) => format!("{} {value}", setting.flag),
        };
        let live = if setting.live { "yes" } else { "" };
        let key = &setting.key;
        let cells = [
            format!("`{key}`"),
            format!("`{flag}`"),
            setting.variable.clone(),
            default,
            live.to_owned(),
            meaning,
        ];
        let _ = writeln!(
            text,
            "| {} |",
            cells.map(|cell| cell.replace('|', "\\|")).join(" | ")
        );
    }
    text
}

/// The help text ends with the default, in brackets, if it is no fixed value.
fn meaning_and_default(setting: &Setting) -> (String, String) {
    let fixed = || setting.defaults.join(" ");
    match setting.help.split_once(" [default: ") {
        Some((meaning, default)) => (meaning.to_owned(), default.trim_end_matches(']').to_owned()),
        None => (setting.help.clone(), fixed()),
    }
}

#[cfg(test)]
mod tests;
