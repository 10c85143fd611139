//! The loop: changes of objects and rows in, passes out. One task has all the state.

mod controller;
mod kinds;
mod latency;
mod state;
mod watch;

use std::future::{pending, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use podwire_apiserver::event::Poster;
use podwire_apiserver::{Access, AccessError, Token, Unread, client};
use podwire_daemon::http;
use podwire_ovs::client::State::Synced;
use podwire_ovs::client::{Client as Ovsdb, ClientConfig};
use podwire_ovs::nb;
use podwire_ovs::transact::TransactError;
use podwire_ovs::wire::Limits;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::info;

use crate::config::{Config, SettingError};
use crate::delays::Delays;
use crate::key::Of;
use crate::lease::{self, Lease};
use crate::metrics;
pub use crate::progress::{Progress, Reporter};
use crate::rival;
use crate::southbound::{Southbound, has_port};
use crate::write::{SOURCE, Writer};
use controller::Controller;
use kinds::KINDS;
pub use state::Contradiction;
use state::check;
pub(crate) use state::{State, Step, in_rows, shared};
use watch::Change;

/// Time limit of a transaction.
const TRANSACT: Duration = Duration::from_secs(60);
/// Time limit for the database's content when a term begins; a loaded ovsdb-server takes a minute
/// to write that of a large cluster.
const SYNC: Duration = Duration::from_secs(180);

/// Follows all kinds until the set of tasks is dropped.
pub(crate) fn watches(server: &Access, unread: &Unread) -> (mpsc::Receiver<Change>, JoinSet<()>) {
    watch::start(KINDS, server, unread)
}

/// Why the controller stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting is invalid.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// ovn-kubernetes' control plane is running.
    #[error(
        "ovn-kubernetes' control plane runs in this cluster, and two can't run: {0}. Scale its \
         ovnkube-master or ovnkube-control-plane to zero first; --adopt then takes over its rows"
    )]
    Rival(String),
    /// A setting does not fit what exists.
    #[error("{0}")]
    Contradiction(#[from] Contradiction),
    /// There is no client of the API server.
    #[error("the API server: {0}")]
    Api(#[from] AccessError),
    /// The metrics address can't be used.
    #[error("--metrics-address {address}: {source}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// What the controller follows ended.
    #[error("{0}")]
    Ended(&'static str),
    /// The database was not usable in time.
    #[error("the northbound database: {0}")]
    Database(TransactError),
    /// Another controller leads now, or can. A restart makes this one wait for its turn.
    #[error("this controller does not lead any longer: {0}")]
    Deposed(String),
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
    let server = api_server(&config);
    let client = client(&server).await?;
    let ovsdb = northbound(&config)?;
    let delays = Delays::default();
    let lease = Lease::new(
        client.clone(),
        &config.lease_namespace,
        &config.identity,
        ovsdb.clone(),
    );
    let lease = lease.telling(delays.clone());
    let poster = Poster::start(client.clone(), SOURCE);
    let unread = Unread::posting(poster.clone());
    let mut metrics = JoinSet::new();
    if let Some(address) = config.metrics_address {
        let listener = http::listen(address);
        let listener = listener.map_err(|source| RunError::Metrics { address, source })?;
        let progress = reporter.subscribe();
        let (lease, ovsdb, database) = (lease.clone(), ovsdb.clone(), config.nb_db.clone());
        let (unread, server) = (unread.clone(), name_of(&server));
        let delays = delays.clone();
        let page = move |request: Request<_>| {
            let missing = match ovsdb.state() {
                Synced => lease
                    .problem()
                    .map(|problem| format!("{server}: {problem}")),
                state => Some(format!("the northbound database {database}: {state}")),
            };
            let path = request.uri().path();
            let progress = Progress {
                unreadable: unread.total() as u64,
                ..progress.borrow().clone()
            };
            delays.retain(|port| has_port(&ovsdb, port));
            ready(metrics::respond(path, &progress, &delays, missing))
        };
        metrics.spawn(http::serve(listener, Arc::default(), page));
    }
    let southbound = match config.sb_db.is_empty() {
        true => None,
        false => Some(Southbound::new(&config)?),
    };
    let (absent, is_absent) = oneshot::channel();
    let mut rival = std::pin::pin!(rival::appears(server.clone(), absent));
    let mut shutdown = std::pin::pin!(shutdown);
    let acquired = async {
        if is_absent.await.is_ok() {
            // Before it leads, so that an upgrade to wrong settings ends at its first controller.
            lease::await_rows(&ovsdb).await;
            ovsdb.read(|db| check(&rules, db))?;
            lease.acquire().await;
        }
        Ok::<_, RunError>(())
    };
    tokio::select! {
        acquired = acquired => acquired?,
        found = &mut rival => return Err(RunError::Rival(found)),
        () = &mut shutdown => return Ok(()),
    }
    let term = Term {
        state: State::new(rules.clone()),
        ovsdb: ovsdb.clone(),
        southbound: southbound.clone(),
        delays: delays.clone(),
        poster,
        server,
        client,
        lease: lease.clone(),
        unread,
    };
    let followed = async {
        match &southbound {
            Some(southbound) => southbound.follow(&ovsdb, &delays).await,
            None => pending().await,
        }
    };
    let led = tokio::select! {
        led = term.lead(&config.identity, reporter) => led,
        () = followed => Err(RunError::Ended("the southbound database's client ended")),
        reason = lease.keep() => Err(RunError::Deposed(reason)),
        found = &mut rival => Err(RunError::Rival(found)),
        () = &mut shutdown => Ok(()),
    };
    lease.release().await;
    led
}

/// A client of the northbound database.
pub(crate) fn northbound(config: &Config) -> Result<Ovsdb, SettingError> {
    Ok(Ovsdb::start(ClientConfig {
        replica_bytes: 2 << 30,
        // The replica's first content arrives as one message.
        limits: Limits {
            message_bytes: 1 << 30,
            ..Limits::default()
        },
        ..config.database(nb::DATABASE, nb::tables())?
    }))
}

/// The API server: that of the settings, of a kubeconfig as kubectl finds it, or of the pod.
pub(crate) fn api_server(config: &Config) -> Access {
    match &config.k8s_apiserver {
        Some(url) => Access::Server {
            url: url.clone(),
            ca: None,
            token: Token::None,
        },
        None => kubeconfig(None).unwrap_or(Access::InCluster),
    }
}

/// The kubeconfig that kubectl would use, if there is one, with one of its contexts.
pub(crate) fn kubeconfig(context: Option<String>) -> Option<Access> {
    let named = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
    let own = || std::env::home_dir().map(|home| home.join(".kube/config"));
    let own = || own().filter(|path| path.exists());
    named
        .map(|paths| std::env::split_paths(&paths).collect())
        .or_else(|| own().map(|path| vec![path]))
        .map(|files| Access::Personal { files, context })
}

/// The API server, for a message.
pub(crate) fn name_of(server: &Access) -> String {
    match server {
        Access::Server { url, .. } => format!("the API server {url}"),
        other => other.to_string(),
    }
}

/// The state of one term.
struct Term {
    state: State,
    ovsdb: Ovsdb,
    southbound: Option<Southbound>,
    delays: Delays,
    poster: Poster,
    server: Access,
    client: Client,
    lease: Lease,
    unread: Unread,
}

impl Term {
    async fn lead(self, identity: &str, reporter: &Reporter) -> Result<(), RunError> {
        let deadline = Instant::now() + SYNC;
        let begun = lease::begin_term(&self.ovsdb, identity, deadline).await;
        let succeeds = begun.map_err(RunError::Database)?;
        // After the fence: every object of which an earlier leader has written rows is listed.
        let (mut changes, _tasks) = watches(&self.server, &self.unread);
        let mut state = self.state;
        list(&mut changes, &mut state, &[Of::Node]).await;
        // Before the rows are read: a change in between is processed twice.
        let follower = self.ovsdb.follow();
        state.begin(&self.ovsdb, succeeds)?;
        info!(
            nodes = state.cluster.nodes.len(),
            pods = state.cluster.pods.len(),
            "all nodes and pods are known"
        );
        let databases = (self.ovsdb, self.southbound);
        let told = (self.delays, self.poster);
        let writer = Writer::new(self.client, self.lease);
        let mut controller = Controller::new(state, databases, told, writer, changes);
        controller.serve(follower, reporter).await
    }
}

/// Receives changes until every kind on which such keys depend has been listed, or is known to be
/// absent.
pub(crate) async fn list(changes: &mut mpsc::Receiver<Change>, state: &mut State, of: &[Of]) {
    while of.iter().any(|of| state.is_held(*of)) {
        match changes.recv().await {
            Some(change) => state.learn(change),
            None => return,
        }
    }
}
