//! The agent's part: if configured (in a DaemonSet, where no other process could wait), it installs
//! the network configuration once it can serve an ADD; and it logs when another configuration or
//! plugin replaces the installed one.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwire_daemon::files::FileEvents;
use serde_json::Value;

use super::conf::Conf;
use super::findings::{Finding, look};
use super::{InstallError, conf_owner, place, portmap, refuse_foreign};
use crate::attach::{Handles, await_ready};
use crate::config::RuntimeArgs;
use crate::ipam::spawner::{Exec, Spawner};

/// After this long without being able to serve an ADD, the agent logs it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a plugin may take to name its versions.
const VERSION: Duration = Duration::from_secs(10);

/// Installs the configured network configuration once the agent can serve an ADD. It stays when the
/// agent ends: pods keep their network during an upgrade, and a runtime's ADD gets "try again"
/// meanwhile.
pub async fn install(node: Arc<Handles>) {
    let Some(file) = node.config.runtime.install_conf.clone() else {
        return;
    };
    while let Err(error) = await_ready(&node, PATIENCE).await {
        tracing::warn!(%error, "the network configuration is not installed yet");
    }
    match put(&node, &file).await {
        Ok(line) => tracing::info!("{line}"),
        Err(error) => tracing::error!(%error, "the network configuration is not installed"),
    }
}

async fn put(node: &Handles, file: &Path) -> Result<String, InstallError> {
    let runtime = &node.config.runtime;
    let mut conf = Conf::read(file)?;
    if conf.names_portmap() {
        let plugin = runtime.cni_bin_dir.join(portmap::NAME);
        let versions = versions_of(&node.spawner, &plugin).await;
        let (fitting, notice) = conf.for_portmap(versions);
        conf = fitting;
        if let Some(notice) = notice {
            tracing::warn!("{notice}");
        }
    }
    let directory = runtime.cni_conf_dir.clone();
    let written = tokio::task::spawn_blocking(move || write(&conf, &directory)).await;
    written.unwrap_or_else(|error| Err(InstallError::Runtime(io::Error::other(error))))
}

/// The versions of a plugin, or why it can't be run.
async fn versions_of(spawner: &Spawner, plugin: &Path) -> Result<Vec<Value>, String> {
    let (name, value) = portmap::REQUEST;
    let exec = Exec {
        path: plugin.display().to_string(),
        env: vec![(name.to_owned(), value.to_owned())],
        stdin: portmap::INPUT.to_owned(),
        timeout: VERSION,
    };
    let output = spawner.run(exec).await;
    portmap::versions(&output.map_err(|error| error.to_string())?.stdout)
}

fn write(conf: &Conf, directory: &Path) -> Result<String, InstallError> {
    let path = directory.join(&conf.file);
    let shown = path.display();
    if place::read(&path)?.as_deref() == Some(conf.text.as_bytes()) {
        return Ok(format!("network configuration {shown} is there already"));
    }
    refuse_foreign(&path, conf_owner(&path), false)?;
    place::put(&path, conf.text.as_bytes(), 0o600)?;
    Ok(format!("network configuration {shown} installed"))
}

/// Logs each problem in the runtime's directories once, for as long as the agent runs.
pub async fn watch(settings: RuntimeArgs) {
    let mut known = BTreeSet::new();
    let mut was_there = false;
    loop {
        if let Err(error) = next_change(&settings, &mut known, &mut was_there).await {
            tracing::warn!(%error, "the runtime's directories are no longer watched");
            return;
        }
    }
}

async fn next_change(
    settings: &RuntimeArgs,
    known: &mut BTreeSet<Finding>,
    was_there: &mut bool,
) -> io::Result<()> {
    let confs = FileEvents::of(&settings.cni_conf_dir)?;
    let plugins = FileEvents::of(&settings.cni_bin_dir)?;
    if let Some(name) = settings.install_conf.as_deref().and_then(Path::file_name) {
        let path = settings.cni_conf_dir.join(name);
        let is_there = path.exists();
        if *was_there && !is_there {
            let remedy =
                "restart the agent, which installs it again, unless podwire is being removed";
            let path = path.display();
            tracing::warn!(
                remedy,
                "{path} was removed: the runtime has no network configuration of podwire"
            );
        }
        *was_there = is_there;
    }
    let (conf_dir, bin_dir) = (settings.cni_conf_dir.clone(), settings.cni_bin_dir.clone());
    let seen = tokio::task::spawn_blocking(move || look(&conf_dir, &bin_dir)).await;
    match seen.map_err(io::Error::other)? {
        Ok(seen) => {
            let findings: BTreeSet<Finding> = seen.findings().into_iter().collect();
            for Finding { problem, remedy } in findings.difference(known) {
                tracing::warn!(remedy, "{problem}");
            }
            *known = findings;
        }
        // As happens while a file is being replaced; the end of that is the next change.
        Err(error) => tracing::debug!(%error, "the runtime's directories can't be read"),
    }
    tokio::select! {
        changed = confs.next() => changed,
        changed = plugins.next() => changed,
    }
}
