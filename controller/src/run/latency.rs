//! How long changes of objects take until the database has what they cause.

use tokio::time::Instant;

/// The changes that a pass has not dealt with.
#[derive(Default)]
pub(crate) struct Timer {
    /// What the change that is being learned is of, if it makes a difference.
    changed: Option<&'static str>,
    waiting: Vec<Waiting>,
}

/// The kind of an object, and when its watch reported the change.
pub(crate) type Waiting = (&'static str, Instant);

impl Timer {
    /// The change that is being learned makes a difference to an object of this kind.
    pub(super) fn changed(&mut self, kind: &'static str) {
        self.changed = Some(kind);
    }

    /// It is learned; its watch reported it then.
    pub(super) fn learned(&mut self, reported: Instant) {
        let kind = self.changed.take();
        self.waiting.extend(kind.map(|kind| (kind, reported)));
    }

    /// Those that the next pass deals with.
    pub(super) fn take(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// The pass did not deal with all of them.
    pub(super) fn requeue(&mut self, mut waiting: Vec<Waiting>) {
        self.waiting.append(&mut waiting);
    }
}
