//! Objects that can't be read: a log line, an Event and a number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::event::{self, Source, Warning};
use crate::object::Unreadable;
use crate::watch::Connect;
use crate::with_causes;

/// Events that may wait; more are dropped.
const QUEUE: usize = 128;
/// Time limit for posting one.
const DEADLINE: Duration = Duration::from_secs(10);

/// Where objects that can't be read are reported; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Unread {
    by_kind: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    /// None for a program that only reads.
    events: Option<mpsc::Sender<Unreadable>>,
}

impl Unread {
    /// Posts Events, by a task on the current runtime.
    pub fn posting(connect: impl Connect + 'static, source: Source) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        tokio::spawn(post(connect, source, events));
        Self {
            events: Some(sender),
            ..Self::default()
        }
    }

    /// The number of such objects at present.
    pub fn total(&self) -> usize {
        let by_kind = self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        by_kind.values().sum()
    }

    pub(crate) fn count(&self, kind: &'static str, number: usize) {
        let mut by_kind = self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        by_kind.insert(kind, number);
    }

    /// Reports one, without a wait.
    pub fn report(&self, what: Unreadable) {
        tracing::warn!("{what}");
        if let Some(events) = &self.events {
            // It is in the log.
            let _ = events.try_send(what);
        }
    }
}

async fn post(connect: impl Connect, source: Source, mut queue: mpsc::Receiver<Unreadable>) {
    while let Some(what) = queue.recv().await {
        let message = what.to_string();
        let warning = Warning {
            api: what.api,
            kind: what.kind,
            namespace: &what.object.namespace,
            name: &what.object.name,
            uid: &what.object.uid,
            reason: "Unreadable",
            message: &message,
        };
        let posted = async {
            let client = connect
                .connect()
                .await
                .map_err(|error| with_causes(&error))?;
            let posted = event::warn(&client, &source, &warning).await;
            posted.map_err(|error| with_causes(&error))
        };
        let posted = timeout(DEADLINE, posted).await;
        if let Err(error) = posted.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            tracing::warn!(error, "an Event could not be posted");
        }
    }
}
