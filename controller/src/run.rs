//! The loop: changes of objects and rows in, passes out. One task has all the state.

mod state;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwire_ovs::client::{Client as Ovsdb, ClientConfig, Follower};
use podwire_ovs::nb;
use podwire_ovs::transact::{TransactError, Transaction};
use podwire_ovs::wire::Limits;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::cluster::Key;
use crate::config::{Config, SettingError};
use crate::lease::{self, Lease};
use crate::metrics;
use crate::rival;
use crate::southbound::Southbound;
use crate::watch::{Change, KINDS};
use crate::write::{Write, Writer, Written};
pub(crate) use state::{Rules, State, Step};

/// How long a transaction, a term's begin included, may take.
const TRANSACT: Duration = Duration::from_secs(60);
/// When a key is looked at again that could not be done.
const RETRY: Duration = Duration::from_secs(1);
/// When at the latest, after the API server has failed several times.
const RETRY_MOST: Duration = Duration::from_secs(32);
/// How long the southbound database may take to remove a chassis.
const SOUTHBOUND: Duration = Duration::from_secs(5);
/// What one transaction may hold, roughly, in operations.
const OPERATIONS: usize = 500;

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting is wrong.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// ovn-kubernetes' control plane is at work.
    #[error(
        "ovn-kubernetes' control plane is at work here, and two can't be: {0}. Scale its \
         ovnkube-master or ovnkube-control-plane to nothing first; --adopt then takes over its rows"
    )]
    Rival(String),
    /// There is no way to the API server.
    #[error("the API server: {0}")]
    Api(Box<kube::Error>),
    /// Nobody can be served metrics there.
    #[error("--metrics-address {address}: {source}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The settings of the API server are wrong.
    #[error("the API server: {0}")]
    Access(String),
    /// The database could not be used in time.
    #[error("the northbound database: {0}")]
    Database(TransactError),
    /// Another controller leads now. To start anew is to wait for one's turn.
    #[error("another controller leads: {0}")]
    Deposed(String),
}

/// What the controller has done, for tests and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It leads, and has compared everything at least once.
    pub is_ready: bool,
    /// Nothing is dirty, nothing is on its way.
    pub is_idle: bool,
    /// Passes that had something to compare.
    pub passes: u64,
    /// Keys compared.
    pub keys: u64,
    /// Operations that were committed in the database.
    pub operations: u64,
    /// Writes to the API server.
    pub writes: u64,
    /// Writes to the API server that failed.
    pub write_failures: u64,
    /// Changes of objects taken.
    pub changes: u64,
    /// This controller leads.
    pub leads: bool,
    /// Nodes that are known.
    pub nodes: u64,
    /// Pods on the pod network.
    pub pods: u64,
    /// Services with cluster IPs.
    pub services: u64,
    /// Objects that can't have what they should.
    pub problems: u64,
    /// Objects that are tried again in a moment.
    pub retries: u64,
}

/// Where [`Progress`] is told.
#[derive(Clone, Debug, Default)]
pub struct Reporter(Arc<watch::Sender<Progress>>);

impl Reporter {
    /// The present progress, and a wake-up for each later one.
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.0.subscribe()
    }
}

/// Runs until `shutdown`, or until another controller leads.
///
/// # Errors
/// See [`RunError`].
pub async fn run(
    config: Config,
    reporter: &Reporter,
    shutdown: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let rules = config.rules()?;
    let mut metrics = JoinSet::new();
    if let Some(address) = config.metrics_address {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| RunError::Metrics { address, source })?;
        metrics.spawn(metrics::serve(listener, reporter.subscribe()));
    }
    let client = api_client(&config).await?;
    let ovsdb = northbound(&config)?;
    let southbound = match config.sb_db.is_empty() {
        true => None,
        false => Some(Southbound::new(&config)?),
    };
    let lease = Lease::new(client.clone(), &config.lease_namespace, &config.identity);
    let (absent, is_absent) = oneshot::channel();
    let mut rival = std::pin::pin!(rival::appears(client.clone(), absent));
    let mut shutdown = std::pin::pin!(shutdown);
    let acquired = async {
        if is_absent.await.is_ok() {
            lease.acquire().await;
        }
    };
    tokio::select! {
        () = acquired => {}
        found = &mut rival => return Err(RunError::Rival(found)),
        () = &mut shutdown => return Ok(()),
    }
    let term = Term {
        state: State::new(rules),
        ovsdb,
        southbound,
        client,
    };
    let led = tokio::select! {
        led = term.lead(&config.identity, reporter) => led,
        () = lease.keep() => Err(RunError::Deposed("the lease is lost".to_owned())),
        found = &mut rival => Err(RunError::Rival(found)),
        () = &mut shutdown => Ok(()),
    };
    lease.release().await;
    led
}

/// A client of the northbound database.
pub(crate) fn northbound(config: &Config) -> Result<Ovsdb, SettingError> {
    Ok(Ovsdb::start(ClientConfig {
        leader_only: true,
        tls: config.tls(),
        replica_bytes: 2 << 30,
        // The replica's first contents come as one message.
        limits: Limits {
            message_bytes: 1 << 30,
            ..Limits::default()
        },
        ..ClientConfig::new(
            config.remotes("--nb-db", &config.nb_db)?,
            nb::DATABASE,
            nb::tables(),
        )
    }))
}

/// A client of the API server.
pub(crate) async fn api_client(config: &Config) -> Result<Client, RunError> {
    let access = |error: &dyn std::fmt::Display| RunError::Access(error.to_string());
    let mut config = match &config.k8s_apiserver {
        Some(url) => kube::Config::new(url.parse().map_err(|error| access(&error))?),
        None => kube::Config::infer()
            .await
            .map_err(|error| access(&error))?,
    };
    // What fails is tried again here, by its own rules.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| RunError::Api(Box::new(error)))
}

/// What one term of leading needs.
struct Term {
    state: State,
    ovsdb: Ovsdb,
    southbound: Option<Southbound>,
    client: Client,
}

impl Term {
    async fn lead(self, identity: &str, reporter: &Reporter) -> Result<(), RunError> {
        let deadline = Instant::now() + TRANSACT;
        let (mut changes, _tasks) = crate::watch::start(&self.client);
        let mut state = self.state;
        let begun = lease::begin_term(&self.ovsdb, identity, deadline);
        let listed = async {
            list(&mut changes, &mut state).await;
            Ok(())
        };
        tokio::try_join!(begun, listed).map_err(RunError::Database)?;
        // From before the rows are read: a change in between is looked at twice.
        let follower = self.ovsdb.follow();
        state.begin(&self.ovsdb);
        info!(
            nodes = state.cluster.nodes.len(),
            pods = state.cluster.pods.len(),
            services = state.cluster.services.len(),
            "all objects are known"
        );
        let mut controller = Controller {
            state,
            writer: Writer::new(self.client),
            ovsdb: self.ovsdb,
            southbound: self.southbound,
            changes,
            progress: Progress {
                leads: true,
                ..Progress::default()
            },
            most: OPERATIONS,
            api_failures: 0,
        };
        controller.serve(follower, reporter).await
    }
}

/// Takes changes until every kind was listed once.
pub(crate) async fn list(changes: &mut mpsc::Receiver<Change>, state: &mut State) {
    let mut listed = 0;
    while listed < KINDS {
        match changes.recv().await {
            Some(Change::Listed) => listed += 1,
            Some(change) => state.learn(change),
            None => return,
        }
    }
}

struct Controller {
    state: State,
    ovsdb: Ovsdb,
    southbound: Option<Southbound>,
    writer: Writer,
    changes: mpsc::Receiver<Change>,
    progress: Progress,
    /// How many operations the next transaction may have, roughly.
    most: usize,
    /// Writes to the API server that failed since one succeeded.
    api_failures: u32,
}

impl Controller {
    async fn serve(&mut self, mut follower: Follower, reporter: &Reporter) -> Result<(), RunError> {
        let mut is_done = false;
        loop {
            self.pass().await?;
            self.progress.is_ready = true;
            self.progress.is_idle = self.state.is_clean() && self.writer.is_idle();
            self.state.count(&mut self.progress);
            self.progress.writes = self.writer.count;
            if self.progress.is_idle && !std::mem::replace(&mut is_done, true) {
                let Progress {
                    operations, writes, ..
                } = self.progress;
                info!(operations, writes, "everything is as it should be");
            }
            reporter.0.send_replace(self.progress.clone());
            let retry = self.state.next_retry();
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return Err(RunError::Access("the watches ended".to_owned())),
                },
                changed = follower.next() => match changed {
                    Some(changed) => self.state.rows_changed(&self.ovsdb, &changed),
                    None => return Err(RunError::Access("the database client ended".to_owned())),
                },
                written = self.writer.next() => self.written(written),
                () = sleep_until(retry.unwrap_or_else(far)), if retry.is_some() => {
                    self.state.retry(Instant::now());
                }
            }
            // What came together is done together.
            while let Ok(change) = self.changes.try_recv() {
                self.take(change);
            }
        }
    }

    fn take(&mut self, change: Change) {
        self.progress.changes += 1;
        self.state.learn(change);
    }

    /// Compares the dirty keys with the database, and commits what differs.
    async fn pass(&mut self) -> Result<(), RunError> {
        if self.state.is_clean() {
            return Ok(());
        }
        self.progress.passes += 1;
        let mut keys = self.state.take_dirty();
        while !keys.is_empty() {
            let deadline = Instant::now() + TRANSACT;
            // What a replica shows that is not in sync may lack what a lost reply was about.
            if let Err(error) = self.ovsdb.synced(deadline).await {
                warn!(%error, "the database can't be compared; its keys are tried again");
                self.state.failed(keys, Instant::now() + RETRY);
                break;
            }
            let mut step = self.state.step(&self.ovsdb, &mut keys, self.most);
            self.progress.keys += step.keys.len() as u64;
            if let Err(error) = self.remove_chassis(&step.chassis).await {
                warn!(%error, "the chassis of nodes that are gone can't be removed from the southbound database; tried again");
                let nodes: BTreeSet<Key> = step.chassis.into_iter().map(|(key, _)| key).collect();
                step.keys.retain(|key| !nodes.contains(key));
                self.state.failed(nodes, Instant::now() + RETRY);
                keys.extend(step.keys);
                continue;
            }
            if step.transaction.is_empty() && step.writes.is_empty() {
                continue;
            }
            if step.transaction.is_empty() {
                // For the fence: who was replaced writes nothing to the API server either.
                step.transaction.select("NB_Global", [], &["_uuid"]);
            } else {
                self.progress.operations += step.transaction.len() as u64;
            }
            self.commit(step, &mut keys, deadline).await?;
        }
        Ok(())
    }

    async fn commit(
        &mut self,
        step: Step,
        keys: &mut BTreeSet<Key>,
        deadline: Instant,
    ) -> Result<(), RunError> {
        let operations = step.transaction.len();
        let committed = self.ovsdb.transact(&step.transaction, deadline).await;
        if let Err(error @ TransactError::Fenced { .. }) = committed {
            return Err(RunError::Deposed(error.to_string()));
        }
        let Err(error) = committed else {
            self.most = (self.most * 2).min(OPERATIONS);
            debug!(operations, keys = step.keys.len(), "committed");
            for (key, write) in step.writes {
                self.start(key, write);
            }
            return Ok(());
        };
        for (key, write) in &step.writes {
            self.state.untold(key, write);
        }
        match error {
            // One key is to blame; in smaller transactions the others are done without it.
            TransactError::Operation { .. }
            | TransactError::Commit { .. }
            | TransactError::Invalid { .. }
            | TransactError::TooLarge { .. }
                if self.most > 1 && step.keys.len() > 1 =>
            {
                debug!(%error, operations, "a transaction was refused; its keys are split");
                self.most = (operations.min(self.most) / 2).max(1);
                keys.extend(step.keys);
            }
            // Nobody knows what of it was done: the replica does, once it is in sync again.
            error => {
                warn!(%error, operations, "a transaction failed; its keys are tried again");
                self.state.failed(step.keys, Instant::now() + RETRY);
            }
        }
        Ok(())
    }

    /// Before the rows go by which they are known, and only while this controller leads.
    async fn remove_chassis(&self, chassis: &[(Key, String)]) -> Result<(), TransactError> {
        let Some(southbound) = self.southbound.as_ref().filter(|_| !chassis.is_empty()) else {
            return Ok(());
        };
        let deadline = Instant::now() + SOUTHBOUND;
        let mut fenced = Transaction::new();
        fenced.select("NB_Global", [], &["_uuid"]);
        self.ovsdb.transact(&fenced, deadline).await?;
        let names: Vec<&str> = chassis.iter().map(|(_, name)| &**name).collect();
        info!(
            chassis = names.join(" "),
            "removing from the southbound database"
        );
        southbound.remove(&names, deadline).await
    }

    fn start(&mut self, key: Key, write: Write) {
        if self.state.begins(&key, &write) {
            self.writer.start(key, write);
        }
    }

    fn written(&mut self, Written { key, write, result }: Written) {
        self.state.is_over(&key, &write);
        match result {
            Ok(version) => {
                self.api_failures = 0;
                self.state.was_written(&key, &write, version);
            }
            Err(error) if error.is_too_late() => {
                debug!(%key, %error, "a write came too late; the watch tells");
            }
            Err(error) => {
                warn!(%key, %error, "a write to the API server failed; it is tried again");
                let pause = RETRY * (1 << self.api_failures.min(5));
                self.api_failures += 1;
                self.progress.write_failures += 1;
                self.state.untold(&key, &write);
                self.state
                    .failed([key], Instant::now() + pause.min(RETRY_MOST));
            }
        }
    }
}

/// Later than anything that is waited for.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(1 << 30)
}
