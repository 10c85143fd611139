//! Removes podwire from a node. The network configuration goes first, so that no pod starts with
//! it; then, if requested, the pods' ports; the plugin last, because a runtime needs it to delete
//! what remains.

use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_cni::wire;
use tokio::signal::unix::{SignalKind, signal};

use super::agent::AgentSocket;
use super::conf::{self, Owner};
use super::settings::Places;
use super::{InstallError, is_plugin, place, runtime};
use crate::config::usual::PLUGIN_NAMES;
use crate::plan::AttachmentKey;

/// Time limit for the agent to know its ports.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long `--await-agent` waits before it fails and kubelet restarts it.
const AGENT_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The flags of `podwire uninstall`.
#[derive(Debug, Clone, clap::Args)]
pub struct UninstallArgs {
    /// From where
    #[command(flatten)]
    pub places: Places,
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = wire::DEFAULT_SOCKET, env = "PODWIRE_SOCKET")]
    pub socket: PathBuf,
    /// Also remove the pods' ports, links and addresses; the pods lose their network at once
    #[arg(long)]
    pub pods: bool,
    /// With --pods, if no agent runs: remove the network configuration, then wait for an agent
    /// instead of failing; for a DaemonSet
    #[arg(long, requires = "pods", conflicts_with = "dry_run")]
    pub await_agent: bool,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Afterwards keep running until SIGTERM; for a DaemonSet, whose containers must not end
    #[arg(long)]
    pub stay: bool,
}

/// Removes what was installed. `say` gets each action, and what remains, a line at a time.
///
/// # Errors
/// What could not be removed; everything else was.
pub fn uninstall(args: &UninstallArgs, say: &mut dyn FnMut(String)) -> Result<(), InstallError> {
    let agent = AgentSocket(args.socket.clone());
    let runtime = runtime()?;
    let mut terminate = (args.stay || args.await_agent)
        .then(|| runtime.block_on(async { signal(SignalKind::terminate()) }))
        .transpose()
        .map_err(InstallError::Runtime)?;
    let mut known = runtime.block_on(attachments(&agent));
    if let (true, Err(error), Some(terminate)) = (args.await_agent, &known, &mut terminate) {
        remove_confs(args, say)?;
        say(format!(
            "waiting for podwire's agent, because only it can remove the pods' ports: apply its \
             DaemonSet again, or start podwire.service ({error})"
        ));
        let found = runtime.block_on(async {
            tokio::select! {
                found = await_attachments(&agent) => Some(found),
                _ = terminate.recv() => None,
            }
        });
        match found {
            Some(found) => known = found,
            None => return Ok(()),
        }
    }
    if args.pods
        && let Err(error) = known
    {
        return Err(InstallError::Pods(Box::new(error)));
    }
    remove_confs(args, say)?;
    let ports = match (&known, args.pods) {
        (Ok(keys), true) if !args.dry_run => runtime.block_on(remove_ports(&agent, keys, say)),
        _ => {
            say_ports(known.as_deref(), args, say);
            Ok(())
        }
    };
    if args.await_agent {
        // An agent that has just started installs its own once it can serve.
        remove_confs(args, say)?;
    }
    remove_plugins(args, say)?;
    say("left: the agent and its units, /etc/podwire, /run/podwire, the bridge".to_owned());
    ports?;
    if let Some(mut terminate) = terminate.filter(|_| args.stay) {
        runtime.block_on(terminate.recv());
    }
    Ok(())
}

/// The attachments that have ports. An agent that has just started does not know them yet.
async fn attachments(agent: &AgentSocket) -> Result<Vec<AttachmentKey>, InstallError> {
    let ask = |source| InstallError::Ask {
        step: "ask for the ports",
        source,
    };
    let health = agent.health(PATIENCE).await.map_err(ask)?;
    if !health.ready {
        return Err(InstallError::NotServing {
            reasons: health.reasons.join("; "),
        });
    }
    agent.attachments().await.map_err(ask)
}

/// The same, once an agent runs that knows them.
async fn await_attachments(agent: &AgentSocket) -> Result<Vec<AttachmentKey>, InstallError> {
    let ready = agent.await_ready(AGENT_LIMIT).await;
    ready.map_err(|seen| InstallError::NotServing { reasons: seen })?;
    attachments(agent).await
}

fn remove_confs(args: &UninstallArgs, say: &mut dyn FnMut(String)) -> Result<(), InstallError> {
    for found in conf::survey(&args.places.conf_dir())? {
        let shown = found.path.display();
        match found.owner {
            Owner::Installed => remove(args, &found.path, "network configuration", say)?,
            Owner::ByHand => say(format!(
                "left: {shown}, a network configuration for podwire's plugin that podwire did not \
                 install"
            )),
            Owner::OvnKubernetes | Owner::Multus | Owner::Other => {}
        }
    }
    Ok(())
}

fn remove_plugins(args: &UninstallArgs, say: &mut dyn FnMut(String)) -> Result<(), InstallError> {
    for name in PLUGIN_NAMES {
        let path = args.places.plugin(name);
        if place::read(&path)?.is_some_and(|content| is_plugin(&content)) {
            remove(args, &path, "plugin", say)?;
        }
    }
    Ok(())
}

/// Removes podwire's file, and restores the one that it replaced.
fn remove(
    args: &UninstallArgs,
    path: &Path,
    what: &str,
    say: &mut dyn FnMut(String),
) -> Result<(), InstallError> {
    let shown = path.display();
    let kept = place::kept(path);
    let back = match kept {
        Some(_) => ", the previous file is restored",
        None => "",
    };
    if args.dry_run {
        say(format!("would remove the {what} {shown}{back}"));
        return Ok(());
    }
    match kept {
        Some(_) => place::give_back(path)?,
        None => {
            place::remove(path)?;
        }
    }
    say(format!("{what} {shown} removed{back}"));
    Ok(())
}

async fn remove_ports(
    agent: &AgentSocket,
    keys: &[AttachmentKey],
    say: &mut dyn FnMut(String),
) -> Result<(), InstallError> {
    let mut failed = Vec::new();
    for key in keys {
        failed.extend(agent.del(key).await.err());
    }
    say(format!(
        "ports of {} removed",
        pods(keys.len() - failed.len())
    ));
    let (all, count) = (keys.len(), failed.len());
    match failed.into_iter().next() {
        None => Ok(()),
        Some(first) => Err(InstallError::Ports {
            failed: count,
            all,
            first,
        }),
    }
}

fn say_ports(
    known: Result<&[AttachmentKey], &InstallError>,
    args: &UninstallArgs,
    say: &mut dyn FnMut(String),
) {
    match known {
        Ok([]) => {}
        Ok(keys) if args.pods => say(format!("would remove the ports of {}", pods(keys.len()))),
        Ok(keys) => say(format!(
            "left: the ports of {}, which keep their network; a runtime can't delete them until a \
             plugin of the same name and a network configuration are there again (--pods removes \
             them)",
            pods(keys.len())
        )),
        Err(error) => say(format!(
            "left: ports of pods, if there are any; the agent could not be asked ({error})"
        )),
    }
}

fn pods(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        count => format!("{count} pods"),
    }
}
