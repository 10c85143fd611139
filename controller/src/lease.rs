//! Leader election. A Lease (coordination.k8s.io/v1) elects; an epoch in the northbound database,
//! which fences every transaction of the leader, decides: a replaced leader can't write, whatever
//! its clock says.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease as ApiLease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use podwire_apiserver::object::MetadataOf;
use podwire_apiserver::watch::{Event, Selection, Watch};
use podwire_cluster::api;
use podwire_ovs::client::{Client as Ovsdb, State};
use podwire_ovs::nb::EPOCH;
use podwire_ovs::transact::{Condition, TransactError, Transaction};
use podwire_ovs::value::Value;
use podwire_ovs::vswitch::{StringMap, set_keys};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

use crate::delays::Delays;
use crate::southbound::has_port;

/// The Lease's name.
pub const NAME: &str = "podwire-controller";

/// The annotation of the Lease with what its holder knows of OVN's delays, as JSON.
pub(crate) const DELAYS: &str = "podwire.io/ovn-delays";

/// How long a lease is valid without renewal.
const DURATION: Duration = Duration::from_secs(15);
/// How long its holder tries to renew it, or to reach the database, before it steps down: less than
/// that, because clocks differ.
const RENEW_LIMIT: Duration = Duration::from_secs(10);
/// The interval of renewals.
const RENEW: Duration = Duration::from_secs(2);

/// How long the database may send its content without being in sync.
const SYNC: Duration = Duration::from_secs(180);
/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// The API server failed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer in {} s", REQUEST.as_secs())]
    Deadline,
}

async fn bounded<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, LeaseError> {
    let answer = timeout(REQUEST, request).await;
    answer
        .map_err(|_| LeaseError::Deadline)?
        .map_err(LeaseError::from)
}

/// The election.
#[derive(Clone)]
pub struct Lease {
    api: Api<ApiLease>,
    namespace: String,
    identity: String,
    /// A leader writes northbound rows, so without the database it is none.
    ovsdb: Ovsdb,
    /// Why the API server's last answer about the lease was none.
    problem: Arc<watch::Sender<Option<String>>>,
    /// When this controller last acquired or renewed it.
    renewed: Arc<watch::Sender<Option<Instant>>>,
    /// What its holder tells with each renewal.
    delays: Option<Delays>,
}

impl Lease {
    /// For a controller with this identity and database.
    pub fn new(client: Client, namespace: &str, identity: &str, ovsdb: Ovsdb) -> Self {
        let unasked = Some("it has not answered yet".to_owned());
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            ovsdb,
            problem: Arc::new(watch::Sender::new(unasked)),
            renewed: Arc::default(),
            delays: None,
        }
    }

    /// A lease whose annotation [`DELAYS`] has the delays as of the last renewal, so that whoever
    /// may read it knows what only the leader sees, at the price of no request.
    pub(crate) fn telling(mut self, delays: Delays) -> Self {
        self.delays = Some(delays);
        self
    }

    /// Why the API server's last answer about the lease was none.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Whether nobody else can have it, by this machine's clock: also after the process was stopped
    /// for a while.
    pub(crate) fn is_held(&self) -> bool {
        let renewed = *self.renewed.borrow();
        renewed.is_some_and(|renewed| renewed.elapsed() < DURATION)
    }

    /// Waits until this controller has the database and the lease: it was free, or its holder did
    /// not renew it in time. Retries if the API server fails.
    pub async fn acquire(&self) {
        let selection = Selection {
            namespace: self.namespace.clone(),
            ..Selection::named(NAME)
        };
        let changes = Watch::new(self.api.clone().into_client(), selection);
        let changes = changes.into_stream();
        let mut changes = std::pin::pin!(changes);
        let mut leader = None;
        loop {
            let tried = self.try_acquire(changes.as_mut(), &mut leader).await;
            if let Err(error) = tried {
                self.problem.send_replace(Some(error.to_string()));
                warn!(%error, "the lease can't be acquired; it is tried again");
                sleep(RENEW).await;
            } else {
                return;
            }
        }
    }

    /// Like [`Self::acquire`], until the API server fails.
    async fn try_acquire<S>(
        &self,
        mut changes: Pin<&mut S>,
        leader: &mut Option<String>,
    ) -> Result<(), LeaseError>
    where
        S: Stream<Item = Event<MetadataOf<api::Lease>>>,
    {
        loop {
            let lease = self.current().await?;
            self.problem.send_replace(None);
            let held_by_other = lease.as_ref().and_then(|lease| {
                let spec = lease.spec.as_ref()?;
                let holder = spec.holder_identity.as_deref().unwrap_or_default();
                let seconds = spec.lease_duration_seconds.unwrap_or_default();
                let is_other = !holder.is_empty() && holder != self.identity;
                let duration = Duration::from_secs(seconds.unsigned_abs().into());
                is_other.then(|| (holder.to_owned(), duration))
            });
            let Some((holder, duration)) = held_by_other else {
                await_rows(&self.ovsdb).await;
                if self.hold(lease).await? {
                    return Ok(());
                }
                continue;
            };
            if leader.as_ref() != Some(&holder) {
                info!(leader = holder, "standing by");
                *leader = Some(holder);
            }
            // Only by this machine's clock, from when the record was last seen to change.
            let version = lease
                .as_ref()
                .and_then(|it| it.metadata.resource_version.clone());
            let expiry = Instant::now() + duration;
            let is_renewed = async {
                while let Some(change) = changes.next().await {
                    match change {
                        Event::Listed(lease) | Event::Applied(lease) => {
                            if Some(lease.metadata.resource_version) != version {
                                return;
                            }
                        }
                        Event::Deleted(_) | Event::Unreadable(_) => return,
                        Event::Listing | Event::AllListed(_) | Event::Watching => {}
                        Event::Bookmark(_) | Event::Failed(_) => {}
                    }
                }
            };
            if timeout_at(expiry, is_renewed).await.is_err() {
                await_rows(&self.ovsdb).await;
                if self.hold(lease).await? {
                    return Ok(());
                }
            }
        }
    }

    /// Renews the lease; returns the reason when it is lost, or is to be given up because the
    /// database is away.
    pub async fn keep(&self) -> String {
        let (mut renewed, mut current) = (Instant::now(), Instant::now());
        loop {
            sleep(RENEW).await;
            let limit = match self.ovsdb.state() {
                State::Synced => {
                    current = Instant::now();
                    RENEW_LIMIT
                }
                State::Connected => SYNC,
                State::Disconnected { .. } => RENEW_LIMIT,
            };
            if current.elapsed() >= limit {
                return format!("the northbound database is away: {}", self.ovsdb.state());
            }
            match timeout_at(renewed + RENEW_LIMIT, self.renew()).await {
                Ok(Ok(true)) => {
                    self.problem.send_replace(None);
                    renewed = Instant::now();
                }
                Ok(Ok(false)) => return "another controller has the lease".to_owned(),
                Ok(Err(error)) => {
                    warn!(%error, "the lease can't be renewed");
                    self.problem.send_replace(Some(error.to_string()));
                    if renewed.elapsed() >= RENEW_LIMIT {
                        return format!("the lease could not be renewed in time: {error}");
                    }
                }
                Err(_) => return "the lease could not be renewed in time".to_owned(),
            }
        }
    }

    /// Lets the next controller have it at once.
    pub async fn release(&self) {
        let released = async {
            let Some(mut lease) = self.current().await?.filter(|it| self.has(it)) else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            let params = PostParams::default();
            bounded(self.api.replace(NAME, &params, &lease))
                .await
                .map(drop)
        };
        if let Err(error) = released.await {
            let error: LeaseError = error;
            warn!(%error, "the lease could not be released; it runs out by itself");
        }
    }

    /// The present lease.
    async fn current(&self) -> Result<Option<ApiLease>, LeaseError> {
        bounded(self.api.get_opt(NAME)).await
    }

    async fn renew(&self) -> Result<bool, LeaseError> {
        match self.current().await? {
            Some(lease) if self.has(&lease) => self.hold(Some(lease)).await,
            _ => Ok(false),
        }
    }

    fn has(&self, lease: &ApiLease) -> bool {
        let spec = lease.spec.as_ref();
        spec.and_then(|spec| spec.holder_identity.as_deref()) == Some(&self.identity)
    }

    /// Enters this controller into the lease; false if another was faster.
    async fn hold(&self, lease: Option<ApiLease>) -> Result<bool, LeaseError> {
        let started = Instant::now();
        let now = MicroTime(Timestamp::now());
        let params = PostParams::default();
        let is_ours = lease.as_ref().is_some_and(|lease| self.has(lease));
        let taken = match lease {
            None => {
                let mut lease = ApiLease::default();
                lease.metadata.name = Some(NAME.to_owned());
                lease.spec = Some(self.spec(None, &now));
                bounded(self.api.create(&params, &lease)).await
            }
            Some(mut lease) => {
                if let Some(delays) = &self.delays {
                    delays.retain(|port| has_port(&self.ovsdb, port));
                    let report = serde_json::to_string(&delays.report()).unwrap_or_default();
                    let annotations = lease.metadata.annotations.get_or_insert_default();
                    annotations.insert(DELAYS.to_owned(), report);
                }
                let before = lease.spec.take();
                lease.spec = Some(match before {
                    Some(before) if is_ours => LeaseSpec {
                        renew_time: Some(now),
                        ..before
                    },
                    before => self.spec(before, &now),
                });
                bounded(self.api.replace(NAME, &params, &lease)).await
            }
        };
        match taken {
            Ok(_) => {
                self.renewed.send_replace(Some(started));
                Ok(true)
            }
            Err(LeaseError::Api(kube::Error::Api(status))) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn spec(&self, before: Option<LeaseSpec>, now: &MicroTime) -> LeaseSpec {
        let seconds = i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX);
        let transitions = before.and_then(|spec| spec.lease_transitions);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(now.clone()),
            renew_time: Some(now.clone()),
            lease_transitions: Some(transitions.map_or(0, |count| count.saturating_add(1))),
            ..LeaseSpec::default()
        }
    }
}

/// Waits until the northbound database is known.
pub(crate) async fn await_rows(ovsdb: &Ovsdb) {
    while let Err(error) = ovsdb.synced(Instant::now() + RENEW_LIMIT).await {
        warn!(%error, "the northbound database can't be read; trying again");
    }
}

/// Begins a term: the new epoch fences everything that this client commits from now on, and
/// everything that an older leader commits is refused. Returns whether there was one.
///
/// # Errors
/// [`TransactError::Guard`] if another began a term at the same time.
pub async fn begin_term(
    ovsdb: &Ovsdb,
    identity: &str,
    deadline: Instant,
) -> Result<bool, TransactError> {
    ovsdb.set_fence(&Transaction::new())?;
    let (root, before) = ovsdb
        .wait("NB_Global", deadline, |db| {
            let row = db.nb_global()?;
            let epoch = row.map("external_ids").str(EPOCH).map(str::to_owned);
            Some((row.uuid(), epoch))
        })
        .await
        .map_err(|error| TransactError::Disconnected {
            sent: false,
            reason: error.to_string(),
        })?;
    let number = before.as_deref().and_then(|epoch| epoch.split('/').next());
    let number = number
        .and_then(|number| number.parse().ok())
        .unwrap_or(0_u64)
        + 1;
    // Two that begin the same term at the same time still differ.
    let nonce = Timestamp::now().as_nanosecond();
    let epoch = format!("{number}/{identity}/{nonce:x}");
    let is = |epoch: &str| Condition::includes("external_ids", Value::map([(EPOCH, epoch)]));

    let mut transaction = Transaction::new();
    if let Some(before) = &before {
        transaction.guard("NB_Global", is(before));
    }
    let entry = StringMap::from([(EPOCH.to_owned(), epoch.clone())]);
    set_keys(&mut transaction, "NB_Global", root, "external_ids", &entry);
    ovsdb.transact(&transaction, deadline).await?;

    let mut fence = Transaction::new();
    fence.guard("NB_Global", is(&epoch));
    ovsdb.set_fence(&fence)?;
    info!(epoch, "leading");
    Ok(before.is_some())
}
