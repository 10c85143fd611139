//! Kubernetes Events on a pod that could not be wired for a reason that its owner can fix, as
//! `kubectl describe pod` shows them, and on the node if that is the reason.
//!
//! Reporting never waits: a report goes into a short queue; if that is full, it is dropped and
//! counted. One task posts the reports to the API server, with a rate limit, so that many failing
//! pods do not become many requests (`ledger`). An Event that the server does not accept is not
//! sent again: if the reason persists, the next ADD reports it anew.

mod ledger;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use podwire_apiserver::event::{self, Source, Warning, event_name};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::time::Instant;

use super::{EventOutcome, Metrics};
use crate::config::KubeConfig;
use ledger::{Ledger, Posted, Step};

/// Reports that may wait.
const QUEUE: usize = 128;
/// How long the API server may take for one.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The reporting component of an Event.
const COMPONENT: &str = "podwire";
/// HTTP 404: the Event has expired, and the server has removed it.
const NOT_FOUND: u16 = 404;

/// Where reports go; clones share it.
#[derive(Debug, Clone)]
pub struct Events {
    queue: mpsc::Sender<Warning>,
    metrics: Arc<Metrics>,
    node: Arc<str>,
    /// One permit.
    looks: Arc<Semaphore>,
}

impl Events {
    /// Starts the task that posts them, on the current tokio runtime.
    pub fn start(config: KubeConfig, metrics: Arc<Metrics>) -> Self {
        let (queue, reports) = mpsc::channel(QUEUE);
        let node = config.node.as_str().into();
        let reporter = Reporter {
            config,
            metrics: Arc::clone(&metrics),
            client: None,
            ledger: Ledger::default(),
            is_failing: false,
        };
        tokio::spawn(reporter.run(reports));
        Self {
            queue,
            metrics,
            node,
            looks: Arc::new(Semaphore::new(1)),
        }
    }

    /// For whoever looks what is wrong with the node; None while somebody does: of many ADDs that
    /// fail at once, one look is enough.
    pub(crate) fn look(&self) -> Option<SemaphorePermit<'_>> {
        self.looks.try_acquire().ok()
    }

    /// The node's name in Kubernetes.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Queues a report, if there is room.
    pub fn report(&self, report: Warning) {
        if self.queue.try_send(report).is_err() {
            self.metrics.event(EventOutcome::Dropped);
        }
    }
}

struct Reporter {
    config: KubeConfig,
    metrics: Arc<Metrics>,
    client: Option<Client>,
    ledger: Ledger,
    is_failing: bool,
}

impl Reporter {
    async fn run(mut self, mut reports: mpsc::Receiver<Warning>) {
        while let Some(report) = reports.recv().await {
            let outcome = match self.ledger.step(&report, Instant::now()) {
                Step::Hold => EventOutcome::Held,
                Step::Drop => EventOutcome::Dropped,
                Step::Post => self.outcome(&report, None).await,
                Step::Count(posted) => self.outcome(&report, Some(posted)).await,
            };
            self.metrics.event(outcome);
        }
    }

    async fn outcome(&mut self, report: &Warning, posted: Option<Posted>) -> EventOutcome {
        let posting = tokio::time::timeout(ANSWER_DEADLINE, self.post(report, posted));
        let problem = match posting.await {
            Ok(Ok(outcome)) => {
                self.is_failing = false;
                return outcome;
            }
            Ok(Err(error)) => podwire_apiserver::with_causes(error.as_ref()),
            Err(_) => format!(
                "the server did not answer within {} s",
                ANSWER_DEADLINE.as_secs()
            ),
        };
        // The report itself is in the log and in the runtime's error as well; why it can't be
        // posted is logged once.
        if !self.is_failing {
            tracing::warn!(server = %self.config.access, error = problem, "can't post Events on \
                pods");
        }
        self.is_failing = true;
        // Created anew next time: its certificates may have been replaced.
        self.client = None;
        self.ledger.forget(report);
        EventOutcome::Failed
    }

    async fn post(
        &mut self,
        report: &Warning,
        posted: Option<Posted>,
    ) -> Result<EventOutcome, BoxError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = podwire_apiserver::client(&self.config.access).await?;
                self.client.insert(client).clone()
            }
        };
        let now = Timestamp::now();
        if let Some(posted) = &posted {
            let changes = serde_json::json!({
                "count": posted.count,
                "lastTimestamp": now.to_string(),
                "message": event::message(&report.message),
            });
            match event::repeat(&client, report, &posted.event, changes).await {
                Ok(()) => return Ok(EventOutcome::Counted),
                Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
                Err(error) => return Err(error.into()),
            }
        }
        // One that no other Event has, as every other reporter makes it (client-go, tools/record).
        let name = event_name(&report.name, &format!("{:x}", now.as_nanosecond()));
        let source = Source {
            component: COMPONENT,
            host: Some(self.config.node.clone()),
        };
        event::create(&client, &source, report, &name).await?;
        self.ledger.posted(report, name);
        Ok(EventOutcome::Posted)
    }
}

type BoxError = Box<dyn Error + Send + Sync>;
