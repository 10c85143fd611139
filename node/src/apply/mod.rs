//! Takes steps. Before each one its inverse is in the journal, or, for a row, in the very
//! transaction that changes the row.

mod kernel;
mod switch;

use std::path::Path;
use std::time::Duration;

use podwire_ovs::client::Client;
use podwire_ovs::transact::TransactError;

use crate::diff::Step;
use crate::journal::{Journal, JournalError, Undo};
use crate::nft::{self, NftError};
use crate::observe::{Observed, read_sysctl, written_with};
use crate::plan::Item;
use crate::{firewall, services};

/// How long a transaction may take.
const DATABASE_LIMIT: Duration = Duration::from_secs(10);

/// The machine, as one who changes it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) client: Client,
    pub(crate) handle: rtnetlink::Handle,
    pub(crate) journal: Journal,
    pub(crate) counts: Counts,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Counts {
    /// Requests that change something in the kernel, over netlink; nft's runs are among them.
    pub(crate) netlink: usize,
    /// Transactions with the switch's database.
    pub(crate) ovsdb: usize,
    /// Files written or removed: the journal's, and below /proc/sys.
    pub(crate) files: usize,
}

/// Why a step could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{step} {item}: {source}")]
    Kernel {
        step: &'static str,
        item: String,
        source: rtnetlink::Error,
    },
    #[error("change Open vSwitch's rows: {0}")]
    Database(#[from] TransactError),
    #[error("{step} file {path}: {source}")]
    File {
        step: &'static str,
        path: String,
        source: std::io::Error,
    },
    #[error("write {value} to /proc/sys/{path}: {source}")]
    Sysctl {
        path: String,
        value: String,
        source: std::io::Error,
    },
    #[error(transparent)]
    Firewall(#[from] NftError),
}

impl Machine {
    /// Takes steps in their order; those on the switch's own keys go as one transaction.
    pub(crate) async fn take(
        &mut self,
        steps: &[Step],
        observed: &Observed,
    ) -> Result<(), ApplyError> {
        let is_key = |step: &&Step| {
            matches!(step,
            Step::Make(item) | Step::Remove(item) if matches!(item, Item::Key { .. }))
        };
        let keys: Vec<&Step> = steps.iter().filter(is_key).collect();
        let mut keys_done = keys.is_empty();
        // What leaves the machine leaves the database last.
        let removing = keys.iter().all(|step| matches!(step, Step::Remove(_)));
        if !keys_done && !removing {
            self.write_keys(&keys, observed).await?;
            keys_done = true;
        }
        for step in steps.iter().filter(|step| !is_key(step)) {
            match step {
                Step::Make(item) => self.make(item, observed).await?,
                Step::Remove(item) => self.remove(item, observed).await?,
            }
        }
        if !keys_done {
            self.write_keys(&keys, observed).await?;
        }
        Ok(())
    }

    async fn make(&mut self, item: &Item, observed: &Observed) -> Result<(), ApplyError> {
        match item {
            Item::Key { .. } | Item::Services => Ok(()),
            Item::Port(port) => {
                self.note(Undo::Made(item.clone()))?;
                self.write_port(port, observed).await
            }
            Item::Ssl(ssl) => self.write_ssl(ssl, observed).await,
            Item::Bridge(bridge) => {
                self.note(Undo::Made(item.clone()))?;
                self.write_bridge(bridge, observed).await
            }
            // Goes with the bridge.
            Item::Tunnel(tunnel) => self.write_tunnel(tunnel, observed).await,
            Item::File { path, text } => {
                self.note(Undo::Made(item.clone()))?;
                self.write_file(path, text)
            }
            Item::Sysctl { path, value } => self.write_sysctl(path, value),
            Item::Table(table) => {
                self.note(Undo::Made(item.clone()))?;
                self.counts.netlink += 1;
                let script = table.script();
                nft::run("our table", &script).await?;
                fault();
                Ok(())
            }
            _ => {
                self.note(Undo::Made(item.clone()))?;
                self.make_in_kernel(item, observed).await
            }
        }
    }

    async fn remove(&mut self, item: &Item, observed: &Observed) -> Result<(), ApplyError> {
        match item {
            Item::Key { .. } => Ok(()),
            Item::Port(_) => self.remove_port(observed).await,
            Item::Ssl(_) => self.remove_ssl(observed).await,
            Item::Bridge(bridge) => self.remove_bridge(bridge, observed).await,
            Item::Tunnel(tunnel) => self.remove_tunnel(tunnel, observed).await,
            Item::File { path, .. } => {
                self.counts.files += 1;
                let removed = std::fs::remove_file(path);
                fault();
                removed.map_err(in_file("remove", path))
            }
            Item::Sysctl { path, value } => self.write_back(path, value),
            Item::Table(_) | Item::Services => {
                self.counts.netlink += 1;
                let script = match item {
                    Item::Services => services::delete(),
                    _ => firewall::delete(),
                };
                nft::run("to delete our table", &script).await?;
                fault();
                Ok(())
            }
            _ => self.remove_from_kernel(item, observed).await,
        }
    }

    /// Whole or not at all: who reads it watches for its coming.
    fn write_file(&mut self, path: &str, text: &str) -> Result<(), ApplyError> {
        self.counts.files += 1;
        let new = format!("{path}.new");
        let directory = Path::new(path).parent().unwrap_or(Path::new("/"));
        let written = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&new, text))
            .and_then(|()| std::fs::rename(&new, path));
        fault();
        written.map_err(in_file("write", path))
    }

    fn write_sysctl(&mut self, path: &str, value: &str) -> Result<(), ApplyError> {
        for written in written_with(path) {
            let Ok(was) = read_sysctl(&written) else {
                continue;
            };
            if was != value {
                self.note(Undo::Sysctl {
                    path: written,
                    was,
                    set: value.to_owned(),
                })?;
            }
        }
        self.write_back(path, value)
    }

    fn write_back(&mut self, path: &str, value: &str) -> Result<(), ApplyError> {
        self.counts.files += 1;
        let file = Path::new("/proc/sys").join(path);
        std::fs::write(file, value).map_err(|source| ApplyError::Sysctl {
            path: path.to_owned(),
            value: value.to_owned(),
            source,
        })?;
        fault();
        Ok(())
    }

    fn note(&mut self, undo: Undo) -> Result<(), JournalError> {
        self.journal.note(undo)?;
        fault();
        Ok(())
    }
}

fn in_file(step: &'static str, path: &str) -> impl FnOnce(std::io::Error) -> ApplyError {
    let path = path.to_owned();
    move |source| ApplyError::File { step, path, source }
}

/// Ends the process as SIGKILL does, the n-th time that it comes by one of the boundaries between a
/// journal's line and its step or between two steps, where `PODWIRE_NODE_FAULT` is n. Only in
/// builds for tests.
fn fault() {
    #[cfg(feature = "fault-points")]
    {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static PASSED: AtomicUsize = AtomicUsize::new(0);
        let passed = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
        let wanted = std::env::var("PODWIRE_NODE_FAULT").ok();
        if wanted.and_then(|number| number.parse().ok()) == Some(passed) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        }
    }
}
