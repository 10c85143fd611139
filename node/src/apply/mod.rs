//! Executes steps. Before each one, its inverse is recorded in the journal or, for a row, in the
//! same transaction that changes the row.

mod kernel;
mod switch;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use podwire_ovs::client::Client;
use podwire_ovs::transact::TransactError;
use tokio::time::Instant;

use crate::actual::{Actual, Owned, read_sysctl, written_with};
use crate::diff::Step;
use crate::firewalld::{Firewalld, Rule};
use crate::journal::{Journal, JournalError, Undo};
use crate::nft::{self, NftError};
use crate::plan::{FormerRoute, Item, Route};
use crate::{firewall, services, southbound};

/// Time limit of a transaction.
const DATABASE_LIMIT: Duration = Duration::from_secs(10);

/// The machine, for changes.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) client: Client,
    /// The southbound database, if podwire has something in it.
    pub(crate) southbound: Option<Client>,
    pub(crate) firewalld: Option<Firewalld>,
    pub(crate) handle: rtnetlink::Handle,
    pub(crate) journal: Journal,
    /// podwire's keys, as of the last look and the changes since.
    pub(crate) owned: Owned,
    pub(crate) counts: Counts,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Counts {
    /// Requests that change something in the kernel, over netlink, including runs of nft.
    pub(crate) netlink: usize,
    /// Transactions with the switch's database.
    pub(crate) ovsdb: usize,
    /// Calls that change something in firewalld.
    pub(crate) dbus: usize,
    /// Files written or removed: the journal's, and those below /proc/sys.
    pub(crate) files: usize,
}

/// Steps that failed together.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) steps: Vec<Step>,
    pub(crate) error: ApplyError,
}

/// The first step stands for all: those of one transaction have one reason.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.steps.first() {
            Some(Step::Remove(_)) => "remove",
            _ => "apply",
        };
        let identity = self.steps.first().map(|step| step.item().identity());
        let identity = identity.unwrap_or_default();
        write!(f, "cannot {verb} {identity}: {}", self.error)
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Kernel(#[from] rtnetlink::Error),
    #[error("change Open vSwitch's rows: {0}")]
    Database(#[from] TransactError),
    #[error("change this chassis' rows of the southbound database: {0}")]
    Southbound(TransactError),
    #[error("configure firewalld with {rule}: {source}")]
    Firewalld {
        rule: String,
        source: Box<zbus::Error>,
    },
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
    /// Executes steps in order; those on the switch's own keys in one transaction. The others go on
    /// when one fails.
    pub(crate) async fn take(&mut self, steps: &[Step], actual: &Actual) -> Vec<Failure> {
        self.owned.clone_from(&actual.switch.owned);
        let (keys, others): (Vec<Step>, Vec<Step>) = steps
            .iter()
            .cloned()
            .partition(|step| matches!(step.item(), Item::Key { .. }));
        // What is removed from the machine is removed from the database last.
        let removing = keys.iter().all(|step| matches!(step, Step::Remove(_)));
        let mut groups: Vec<Vec<Step>> = others.into_iter().map(|step| vec![step]).collect();
        if !keys.is_empty() {
            groups.insert(if removing { groups.len() } else { 0 }, keys);
        }
        let mut failures = Vec::new();
        for steps in groups {
            let done = match &steps[..] {
                [
                    Step::Make(Item::Key { .. }) | Step::Remove(Item::Key { .. }),
                    ..,
                ] => self.write_keys(&steps, actual).await,
                [Step::Make(item), ..] => self.make(item, actual).await,
                [Step::Remove(item), ..] => self.remove(item, actual).await,
                [] => Ok(()),
            };
            if let Err(error) = done {
                failures.push(Failure { steps, error });
            }
        }
        failures
    }

    async fn make(&mut self, item: &Item, actual: &Actual) -> Result<(), ApplyError> {
        let switch = &actual.switch;
        match item {
            Item::Key { .. } | Item::Services | Item::Former(_) => Ok(()),
            Item::Port(port) => {
                self.note(Undo::Made(item.clone()))?;
                self.transact(switch::write_port(port, switch)).await
            }
            Item::Ssl(keys) => self.transact(switch::write_ssl(keys, switch)).await,
            Item::TunnelPort { chassis, port } => self.write_tunnel_port(chassis, *port).await,
            Item::Firewalld(rule) => {
                match rule.permanent {
                    true => self.own(rule.mark(), true, actual).await?,
                    false => self.note(Undo::Made(item.clone()))?,
                }
                self.tell_firewalld(rule, true).await
            }
            Item::Bridge(bridge) => {
                self.note(Undo::Made(item.clone()))?;
                self.transact(switch::write_bridge(bridge, switch)).await
            }
            // Removed with the bridge.
            Item::Tunnel(tunnel) => self.transact(switch::write_tunnel(tunnel, switch)).await,
            Item::File { path, text } => {
                self.note(Undo::Made(item.clone()))?;
                self.write_file(path, text)
            }
            Item::Sysctl { path, value } => self.write_sysctl(path, value),
            Item::Table(table) => {
                self.note(Undo::Made(item.clone()))?;
                self.run_nft("our table", &table.script()).await
            }
            _ => {
                if let Item::Route(route) = item {
                    self.note_former(route, actual)?;
                }
                self.note(Undo::Made(item.clone()))?;
                self.make_in_kernel(item, actual).await
            }
        }
    }

    async fn remove(&mut self, item: &Item, actual: &Actual) -> Result<(), ApplyError> {
        let switch = &actual.switch;
        match item {
            // Removed with the chassis.
            Item::Key { .. } | Item::TunnelPort { .. } => Ok(()),
            Item::Port(_) => self.transact(switch::remove_port(switch)).await,
            Item::Ssl(_) => self.transact(switch::remove_ssl(switch)).await,
            Item::Firewalld(rule) => {
                self.tell_firewalld(rule, false).await?;
                match rule.permanent {
                    true => self.own(rule.mark(), false, actual).await,
                    false => Ok(()),
                }
            }
            Item::Bridge(bridge) => self.transact(switch::remove_bridge(bridge, switch)).await,
            Item::Tunnel(tunnel) => self.transact(switch::remove_tunnel(tunnel, switch)).await,
            Item::File { path, .. } => {
                self.counts.files += 1;
                let removed = std::fs::remove_file(path);
                if let Some(directory) = Path::new(path).parent() {
                    // A directory with other files stays.
                    let _ = std::fs::remove_dir(directory);
                }
                fault();
                removed.map_err(in_file("remove", path))
            }
            Item::Sysctl { path, value } => self.write_back(path, value),
            Item::Table(_) => self.delete_table(firewall::NAME).await,
            Item::Services => self.delete_table(services::NAME).await,
            _ => self.remove_from_kernel(item, actual).await,
        }
    }

    async fn delete_table(&mut self, name: &str) -> Result<(), ApplyError> {
        self.run_nft("to delete our table", &firewall::delete(name))
            .await
    }

    async fn run_nft(&mut self, what: &'static str, script: &str) -> Result<(), ApplyError> {
        self.counts.netlink += 1;
        nft::run(what, script).await?;
        fault();
        Ok(())
    }

    async fn tell_firewalld(&mut self, rule: &Rule, so: bool) -> Result<(), ApplyError> {
        let Some(firewalld) = &self.firewalld else {
            return Ok(());
        };
        self.counts.dbus += 1;
        let told = firewalld.set(rule, so).await;
        told.map_err(|source| ApplyError::Firewalld {
            rule: rule.to_string(),
            source: Box::new(source),
        })?;
        fault();
        Ok(())
    }

    async fn write_tunnel_port(&mut self, chassis: &str, port: u16) -> Result<(), ApplyError> {
        let Some(client) = &self.southbound else {
            return Ok(());
        };
        self.counts.ovsdb += 1;
        let deadline = Instant::now() + DATABASE_LIMIT;
        let written = southbound::write_port(client, chassis, port, deadline).await;
        written.map_err(ApplyError::Southbound)?;
        fault();
        Ok(())
    }

    /// Atomically: its reader watches for its arrival.
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
            // A value that the kernel writes too is lost when the other one is restored.
            if was != value || written != path {
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

    /// Records the route that podwire's replaces for the first time; later ones come from whoever
    /// competes for its place.
    fn note_former(&mut self, route: &Route, actual: &Actual) -> Result<(), JournalError> {
        let is_first = |undo: &Undo| match undo {
            Undo::Made(Item::Route(made)) => made.destination != route.destination,
            _ => true,
        };
        // The kernel replaces the route with the same metric; these are the defaults.
        let metric = if route.destination.addr().is_ipv4() {
            0
        } else {
            1024
        };
        let seen = actual.routes.iter().find(|seen| {
            seen.destination == route.destination && seen.metric == metric && !seen.ours
        });
        let (Some(seen), true) = (seen, self.journal.undos().iter().all(is_first)) else {
            return Ok(());
        };
        let Some(link) = seen.link.clone() else {
            return Ok(());
        };
        self.note(Undo::Replaced(FormerRoute {
            destination: seen.destination,
            via: seen.via,
            link,
            source: seen.source,
            protocol: seen.protocol,
            metric: seen.metric,
        }))
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

/// Kills the process as with SIGKILL when it reaches, for the n-th time, a boundary between a
/// journal entry and its step or between two steps; `PODWIRE_NODE_FAULT` is n. Only in builds for
/// tests.
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
