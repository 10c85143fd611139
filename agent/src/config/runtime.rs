//! The container runtime's directories, and the network configurations in one of them.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use podwire_daemon::file::if_there;
use serde_json::Value;

use super::{files, usual};

/// The file names that runtimes read (libcni, `ConfFiles`).
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

/// The flags about the container runtime.
#[derive(Debug, Clone, Args)]
pub struct RuntimeArgs {
    /// Network configuration that the agent installs, under the same file name, once it can serve
    /// an ADD; for a DaemonSet
    #[arg(long, value_name = "FILE")]
    pub install_conf: Option<PathBuf>,
    /// Directory of the runtime's network configurations; the agent logs when another one replaces
    /// podwire's
    #[arg(long, value_name = "DIR", default_value = usual::CNI_CONF_DIR)]
    pub cni_conf_dir: PathBuf,
    /// Directory of the runtime's plugins; IPAM plugins may also be in its subdirectories and in
    /// the usual directories, and the agent logs when another plugin replaces podwire's
    #[arg(long, value_name = "DIR", default_value = usual::CNI_BIN_DIR)]
    pub cni_bin_dir: PathBuf,
}

impl RuntimeArgs {
    /// The directories from which IPAM plugins may be run.
    pub fn plugin_directories(&self) -> Vec<PathBuf> {
        let mut directories = vec![self.cni_bin_dir.clone()];
        directories.extend(usual::PLUGIN_DIRECTORIES.map(PathBuf::from));
        directories.dedup();
        directories
    }

    /// Whether the list of this network leaves a capability to another plugin: a plugin beside
    /// podwire's declares it, or podwire's own entry sets it to false. A list that is not in the
    /// directory, such as that of a NetworkAttachmentDefinition, is not known here.
    pub fn leaves_to_another(&self, network: &str, capability: &str) -> bool {
        let lists = network_configurations(&self.cni_conf_dir).unwrap_or_else(|error| {
            tracing::debug!(%error, "the network configurations can't be listed");
            Vec::new()
        });
        let ours = lists
            .iter()
            .find(|(_, list)| list["name"] == network && plugin_types(list).any(is_podwire));
        let plugins = ours.and_then(|(_, list)| list["plugins"].as_array());
        plugins.into_iter().flatten().any(|plugin| {
            let is_ours = plugin["type"].as_str().is_some_and(is_podwire);
            plugin["capabilities"][capability] == !is_ours
        })
    }
}

/// The network configurations in a directory, in the order in which runtimes sort them; null for
/// one that can't be read.
///
/// # Errors
/// The directory exists and can't be listed.
pub fn network_configurations(directory: &Path) -> io::Result<Vec<(PathBuf, Value)>> {
    let entries = if_there(std::fs::read_dir(directory))?;
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten() {
        let path = entry?.path();
        if is_network_configuration(&path) {
            let list = network_configuration(&path);
            found.push((path, list));
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// The network configuration in a file; null if it can't be read.
pub fn network_configuration(path: &Path) -> Value {
    let text = files::read(path).ok();
    text.and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

/// Whether runtimes read a file with this name.
pub fn is_network_configuration(path: &Path) -> bool {
    path.extension()
        .and_then(|ending| ending.to_str())
        .is_some_and(|ending| ENDINGS.contains(&ending))
}

/// The plugins in a configuration or a list.
pub fn plugin_types(list: &Value) -> impl Iterator<Item = &str> {
    let plugins = list["plugins"].as_array().into_iter().flatten();
    std::iter::once(list)
        .chain(plugins)
        .filter_map(|plugin| plugin["type"].as_str())
}

fn is_podwire(plugin: &str) -> bool {
    usual::PLUGIN_NAMES.contains(&plugin)
}
