//! The runtime's side: where its network configurations are, and which plugin is ours.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigError, bad};

/// The names of the plugin, which are one binary.
const PLUGINS: [&str; 2] = ["podwire-cni", "ovn-k8s-cni-overlay"];

/// The flags about the runtime's network configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct CniArgs {
    /// Directory of the runtime's network configurations
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/etc/cni/net.d",
        env = "PODWIRE_CNI_CONF_DIR"
    )]
    pub cni_conf_dir: PathBuf,
    /// Name under which the runtime finds the plugin: podwire-cni or ovn-k8s-cni-overlay
    #[arg(
        long,
        value_name = "NAME",
        default_value = PLUGINS[0],
        env = "PODWIRE_CNI_PLUGIN"
    )]
    pub cni_plugin: String,
}

/// The runtime's network configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniConfig {
    /// Where the runtime's network configurations are.
    pub conf_dir: PathBuf,
    /// The plugin's name.
    pub plugin: String,
}

impl CniConfig {
    pub(super) fn from_args(args: CniArgs) -> Result<Self, ConfigError> {
        let expected = |what| format!("expected {what}");
        if !args.cni_conf_dir.is_absolute() {
            let shown = args.cni_conf_dir.display().to_string();
            return Err(bad("--cni-conf-dir", &shown, &expected("an absolute path")));
        }
        if !PLUGINS.contains(&args.cni_plugin.as_str()) {
            let names = expected(&PLUGINS.join(" or "));
            return Err(bad("--cni-plugin", &args.cni_plugin, &names));
        }
        Ok(Self {
            conf_dir: args.cni_conf_dir,
            plugin: args.cni_plugin,
        })
    }
}
