//! Objects that can't be read: a log line, an Event and a number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::event::{Poster, Warning};
use crate::object::Unreadable;

/// Where objects that can't be read are reported; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Unread {
    by_kind: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    /// None for a program that only reads.
    events: Option<Poster>,
}

impl Unread {
    /// Posts Events.
    pub fn posting(events: Poster) -> Self {
        Self {
            events: Some(events),
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
            let message = what.to_string();
            let Unreadable {
                api, kind, object, ..
            } = what;
            events.post(Warning {
                api,
                kind,
                namespace: object.namespace,
                name: object.name,
                uid: object.uid,
                reason: "Unreadable",
                message,
            });
        }
    }
}
