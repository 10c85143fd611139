//! Installs podwire on a node and removes it: the plugin goes into the runtime's plugin directory
//! and then, once the agent can serve an ADD, the network configuration that makes the runtime call
//! it.
//!
//! `podwire install` and `podwire uninstall` are for people, packages and init containers. With
//! [`keep`] the agent installs the configuration itself, and reports one that others put ahead of
//! it.

mod agent;
pub mod conf;
pub mod findings;
pub mod keep;
mod place;
mod portmap;
pub mod probe;
mod settings;
mod uninstall;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub use agent::AskError;
pub use settings::{Places, Settings};
pub use uninstall::{UninstallArgs, uninstall};

use agent::AgentSocket;
use conf::{Conf, Owner};
use itertools::Itertools as _;
use podwire_daemon::file::FileError;
use podwire_daemon::settings::{SettingsError, bad};
use serde_json::Value;

use crate::config::usual::PLUGIN_NAMES;

/// Text in the plugin's binary that identifies it under any name.
const PLUGIN_MARK: &[u8] = b"the CNI plugin of podwire ";
/// Where a package puts the plugin, relative to the directory of `podwire` itself.
const PLUGIN_BESIDE: [&str; 2] = ["../lib/podwire/podwire-cni", "podwire-cni"];

/// The flags of `podwire install`.
#[derive(Debug, Clone, clap::Args)]
pub struct InstallArgs {
    /// What is installed, and where
    #[command(flatten)]
    pub settings: Settings,
    /// How long to wait until the agent can serve an ADD, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub wait: u64,
    /// Install the plugin only; for an init container
    #[arg(long, conflicts_with = "conf_only")]
    pub plugin_only: bool,
    /// Install the network configuration only
    #[arg(long)]
    pub conf_only: bool,
    /// Update plugins that are already installed, and install nothing else; for a package
    #[arg(long, conflicts_with_all = ["plugin_only", "conf_only"])]
    pub upgrade: bool,
    /// Replace a plugin or a configuration that is not podwire's; `podwire uninstall` restores it
    /// from a copy
    #[arg(long)]
    pub force: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Why something was not installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A flag has an invalid value.
    #[error(transparent)]
    Setting(#[from] SettingsError),
    /// The plugin's file was not found.
    #[error(
        "the plugin podwire-cni was not found in {}; name its file with --plugin",
        shown(.tried)
    )]
    NoPlugin {
        /// The places searched.
        tried: Vec<PathBuf>,
    },
    /// A file of another owner is in the way.
    #[error(
        "{} is {owner}, not podwire's; --force replaces it, and keeps a copy that `podwire \
         uninstall` restores",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its apparent owner.
        owner: &'static str,
    },
    /// The agent can't serve an ADD.
    #[error(
        "the network configuration is not installed, because the agent at {} can't serve an ADD \
         yet (waited {}): {seen}",
        .socket.display(), crate::duration::text(*.waited)
    )]
    NotReady {
        /// The agent's socket.
        socket: PathBuf,
        /// How long the command waited.
        waited: Duration,
        /// The agent's answer, or what was there instead.
        seen: String,
    },
    /// The agent says that it would not serve an ADD.
    #[error("it can't serve an ADD: {reasons}")]
    NotServing {
        /// All its reasons.
        reasons: String,
    },
    /// A request to the agent failed.
    #[error("{step}: {source}")]
    Ask {
        /// Its purpose.
        step: &'static str,
        /// Why it failed.
        source: AskError,
    },
    /// The pods' ports should be removed, and no agent can list them.
    #[error(
        "nothing was removed, because --pods needs the agent: {0}; start it (systemctl start \
         podwire.service, or podwire's DaemonSet), or leave out --pods"
    )]
    Pods(#[source] Box<InstallError>),
    /// Some ports could not be removed.
    #[error("{failed} of {all} ports were not removed: {first}")]
    Ports {
        /// Their number.
        failed: usize,
        /// Out of this many.
        all: usize,
        /// The first error.
        first: AskError,
    },
    /// The async runtime for requests to the agent could not start.
    #[error("start the runtime: {0}")]
    Runtime(#[source] io::Error),
}

/// Installs. `say` gets each action and each notice, a line at a time.
///
/// # Errors
/// What failed; what was done before stays, and does no harm.
pub fn install(args: &InstallArgs, say: &mut dyn FnMut(String)) -> Result<(), InstallError> {
    let settings = &args.settings;
    let plugin = match args.conf_only {
        true => None,
        false => Some(plugin_file(settings.plugin.as_deref())?),
    };
    let without_conf = settings.is_plugin_alone() && !args.conf_only;
    let conf = match args.plugin_only || args.upgrade || without_conf {
        true => None,
        false => Some(for_portmap(settings.conf()?, &settings.places, say)),
    };
    // Everything that can be refused is refused before anything is done.
    if let Some(conf) = &conf {
        let path = settings.places.conf(&conf.file);
        refuse_foreign(&path, conf_owner(&path), args.force)?;
    }
    if let Some((_, content)) = &plugin {
        for path in plugin_places(args) {
            let owner = plugin_owner(&path)?;
            if !(args.upgrade && owner.is_some()) {
                refuse_foreign(&path, owner, args.force)?;
                put_plugin(args, &path, content, say)?;
            }
        }
    }
    match conf {
        Some(conf) => install_conf(args, &conf, say),
        None => Ok(()),
    }
}

/// The configuration as this node's portmap allows.
fn for_portmap(conf: Conf, places: &Places, say: &mut dyn FnMut(String)) -> Conf {
    if !conf.names_portmap() {
        return conf;
    }
    let plugin = places.plugin(portmap::NAME);
    let (conf, notice) = conf.for_portmap(versions_of(&plugin));
    if let Some(notice) = notice {
        say(format!("note: {notice}"));
    }
    conf
}

/// The versions of a plugin, or why it can't be run.
fn versions_of(plugin: &Path) -> Result<Vec<Value>, String> {
    let problem = |error: io::Error| format!("{} can't be run: {error}", plugin.display());
    let (name, value) = portmap::REQUEST;
    let mut command = Command::new(plugin);
    command.env_clear().env(name, value);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::null()).spawn().map_err(problem)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read it may have ended already.
        let _ = stdin.write_all(portmap::INPUT.as_bytes());
    }
    let output = child.wait_with_output().map_err(problem)?;
    portmap::versions(&String::from_utf8_lossy(&output.stdout))
}

/// Where the plugin goes; with `--upgrade`, where it is.
fn plugin_places(args: &InstallArgs) -> Vec<PathBuf> {
    let places = &args.settings.places;
    if !args.upgrade {
        return vec![places.plugin(args.settings.plugin_name())];
    }
    let names = PLUGIN_NAMES.into_iter();
    names
        .map(|name| places.plugin(name))
        .filter(|path| path.exists())
        .collect()
}

fn put_plugin(
    args: &InstallArgs,
    path: &Path,
    content: &[u8],
    say: &mut dyn FnMut(String),
) -> Result<(), InstallError> {
    let shown = path.display();
    if place::read(path)?.as_deref() == Some(content) {
        say(format!("plugin {shown} is there already"));
        return Ok(());
    }
    if args.dry_run {
        say(format!("would install the plugin {shown}"));
        return Ok(());
    }
    keep_foreign(path, plugin_owner(path)?, say)?;
    place::put(path, content, 0o755)?;
    say(format!("plugin {shown} installed"));
    Ok(())
}

fn install_conf(
    args: &InstallArgs,
    conf: &Conf,
    say: &mut dyn FnMut(String),
) -> Result<(), InstallError> {
    let path = args.settings.places.conf(&conf.file);
    let shown = path.display();
    for line in beside(&args.settings.places, &conf.file)? {
        say(line);
    }
    if args.dry_run {
        say(format!(
            "would install the network configuration {shown} once the agent can serve an ADD:\n{}",
            conf.text.trim_end()
        ));
        return Ok(());
    }
    let patience = Duration::from_secs(args.wait);
    let socket = args.settings.socket.clone();
    let ready = runtime()?.block_on(AgentSocket(socket.clone()).await_ready(patience));
    ready.map_err(|seen| InstallError::NotReady {
        socket,
        waited: patience,
        seen,
    })?;
    keep_foreign(&path, conf_owner(&path), say)?;
    place::put(&path, conf.text.as_bytes(), 0o600)?;
    say(format!("network configuration {shown} installed"));
    Ok(())
}

/// Notices about other configurations in the directory.
fn beside(places: &Places, ours: &str) -> Result<Vec<String>, InstallError> {
    let ours = places.conf(ours);
    let mut lines = Vec::new();
    for other in conf::survey(&places.conf_dir())? {
        let shown = other.path.display();
        if other.path < ours {
            lines.push(format!(
                "note: {shown} sorts before {}: a runtime that uses only the first configuration \
                 continues to use that one",
                file_name(&ours)
            ));
        } else if other.path > ours && !other.is_podwires() {
            lines.push(format!(
                "note: {shown} sorts after {}: a runtime that uses only the first configuration no \
                 longer uses it for new pods",
                file_name(&ours)
            ));
        }
    }
    Ok(lines)
}

/// The plugin's file and its content.
fn plugin_file(named: Option<&Path>) -> Result<(PathBuf, Vec<u8>), InstallError> {
    let tried = match named {
        Some(path) => vec![path.to_owned()],
        None => {
            let own =
                std::env::current_exe().map_err(FileError::of("find", Path::new("podwire")))?;
            let directory = own.parent().unwrap_or(Path::new("/"));
            PLUGIN_BESIDE.map(|path| directory.join(path)).to_vec()
        }
    };
    for path in &tried {
        match place::read(path)? {
            Some(content) if is_plugin(&content) => return Ok((path.clone(), content)),
            Some(_) => {
                let problem = "it is not podwire's plugin";
                return Err(bad("--plugin", &path.display().to_string(), problem).into());
            }
            None => {}
        }
    }
    Err(InstallError::NoPlugin { tried })
}

fn is_plugin(content: &[u8]) -> bool {
    content
        .windows(PLUGIN_MARK.len())
        .any(|window| window == PLUGIN_MARK)
}

/// Who owns a plugin's file; `None` if it is podwire's or missing.
fn plugin_owner(path: &Path) -> Result<Option<&'static str>, InstallError> {
    let foreign = place::read(path)?.filter(|content| !is_plugin(content));
    Ok(foreign.map(|_| "another plugin"))
}

/// Who wrote a configuration; `None` if podwire installed it or it is missing.
fn conf_owner(path: &Path) -> Option<&'static str> {
    if std::fs::symlink_metadata(path).is_err() {
        return None;
    }
    match conf::owner(path) {
        Owner::Installed => None,
        Owner::ByHand => Some("a configuration that somebody wrote"),
        Owner::OvnKubernetes => Some("ovn-kubernetes' configuration"),
        Owner::Multus => Some("Multus' configuration"),
        Owner::Other => Some("another plugin's configuration"),
    }
}

fn refuse_foreign(
    path: &Path,
    owner: Option<&'static str>,
    force: bool,
) -> Result<(), InstallError> {
    match owner {
        Some(owner) if !force => Err(InstallError::Foreign {
            path: path.to_owned(),
            owner,
        }),
        _ => Ok(()),
    }
}

fn keep_foreign(
    path: &Path,
    owner: Option<&'static str>,
    say: &mut dyn FnMut(String),
) -> Result<(), InstallError> {
    if let Some(owner) = owner {
        let kept = place::keep(path)?;
        say(format!(
            "{} was {owner}: kept as {}",
            path.display(),
            kept.display()
        ));
    }
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime, InstallError> {
    podwire_daemon::process::runtime().map_err(InstallError::Runtime)
}

fn file_name(path: &Path) -> impl Display + '_ {
    path.file_name().unwrap_or_default().display()
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display()).join(", ")
}
