//! Events of type Warning, about objects of the API.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
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
    let now = Timestamp::now().to_string();
    let Warning {
        api,
        kind,
        namespace,
        name,
        uid,
        reason,
        message,
    } = warning;
    let mut about = json!({ "apiVersion": api, "kind": kind, "name": name, "uid": uid });
    let place = match namespace.as_str() {
        // The namespace of Events about objects without one; it always exists.
        "" => "default",
        namespace => {
            about["namespace"] = namespace.into();
            namespace
        }
    };
    let message = &message[..message.floor_char_boundary(LONGEST_MESSAGE)];
    let event_name = event_name(source, warning);
    let event = json!({
        "metadata": { "name": event_name, "namespace": place },
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": { "component": source.component, "host": source.host },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    let event: Event = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
    let events: Api<Event> = Api::namespaced(client.clone(), place);
    match events.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(status)) if status.code == CONFLICT => {
            let again = Patch::Merge(json!({ "lastTimestamp": now }));
            let parameters = PatchParams::default();
            let patched = events.patch(&event_name, &parameters, &again);
            patched.await.map(drop)
        }
        made => made.map(drop),
    }
}

/// The object's name, and a hash of the rest.
fn event_name(source: &Source, warning: &Warning) -> String {
    let Warning {
        uid,
        reason,
        message,
        ..
    } = warning;
    let mut hasher = DefaultHasher::new();
    (&source.host, uid, reason, message).hash(&mut hasher);
    let number = format!("{:016x}", hasher.finish());
    // Names are ASCII (DNS subdomains).
    let end = warning.name.len().min(LONGEST_NAME - 1 - number.len());
    let name = warning.name.get(..end).unwrap_or_default();
    format!("{}.{number}", name.trim_end_matches(['-', '.']))
}
