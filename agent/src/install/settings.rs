//! The flags that `podwire install` and `podwire uninstall` share, with their checks.

use std::path::{Path, PathBuf};

use podwire_cni::spec::OVS_CNI;
use podwire_cni::wire;
use podwire_daemon::settings::{SettingsError, bad};

use super::InstallError;
use super::conf::Conf;
use crate::config::usual::{self, DROP_IN, DROP_IN_NETWORK, PLUGIN_NAMES};

/// The directories of a runtime.
#[derive(Debug, Clone, clap::Args)]
pub struct Places {
    /// Install below this directory instead of /; does not apply to the agent's socket
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Directory of the runtime's plugins (containerd: bin_dir; for Debian's own containerd,
    /// /usr/lib/cni)
    #[arg(
        long,
        value_name = "DIR",
        default_value = usual::CNI_BIN_DIR,
        env = "PODWIRE_CNI_BIN_DIR"
    )]
    pub bin_dir: PathBuf,
    /// Directory of the runtime's network configurations (containerd: conf_dir)
    #[arg(
        long,
        value_name = "DIR",
        default_value = usual::CNI_CONF_DIR,
        env = "PODWIRE_CNI_CONF_DIR"
    )]
    pub conf_dir: PathBuf,
}

/// What is installed.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Where
    #[command(flatten)]
    pub places: Places,
    /// The plugin's file [default: the one that came with this podwire]
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Name to install the plugin under: podwire-cni; ovn-k8s-cni-overlay to replace
    /// ovn-kubernetes' plugin; or ovs to replace ovs-cni's, without a network configuration
    #[arg(long = "as", value_name = "NAME", default_value = PLUGIN_NAMES[0],
        value_parser = PLUGIN_NAMES)]
    pub name: String,
    /// The network's name [default: podwire, or ovn-kubernetes with --as ovn-k8s-cni-overlay]
    #[arg(long, value_name = "NAME")]
    pub network: Option<String>,
    /// Your own network configuration, installed under the same file name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["network", "priority"])]
    pub conf: Option<PathBuf>,
    /// Prefix of the network configuration's file name; most runtimes use only the first file,
    /// sorted by name
    #[arg(long, value_name = "00-99", default_value_t = 10,
        value_parser = clap::value_parser!(u8).range(0..100))]
    pub priority: u8,
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = wire::DEFAULT_SOCKET, env = "PODWIRE_SOCKET")]
    pub socket: PathBuf,
}

impl Settings {
    /// The name of the installed plugin.
    pub fn plugin_name(&self) -> &str {
        &self.name
    }

    /// Whether the plugin is installed alone: ovs-cni's networks are Multus' definitions.
    pub fn is_plugin_alone(&self) -> bool {
        self.name == OVS_CNI && self.conf.is_none()
    }

    /// The network configuration to install.
    ///
    /// # Errors
    /// Names the flag, its value and what is valid.
    pub fn conf(&self) -> Result<Conf, InstallError> {
        if let Some(path) = &self.conf {
            return Conf::read(path);
        }
        if self.name == OVS_CNI {
            let problem = "it has no network configuration, because Multus calls it for its \
                           definitions; name your own with --conf";
            return Err(bad("--as", &self.name, problem).into());
        }
        let default = if self.name == DROP_IN {
            DROP_IN_NETWORK
        } else {
            "podwire"
        };
        let network = self.network.as_deref().unwrap_or(default);
        check_network(network)?;
        let file = format!("{:02}-podwire.conflist", self.priority);
        Ok(Conf::generate(file, network, &self.name, &self.socket))
    }
}

impl Places {
    /// The path of the plugin with this name.
    pub fn plugin(&self, name: &str) -> PathBuf {
        below(&self.root, &self.bin_dir).join(name)
    }

    /// The path of the network configuration with this file name.
    pub fn conf(&self, file: &str) -> PathBuf {
        self.conf_dir().join(file)
    }

    /// The directory of network configurations.
    pub fn conf_dir(&self) -> PathBuf {
        below(&self.root, &self.conf_dir)
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// CNI spec, section 1: the syntax of a network's name.
fn check_network(name: &str) -> Result<(), SettingsError> {
    let mut bytes = name.bytes();
    let starts = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) {
        return Ok(());
    }
    let problem = "expected a letter or digit, then letters, digits, '_', '.' and '-'";
    Err(bad("--network", name, problem))
}
