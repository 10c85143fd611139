//! Executes steps. Before each one, its inverse is recorded in the journal or, for a row, in the
//! same transaction that changes the row.

mod uplink;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use podwire_ovs::client::{Client, WaitError};
use podwire_ovs::openflow::Flow;
use podwire_ovs::transact::{TransactError, Transaction};
use tokio::time::Instant;

use crate::diff::Step;
use crate::files;
use crate::firewalld::{Firewalld, Rule};
use crate::flows::{self, FlowsError};
use crate::guard::GuardError;
use crate::items::{
    Actual, BOOT_FILE, Change, Item, Mark, Owned, TunnelPort, Undo, keys_transaction,
};
use crate::journal::{Journal, JournalError};
use crate::moved::MovedError;
use crate::network_manager::{Deed, NetworkManagerError};
use crate::networkd::{self, NetworkdError};
use crate::nft::{self, NftError};
use crate::reach::{self, ReachError};
use crate::southbound;

pub(crate) use uplink::Moving;

/// Steps with those that are executed together with them: all keys of the switch are written by one
/// transaction, with the first that is made; what is removed from the machine is removed from the
/// database last.
fn groups(steps: &[Step]) -> Vec<Vec<Step>> {
    let (keys, others): (Vec<Step>, Vec<Step>) = steps
        .iter()
        .cloned()
        .partition(|step| matches!(step.item(), Item::Key(_)));
    let removing = keys.iter().all(|step| matches!(step, Step::Remove(_)));
    let mut groups: Vec<Vec<Step>> = others.into_iter().map(|step| vec![step]).collect();
    if !keys.is_empty() {
        groups.insert(if removing { groups.len() } else { 0 }, keys);
    }
    groups
}

/// Drops the steps that have failed, and removals of what has a NIC in it that could not be moved
/// back: its bridge, that one's settings, and the file that takes it out of that at a boot.
pub(crate) fn drop_failed(steps: &mut Vec<Step>, failures: &[Failure]) {
    let holds = |failed: &Step, step: &Step| match (failed, step) {
        (Step::Remove(Item::Uplink(uplink)), Step::Remove(Item::Bridge(bridge))) => {
            bridge.name == uplink.bridge
        }
        // The kernel would give the bridge an address of its own, which would go along later.
        (Step::Remove(Item::Uplink(uplink)), Step::Remove(Item::Sysctl(sysctl))) => {
            sysctl.link() == Some(&uplink.bridge)
        }
        (Step::Remove(Item::Uplink(_)), Step::Remove(Item::File(file))) => {
            file.path.ends_with(BOOT_FILE)
        }
        _ => false,
    };
    let failed = || failures.iter().flat_map(|it| &it.steps);
    steps.retain(|step| !failed().any(|it| it == step || holds(it, step)));
}

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
    /// podwire's keys, as of the last snapshot and the changes since.
    pub(crate) owned: Owned,
    pub(crate) counts: Counts,
    pub(crate) moving: Moving,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Counts {
    /// Requests that change something in the kernel, over netlink, including runs of nft.
    pub(crate) netlink: usize,
    /// Transactions with the switch's database.
    pub(crate) ovsdb: usize,
    /// Bundles of OpenFlow.
    pub(crate) openflow: usize,
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
            Some(Step::Remove(Item::Former(_))) => "restore",
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
    #[error(transparent)]
    Firewalld(Box<zbus::Error>),
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
    Flows(#[from] FlowsError),
    #[error(transparent)]
    Firewall(#[from] NftError),
    #[error(transparent)]
    Moved(#[from] MovedError),
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error(transparent)]
    Networkd(#[from] NetworkdError),
    #[error(transparent)]
    NetworkManager(#[from] NetworkManagerError),
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error("it is not moved: {0}")]
    Unsafe(String),
    #[error("another `podwire node` moves the NIC: wait until it has ended")]
    Moving,
    #[error("wait for {link} in its bridge: {source}")]
    Attach { link: String, source: WaitError },
    #[error("ovs-vswitchd can't attach {link}: {said}")]
    Refused { link: String, said: String },
    #[error("{0}; everything on the NIC was moved back")]
    MovedBack(Box<ApplyError>),
}

impl Machine {
    /// Executes steps in order, those of a group as one. The others go on when one fails, but for
    /// removals of what a NIC is in that could not be moved back.
    pub(crate) async fn apply(&mut self, steps: &[Step], actual: &Actual) -> Vec<Failure> {
        self.owned.clone_from(&actual.switch.owned);
        let mut failures = Vec::new();
        for mut steps in groups(steps) {
            drop_failed(&mut steps, &failures);
            if steps.is_empty() {
                continue;
            }
            if let Err(error) = self.execute(&steps, actual).await {
                failures.push(Failure { steps, error });
            }
        }
        failures
    }

    /// Executes a group of steps, each after its inverse is on disk.
    async fn execute(&mut self, steps: &[Step], actual: &Actual) -> Result<(), ApplyError> {
        if let [step] = steps
            && let Some(moved) = step.item().kind().guarded(actual)
        {
            return self.guarded(step, moved, actual).await;
        }
        let mut changes = Vec::new();
        for step in steps {
            let item = match step {
                Step::Make(item) => item,
                Step::Remove(item) => {
                    changes.extend(item.kind().remove(actual));
                    continue;
                }
            };
            let mut undos = item.kind().undos(actual, self.journal.undos());
            if item.mark() == Mark::Journal {
                undos.push(Undo::Made(item.clone()));
            }
            for undo in undos {
                self.journal.note(undo)?;
                fault();
            }
            changes.extend(item.kind().make(actual));
        }
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            match change {
                Change::Key(first) => {
                    let mut keys = vec![first];
                    while let Some(Change::Key(key)) =
                        changes.next_if(|it| matches!(it, Change::Key(_)))
                    {
                        keys.push(key);
                    }
                    let change = keys_transaction(&keys, &actual.switch, &mut self.owned);
                    if let Some(change) = change {
                        self.transact(&change).await?;
                    }
                }
                change => self.change(change).await?,
            }
            fault();
        }
        Ok(())
    }

    /// Makes one change, other than of the switch's own columns.
    async fn change(&mut self, change: Change) -> Result<(), ApplyError> {
        match change {
            Change::Key(_) => Ok(()),
            Change::Switch(change) => self.transact(&change).await,
            Change::Attached(link) => self.attached(&link).await,
            Change::Kernel(message, flags) => self.request(message, flags).await,
            Change::Flows(flows) => self.write_flows(flows).await,
            Change::Nft(what, script) => self.run_nft(what, &script).await,
            Change::File(path, Some(text)) => self.write_file(&path, &text),
            Change::File(path, None) => self.remove_file(&path),
            Change::Sysctl(path, value) => self.write_sysctl(&path, &value),
            Change::Firewalld(rule, so) => self.change_firewalld(&rule, so).await,
            Change::TunnelPort(port) => self.write_tunnel_port(&port).await,
            Change::Networkd => {
                self.counts.dbus += 1;
                Ok(networkd::reload().await?)
            }
            Change::NetworkManager(deed) => self.tell(&deed).await,
            Change::Managed(index) => {
                networkd::managed(index).await?;
                Ok(reach::settled().await?)
            }
            Change::Renewed(awaited) => Ok(reach::renewed(&awaited).await?),
            Change::RenewedBack(awaited) => {
                // Its server may no longer answer: then what stands in for the lease stays.
                if reach::renewed(&awaited).await.is_ok() {
                    self.tell(&Deed::SettleBack(awaited.link)).await?;
                }
                Ok(())
            }
        }
    }

    /// Tells NetworkManager to do this, and waits until it has.
    async fn tell(&mut self, deed: &Deed) -> Result<(), ApplyError> {
        self.counts.dbus += 1;
        deed.execute().await?;
        if deed.configures() {
            reach::settled().await?;
        }
        Ok(())
    }

    /// Waits until ovs-vswitchd has attached a link, or says why it can't.
    async fn attached(&self, link: &str) -> Result<(), ApplyError> {
        let awaited = format!("a port number of {link}, which ovs-vswitchd gives");
        let deadline = Instant::now() + DATABASE_LIMIT;
        let said = self.client.wait(&awaited, deadline, |db| {
            let row = db.interface_by_name(link)?;
            let error = row.error().map(str::to_owned);
            error.or_else(|| row.ofport().filter(|it| *it > 0).map(|_| String::new()))
        });
        let link = link.to_owned();
        match said.await {
            Ok(said) if said.is_empty() => Ok(()),
            Ok(said) => Err(ApplyError::Refused { link, said }),
            Err(source) => Err(ApplyError::Attach { link, source }),
        }
    }

    async fn transact(&mut self, change: &Transaction) -> Result<(), ApplyError> {
        self.counts.ovsdb += 1;
        let deadline = Instant::now() + DATABASE_LIMIT;
        self.client.transact(change, deadline).await?;
        Ok(())
    }

    async fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), ApplyError> {
        self.counts.netlink += 1;
        let adds = flags & NLM_F_CREATE != 0;
        let may_exist = uplink::may_exist(&message, flags);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut response = self.handle.request(request)?;
        while let Some(answer) = response.next().await {
            match answer.payload {
                // It has been removed already.
                NetlinkPayload::Error(error) if !adds && is_gone(&error) => {}
                // The same one exists already.
                NetlinkPayload::Error(error)
                    if may_exist && Errno::from_raw(-error.raw_code()) == Errno::EEXIST => {}
                NetlinkPayload::Error(error) => {
                    return Err(rtnetlink::Error::NetlinkError(error).into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn write_flows(&mut self, flows: Vec<Flow>) -> Result<(), ApplyError> {
        self.counts.openflow += 1;
        let socket = flows::socket(&self.moving.places.ovsdb);
        Ok(flows::replace(&socket, flows).await?)
    }

    async fn run_nft(&mut self, what: &'static str, script: &str) -> Result<(), ApplyError> {
        self.counts.netlink += 1;
        Ok(nft::run(what, script).await?)
    }

    async fn change_firewalld(&mut self, rule: &Rule, so: bool) -> Result<(), ApplyError> {
        let Some(firewalld) = &self.firewalld else {
            return Ok(());
        };
        self.counts.dbus += 1;
        let told = firewalld.set(rule, so).await;
        told.map_err(|error| ApplyError::Firewalld(Box::new(error)))
    }

    async fn write_tunnel_port(&mut self, wanted: &TunnelPort) -> Result<(), ApplyError> {
        let Some(client) = &self.southbound else {
            return Ok(());
        };
        self.counts.ovsdb += 1;
        let deadline = Instant::now() + DATABASE_LIMIT;
        let TunnelPort { chassis, port } = wanted;
        let written = southbound::write_port(client, chassis, *port, deadline).await;
        written.map_err(ApplyError::Southbound)
    }

    /// Atomically: its reader watches for its arrival. And on disk: what follows may be there after
    /// a loss of power, and be wrong without the file.
    fn write_file(&mut self, path: &str, text: &str) -> Result<(), ApplyError> {
        self.counts.files += 1;
        files::publish(Path::new(path), text.as_bytes()).map_err(in_file("write", path))
    }

    fn remove_file(&mut self, path: &str) -> Result<(), ApplyError> {
        self.counts.files += 1;
        let removed = std::fs::remove_file(path);
        if let Some(directory) = Path::new(path).parent() {
            // A directory with other files stays.
            let _ = std::fs::remove_dir(directory);
        }
        removed.map_err(in_file("remove", path))
    }

    fn write_sysctl(&mut self, path: &str, value: &str) -> Result<(), ApplyError> {
        self.counts.files += 1;
        let file = Path::new("/proc/sys").join(path);
        std::fs::write(file, value).map_err(|source| ApplyError::Sysctl {
            path: path.to_owned(),
            value: value.to_owned(),
            source,
        })
    }
}

fn is_gone(error: &ErrorMessage) -> bool {
    let errno = Errno::from_raw(-error.raw_code());
    matches!(
        errno,
        Errno::ESRCH | Errno::ENOENT | Errno::EADDRNOTAVAIL | Errno::ENODEV
    )
}

fn in_file(step: &'static str, path: &str) -> impl FnOnce(std::io::Error) -> ApplyError {
    let path = path.to_owned();
    move |source| ApplyError::File { step, path, source }
}

/// Kills the process as with SIGKILL when it reaches, for the n-th time, a boundary between a
/// journal entry and its step or between two steps; `PODWIRE_NODE_FAULT` is n. With
/// `PODWIRE_NODE_FAULT_STOPS` it says so and stops there, for whoever takes the machine's power.
/// Only in builds for tests.
fn fault() {
    #[cfg(feature = "fault-points")]
    {
        use std::io::Write as _;
        use std::sync::atomic::{AtomicUsize, Ordering};
        static PASSED: AtomicUsize = AtomicUsize::new(0);
        let passed = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
        let wanted = std::env::var("PODWIRE_NODE_FAULT").ok();
        if wanted.and_then(|number| number.parse().ok()) == Some(passed) {
            use nix::sys::signal::{Signal, kill};
            let signal = match std::env::var_os("PODWIRE_NODE_FAULT_STOPS") {
                Some(_) => {
                    let _ = writeln!(std::io::stdout(), "stopped at boundary {passed}");
                    Signal::SIGSTOP
                }
                None => Signal::SIGKILL,
            };
            let _ = kill(nix::unistd::Pid::this(), signal);
        }
    }
}
