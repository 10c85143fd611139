//! The loop: changes of objects and rows in, passes out. One task has all the state.

mod state;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwire_ovs::client::{Client as Ovsdb, ClientConfig, Follower, RemoteError};
use podwire_ovs::nb;
use podwire_ovs::transact::TransactError;
use podwire_ovs::wire::Limits;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::lease::{self, Lease};
use crate::watch::{Change, KINDS};
use crate::write::{Writer, Written};
use state::State;

/// How long a transaction, a term's begin included, may take.
const TRANSACT: Duration = Duration::from_secs(60);
/// When a key is looked at again that could not be done.
const RETRY: Duration = Duration::from_secs(1);
/// What one transaction may hold, roughly, in operations.
const OPERATIONS: usize = 500;

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The setting of the database is wrong.
    #[error("--nb-db: {0}")]
    Remote(#[from] RemoteError),
    /// There is no way to the API server.
    #[error("the API server: {0}")]
    Api(Box<kube::Error>),
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
    /// Changes of objects taken.
    pub changes: u64,
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
    let client = api_client(&config).await?;
    let ovsdb = Ovsdb::start(ClientConfig {
        leader_only: true,
        tls: config.tls(),
        replica_bytes: 2 << 30,
        // The replica's first contents come as one message.
        limits: Limits {
            message_bytes: 1 << 30,
            ..Limits::default()
        },
        ..ClientConfig::new(config.remotes()?, nb::DATABASE, nb::tables())
    });
    let lease = Lease::new(client.clone(), &config.lease_namespace, &config.identity);
    let mut shutdown = std::pin::pin!(shutdown);
    tokio::select! {
        acquired = lease.acquire() => acquired.map_err(|error| RunError::Api(Box::new(error)))?,
        () = &mut shutdown => return Ok(()),
    }
    let led = tokio::select! {
        led = lead(&config, client, ovsdb, reporter) => led,
        () = lease.keep() => Err(RunError::Deposed("the lease is lost".to_owned())),
        () = &mut shutdown => Ok(()),
    };
    lease.release().await;
    led
}

async fn api_client(config: &Config) -> Result<Client, RunError> {
    let access = |error: &dyn std::fmt::Display| RunError::Access(error.to_string());
    let config = match &config.k8s_apiserver {
        Some(url) => kube::Config::new(url.parse().map_err(|error| access(&error))?),
        None => kube::Config::infer()
            .await
            .map_err(|error| access(&error))?,
    };
    Client::try_from(config).map_err(|error| RunError::Api(Box::new(error)))
}

/// Leads one term.
async fn lead(
    config: &Config,
    client: Client,
    ovsdb: Ovsdb,
    reporter: &Reporter,
) -> Result<(), RunError> {
    let deadline = Instant::now() + TRANSACT;
    lease::begin_term(&ovsdb, &config.identity, deadline)
        .await
        .map_err(RunError::Database)?;
    let follower = ovsdb.follow();
    let (changes, _tasks) = crate::watch::start(&client);
    let mut controller = Controller {
        state: State::new(config.cluster_subnets.clone(), config.adopt),
        writer: Writer::new(client),
        ovsdb,
        changes,
        progress: Progress::default(),
        most: OPERATIONS,
    };
    controller.list().await;
    controller.state.begin(&controller.ovsdb);
    info!(
        nodes = controller.state.cluster.nodes.len(),
        pods = controller.state.cluster.pods.len(),
        services = controller.state.cluster.services.len(),
        "all objects are known"
    );
    controller.serve(follower, reporter).await
}

struct Controller {
    state: State,
    ovsdb: Ovsdb,
    writer: Writer,
    changes: mpsc::Receiver<Change>,
    progress: Progress,
    /// How many operations the next transaction may have, roughly.
    most: usize,
}

impl Controller {
    /// Takes changes until every kind was listed once.
    async fn list(&mut self) {
        let mut listed = 0;
        while listed < KINDS {
            match self.changes.recv().await {
                Some(Change::Listed) => listed += 1,
                Some(change) => self.state.learn(change),
                None => return,
            }
        }
    }

    async fn serve(&mut self, mut follower: Follower, reporter: &Reporter) -> Result<(), RunError> {
        loop {
            self.pass().await?;
            self.progress.is_ready = true;
            self.progress.is_idle = self.state.is_clean() && self.writer.is_idle();
            self.progress.writes = self.writer.count;
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
                let keys = keys.into_iter().collect();
                self.state.failed(keys, Instant::now() + RETRY);
                break;
            }
            let step = self.state.step(&self.ovsdb, &mut keys, self.most);
            for (key, write) in step.writes {
                self.writer.start(key, write);
            }
            self.progress.keys += step.keys.len() as u64;
            let operations = step.transaction.len();
            if operations == 0 {
                continue;
            }
            match self.ovsdb.transact(&step.transaction, deadline).await {
                Ok(_) => {
                    self.most = (self.most * 2).min(OPERATIONS);
                    self.progress.operations += operations as u64;
                    debug!(operations, keys = step.keys.len(), "committed");
                }
                Err(error @ TransactError::Fenced { .. }) => {
                    return Err(RunError::Deposed(error.to_string()));
                }
                // One key is to blame; in smaller transactions the others are done without it.
                Err(
                    error @ (TransactError::Operation { .. }
                    | TransactError::Commit { .. }
                    | TransactError::Invalid { .. }
                    | TransactError::TooLarge { .. }),
                ) if self.most > 1 && step.keys.len() > 1 => {
                    debug!(%error, operations, "a transaction was refused; its keys are split");
                    self.most = (operations.min(self.most) / 2).max(1);
                    keys.extend(step.keys);
                }
                // Nobody knows what of it was done: the replica does, once it is in sync again.
                Err(error) => {
                    warn!(%error, operations, "a transaction failed; its keys are tried again");
                    self.state.failed(step.keys, Instant::now() + RETRY);
                }
            }
        }
        for (key, write) in self.state.after_pass() {
            self.writer.start(key, write);
        }
        Ok(())
    }

    fn written(&mut self, Written { key, write, result }: Written) {
        match result {
            Ok(version) => self.state.was_written(&key, &write, version),
            // It is gone, or another has its name; the watch tells.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                debug!(%key, reason = status.reason, "a write came too late");
                self.state.was_refused(&key, &write);
            }
            Err(error) => {
                warn!(%key, %error, "a write to the API server failed; it is tried again");
                self.state.failed(vec![key], Instant::now() + RETRY);
            }
        }
    }
}

/// Later than anything that is waited for.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(1 << 30)
}
