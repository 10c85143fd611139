//! FileEvents of the configuration: reloaded on SIGHUP and when one of its files has changed, and
//! applied wholly or not at all.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwire_daemon::files::FileEvents;
use tokio::signal::unix::Signal;

use super::hold_addresses;
use crate::attach::Handles;
use crate::config::{Loaded, Loader};
use crate::observe::LogOutput;

/// The maximum number of symbolic links to follow in a row, as in the kernel (`MAXSYMLINKS`).
const SYMLINKS: usize = 40;

/// The settings in force, and those that would be in force after a restart.
#[derive(Debug)]
pub struct Configuration {
    loader: Arc<Loader>,
    /// The settings in force.
    in_force: Loaded,
    /// The settings loaded last; they differ from `in_force` if a restart is needed.
    latest: Loaded,
    /// Why those loaded last are refused, if they are; logged once, and not at every related
    /// change.
    refused: Option<String>,
    log: LogOutput,
}

impl Configuration {
    /// The settings loaded at start.
    pub fn new(loader: Loader, loaded: Loaded, log: LogOutput) -> Self {
        Self {
            loader: Arc::new(loader),
            latest: loaded.clone(),
            in_force: loaded,
            refused: None,
            log,
        }
    }

    /// Keeps to the files as they change. Never ends while they can be watched; a SIGHUP always
    /// works.
    pub async fn follow(mut self, node: Arc<Handles>, mut hangup: Signal) {
        loop {
            let changes = self.changes();
            if let Err(error) = &changes {
                tracing::warn!(
                    %error,
                    "configuration files can't be watched; a SIGHUP still has them read"
                );
            }
            // The first time too: they may have changed since the start.
            self.reload(&node).await;
            let changed = async {
                match &changes {
                    Ok(changes) => changes.next().await,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changed => if let Err(error) = changed {
                    tracing::warn!(%error, "configuration files can't be watched any more");
                },
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: reading the configuration");
                    self.latest.warnings.clear();
                    self.refused = None;
                    self.reopen_log();
                }
            }
        }
    }

    async fn reload(&mut self, node: &Handles) {
        let loader = Arc::clone(&self.loader);
        let loaded = tokio::task::spawn_blocking(move || loader.load()).await;
        let now = match loaded {
            Ok(Ok(now)) => now,
            Ok(Err(error)) => return self.refuse(&error),
            Err(error) => return self.refuse(&error),
        };
        for warning in now
            .warnings
            .iter()
            .filter(|warning| !self.latest.warnings.contains(warning))
        {
            tracing::warn!("{warning}");
        }
        self.refused = None;
        if now.merged == self.latest.merged {
            self.latest = now;
            return;
        }
        match self.loader.without_restart(&self.in_force, &now) {
            Ok(next) => self.take_over(node, next),
            Err(error) => {
                tracing::error!(
                    %error,
                    "this change is valid only after a restart of the agent; the old settings stay"
                );
            }
        }
        // Compared with what is in force, and logged once: a change that was reverted needs no
        // restart.
        let changes = self.loader.changes(&self.latest, &now);
        let waits = self.loader.changes(&self.in_force, &now);
        for change in changes.iter().filter(|change| !change.live) {
            match waits.iter().find(|waiting| waiting.key == change.key) {
                Some(waiting) => tracing::warn!(
                    setting = change.key,
                    "needs a restart of the agent: {}",
                    waiting.text
                ),
                None => tracing::info!(
                    setting = change.key,
                    "is again the value that the agent runs with; no restart is needed"
                ),
            }
        }
        self.latest = now;
    }

    fn refuse(&mut self, error: &dyn std::error::Error) {
        let problem = error.to_string();
        if self.refused.as_ref() != Some(&problem) {
            tracing::error!(
                error = problem,
                "the configuration is refused; the old settings stay"
            );
            self.refused = Some(problem);
        }
    }

    /// Applies the live settings of `next`; nothing else runs on this thread in between.
    fn take_over(&mut self, node: &Handles, next: Loaded) {
        let live = next.config.live.clone();
        let before = node.live.borrow().clone();
        if live.subnets != before.subnets {
            if let Err(error) = node.addresses.change_subnets(live.subnets.clone()) {
                tracing::error!(%error, "the configuration is refused; the old settings stay");
                return;
            }
            hold_addresses(node);
        }
        // Either of the two filters may admit it.
        let is_logged = tracing::enabled!(tracing::Level::INFO);
        if is_logged {
            self.say_changes(&next);
        }
        if live.log != before.log
            && let Err(error) = self.log.change_filter(&live.log)
        {
            tracing::error!(%error, "the log's filter can't be changed");
        }
        if !is_logged {
            self.say_changes(&next);
        }
        if live != before {
            node.live.send_replace(live);
        }
        self.in_force = next;
    }

    fn say_changes(&self, next: &Loaded) {
        for change in self.loader.changes(&self.in_force, next) {
            tracing::info!(setting = change.key, "changed: {}", change.text);
        }
    }

    /// logrotate has renamed the file, and sends SIGHUP to get a new one.
    fn reopen_log(&self) {
        if let Err(error) = self.log.reopen() {
            tracing::error!(
                %error,
                "the log file can't be opened again; the old one is written on"
            );
        }
    }

    /// Watches everything between the files' names and their content.
    fn changes(&self) -> io::Result<FileEvents> {
        let directories: BTreeSet<PathBuf> = self
            .loader
            .files()
            .into_iter()
            .flat_map(directories)
            .collect();
        let directories: Vec<&Path> = directories.iter().map(PathBuf::as_path).collect();
        FileEvents::of_any(&directories)
    }
}

/// The directories in which a change can make this path another file: its own and, if it is a
/// symbolic link as in a mounted ConfigMap, those on the way to its target.
fn directories(path: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let mut path = path.to_owned();
    for _ in 0..SYMLINKS {
        let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
        let target = std::fs::read_link(&path).map(|target| directory.join(target));
        directories.push(directory);
        match target {
            Ok(target) => path = target,
            Err(_) => break,
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_on_the_way_to_a_links_target_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        std::fs::create_dir_all(at("map/..2026")).unwrap();
        std::fs::create_dir(at("etc")).unwrap();
        std::fs::write(at("map/..2026/podwire.toml"), "").unwrap();
        std::os::unix::fs::symlink("..2026", at("map/..data")).unwrap();
        std::os::unix::fs::symlink("..data/podwire.toml", at("map/podwire.toml")).unwrap();
        std::os::unix::fs::symlink(at("map/podwire.toml"), at("etc/podwire.toml")).unwrap();
        assert_eq!(
            directories(&at("etc/podwire.toml")),
            [at("etc"), at("map"), at("map/..data")]
        );
    }

    #[test]
    fn a_link_to_itself_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("podwire.toml");
        std::os::unix::fs::symlink("podwire.toml", &path).unwrap();
        assert_eq!(directories(&path).len(), SYMLINKS);
    }
}
