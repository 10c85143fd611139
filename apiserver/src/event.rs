//! Events of type Warning, about objects of the API.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::watch::Connect;
use crate::with_causes;

/// A name's length in Kubernetes, in bytes (RFC 1123 subdomain).
const LONGEST_NAME: usize = 253;
/// The longest message that the API server accepts (events.k8s.io, `note`), in bytes.
const LONGEST_MESSAGE: usize = 1024;
/// HTTP 409: there is an object with this name.
const CONFLICT: u16 = 409;

/// The program that reports.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name.
    pub component: &'static str,
    /// Its machine, if the Event is about something there; otherwise the same Event of several
    /// machines is one.
    pub host: Option<String>,
}

/// What an Event is about, and what it says.
#[derive(Clone, Debug)]
pub struct Warning {
    /// The API version of the object.
    pub api: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Empty for an object without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, in full.
    pub message: String,
}

/// Warnings that may wait to be posted; more are dropped.
const QUEUE: usize = 128;
/// Time limit for posting one.
const DEADLINE: Duration = Duration::from_secs(10);

/// Posts warnings, one after the other, by a task of its own; clones share it.
#[derive(Clone, Debug)]
pub struct Poster(mpsc::Sender<Warning>);

impl Poster {
    /// Starts the task on the current runtime.
    pub fn start(connect: impl Connect + 'static, source: Source) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        tokio::spawn(post_all(connect, source, queue));
        Self(sender)
    }

    /// Posts one, without a wait. What it says is also in the log, so that it may be lost.
    pub fn post(&self, warning: Warning) {
        let _ = self.0.try_send(warning);
    }
}

async fn post_all(connect: impl Connect, source: Source, mut queue: mpsc::Receiver<Warning>) {
    while let Some(warning) = queue.recv().await {
        let posted = async {
            let client = connect.connect().await;
            let client = client.map_err(|error| with_causes(&error))?;
            let posted = warn(&client, &source, &warning).await;
            posted.map_err(|error| with_causes(&error))
        };
        let posted = timeout(DEADLINE, posted).await;
        let silent = |_| Err(format!("no answer within {} s", DEADLINE.as_secs()));
        if let Err(error) = posted.unwrap_or_else(silent) {
            tracing::warn!(error, "an Event could not be posted");
        }
    }
}

/// Posts an Event. One that exists already gets the present time.
///
/// # Errors
/// The API server's.
pub async fn warn(client: &Client, source: &Source, warning: &Warning) -> kube::Result<()> {
    let mut hasher = DefaultHasher::new();
    let Warning {
        uid,
        reason,
        message,
        ..
    } = warning;
    (&source.host, uid, reason, message).hash(&mut hasher);
    let name = event_name(&warning.name, &format!("{:016x}", hasher.finish()));
    match create(client, source, warning, &name).await {
        Err(kube::Error::Api(status)) if status.code == CONFLICT => {
            let again = json!({ "lastTimestamp": Timestamp::now().to_string() });
            repeat(client, warning, &name, again).await
        }
        made => made,
    }
}

/// Creates an Event with this name, which no other one has.
///
/// # Errors
/// The API server's.
pub async fn create(
    client: &Client,
    source: &Source,
    warning: &Warning,
    event_name: &str,
) -> kube::Result<()> {
    let event = event(source, warning, event_name, Timestamp::now());
    let event = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
    let events = events(client, warning);
    let created = events.create(&PostParams::default(), &event).await;
    created.map(drop)
}

/// Changes an Event that exists.
///
/// # Errors
/// The API server's.
pub async fn repeat(
    client: &Client,
    warning: &Warning,
    event_name: &str,
    changes: Value,
) -> kube::Result<()> {
    let (parameters, changes) = (PatchParams::default(), Patch::Merge(changes));
    let events = events(client, warning);
    let changed = events.patch(event_name, &parameters, &changes).await;
    changed.map(drop)
}

fn events(client: &Client, warning: &Warning) -> Api<Event> {
    Api::namespaced(client.clone(), place(warning))
}

/// The namespace of its Event. For an object without one it is one that always exists.
fn place(warning: &Warning) -> &str {
    match warning.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

fn event(source: &Source, warning: &Warning, name: &str, now: Timestamp) -> Value {
    let mut about = json!({
        "apiVersion": warning.api, "kind": warning.kind, "name": warning.name,
    });
    let known = [("uid", &warning.uid), ("namespace", &warning.namespace)];
    for (field, value) in known.into_iter().filter(|(_, value)| !value.is_empty()) {
        about[field] = value.as_str().into();
    }
    json!({
        "metadata": { "name": name, "namespace": place(warning) },
        "involvedObject": about,
        "type": "Warning",
        "reason": warning.reason,
        "message": message(&warning.message),
        "source": { "component": source.component, "host": source.host },
        "reportingComponent": source.component,
        "reportingInstance": source.host.as_deref().unwrap_or_default(),
        "firstTimestamp": now.to_string(),
        "lastTimestamp": now.to_string(),
        "count": 1,
    })
}

/// As much of a message as the API server accepts.
pub fn message(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_MESSAGE)]
}

/// The name of an Event: that of its object as far as there is room, and what distinguishes it.
pub fn event_name(object: &str, number: &str) -> String {
    let room = object.floor_char_boundary(LONGEST_NAME - 1 - number.len());
    let object = object[..room].trim_end_matches(['-', '.']);
    format!("{object}.{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_messages_are_cut_to_what_the_api_server_takes() {
        assert_eq!(event_name("web", "1234"), "web.1234");
        let long = format!("{}-x", "a".repeat(247));
        let name = event_name(&long, "1234");
        assert_eq!(name, format!("{}.1234", "a".repeat(247)));
        let text = format!("{}é", "x".repeat(1023));
        assert_eq!(message(&text).len(), 1023);
    }

    #[test]
    fn an_event_names_the_pod_by_uid_and_who_says_so() {
        let warning = Warning {
            api: "v1",
            kind: "Pod",
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u1".into(),
            reason: "InvalidNetworkAnnotation",
            message: "annotation …".into(),
        };
        let source = Source {
            component: "podwire",
            host: Some("node-a".into()),
        };
        let json = event(&source, &warning, "web.1", Timestamp::UNIX_EPOCH);
        assert_eq!(json["involvedObject"]["kind"], "Pod");
        assert_eq!(json["involvedObject"]["uid"], "u1");
        assert_eq!(json["metadata"]["namespace"], "shop");
        assert_eq!(json["type"], "Warning");
        assert_eq!(json["source"]["host"], "node-a");
        assert_eq!(json["firstTimestamp"], "1970-01-01T00:00:00Z");
        assert_eq!(json["count"], 1);
    }
}
