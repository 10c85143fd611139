//! Kubernetes Events on a pod that could not be wired for a reason that its owner can fix, as
//! `kubectl describe pod` shows them.
//!
//! Reporting never waits: a report goes into a short queue; if that is full, it is dropped and
//! counted. One task posts the reports to the API server, with a rate limit, so that many failing
//! pods do not become many requests (`ledger`). An Event that the server does not accept is not
//! sent again: if the reason persists, the next ADD reports it anew.

mod ledger;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{EventOutcome, Metrics};
use crate::config::KubeConfig;
use ledger::{Ledger, Posted, Step};

/// Reports that may wait.
const QUEUE: usize = 128;
/// How long the API server may take for one.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The longest message that the API server accepts (events.k8s.io, `note`), in bytes.
const LONGEST_MESSAGE: usize = 1024;
/// A name's length in Kubernetes, in bytes (RFC 1123 subdomain).
const LONGEST_NAME: usize = 253;
/// The reporting component of an Event.
const COMPONENT: &str = "podwire";
/// HTTP 404: the Event has expired, and the server has removed it.
const NOT_FOUND: u16 = 404;

/// What to report on a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid in the API.
    pub uid: Option<String>,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, in full.
    pub message: String,
}

/// Where reports go; clones share it.
#[derive(Debug, Clone)]
pub struct Events {
    queue: mpsc::Sender<Report>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// Starts the task that posts them, on the current tokio runtime.
    pub fn start(config: KubeConfig, metrics: Arc<Metrics>) -> Self {
        let (queue, reports) = mpsc::channel(QUEUE);
        let reporter = Reporter {
            config,
            metrics: Arc::clone(&metrics),
            client: None,
            ledger: Ledger::default(),
            is_failing: false,
        };
        tokio::spawn(reporter.run(reports));
        Self { queue, metrics }
    }

    /// Queues a report, if there is room.
    pub fn report(&self, report: Report) {
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
    async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
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

    async fn outcome(&mut self, report: &Report, posted: Option<Posted>) -> EventOutcome {
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
        report: &Report,
        posted: Option<Posted>,
    ) -> Result<EventOutcome, BoxError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = podwire_apiserver::client(&self.config.access).await?;
                self.client.insert(client).clone()
            }
        };
        let api = Api::<Event>::namespaced(client, &report.namespace);
        let now = Timestamp::now();
        if let Some(posted) = &posted {
            let patch = serde_json::json!({
                "count": posted.count,
                "lastTimestamp": Time(now),
                "message": message(&report.message),
            });
            match api
                .patch(&posted.event, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(_) => return Ok(EventOutcome::Counted),
                Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
                Err(error) => return Err(error.into()),
            }
        }
        let name = event_name(&report.name, now.as_nanosecond());
        let event = event(report, &self.config.node, &name, now);
        api.create(&PostParams::default(), &event).await?;
        self.ledger.posted(report, name);
        Ok(EventOutcome::Posted)
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// The Event as it is posted.
fn event(report: &Report, node: &str, name: &str, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(report.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(report.namespace.clone()),
            name: Some(report.name.clone()),
            uid: report.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(report.reason.to_owned()),
        message: Some(message(&report.message).to_owned()),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

/// A name that no other Event has, made as every other reporter makes it (client-go, tools/record).
fn event_name(pod: &str, nanoseconds: i128) -> String {
    let suffix = format!(".{nanoseconds:x}");
    let room = LONGEST_NAME - suffix.len();
    let pod = cut(pod, room).trim_end_matches(['.', '-']);
    format!("{pod}{suffix}")
}

fn message(text: &str) -> &str {
    cut(text, LONGEST_MESSAGE)
}

/// At most so many bytes of it.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_messages_are_cut_to_what_the_api_server_takes() {
        assert_eq!(event_name("web", 0x1234), "web.1234");
        let long = format!("{}-x", "a".repeat(247));
        let name = event_name(&long, 0x1234);
        assert_eq!(name, format!("{}.1234", "a".repeat(247)));
        let text = format!("{}é", "x".repeat(1023));
        assert_eq!(message(&text).len(), 1023);
    }

    #[test]
    fn an_event_names_the_pod_by_uid_and_who_says_so() {
        let report = Report {
            namespace: "shop".into(),
            name: "web".into(),
            uid: Some("u1".into()),
            reason: "InvalidNetworkAnnotation",
            message: "annotation …".into(),
        };
        let event = event(&report, "node-a", "web.1", Timestamp::UNIX_EPOCH);
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["involvedObject"]["kind"], "Pod");
        assert_eq!(json["involvedObject"]["uid"], "u1");
        assert_eq!(json["metadata"]["namespace"], "shop");
        assert_eq!(json["type"], "Warning");
        assert_eq!(json["source"]["host"], "node-a");
        assert_eq!(json["firstTimestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(json["count"], 1);
    }
}
