//! The container runtime's directories.

use std::path::PathBuf;

use clap::Args;

use super::usual;

/// The flags about the container runtime.
#[derive(Debug, Clone, Args)]
pub struct RuntimeArgs {
    /// Network configuration to install under its own name once an ADD can be served; for a
    /// DaemonSet
    #[arg(long, value_name = "FILE")]
    pub install_conf: Option<PathBuf>,
    /// The runtime's network configurations: the log says when another takes the place of podwire's
    #[arg(long, value_name = "DIR", default_value = usual::CNI_CONF_DIR)]
    pub cni_conf_dir: PathBuf,
    /// The runtime's plugins: IPAM plugins are run from here and below, beside the usual
    /// directories, and the log says when another plugin takes the place of podwire's
    #[arg(long, value_name = "DIR", default_value = usual::CNI_BIN_DIR)]
    pub cni_bin_dir: PathBuf,
}

impl RuntimeArgs {
    /// The directories that IPAM plugins may be run from.
    pub fn plugin_directories(&self) -> Vec<PathBuf> {
        let mut directories = vec![self.cni_bin_dir.clone()];
        directories.extend(usual::PLUGIN_DIRECTORIES.map(PathBuf::from));
        directories.dedup();
        directories
    }
}
