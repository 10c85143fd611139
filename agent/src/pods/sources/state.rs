//! What the sources tell people: how each is doing, and whom an ADD waits for.

use std::time::Duration;

use super::{PodName, Sources, Watched};
use crate::config::Source;

/// How a watched source is doing.
#[derive(Debug, Clone)]
pub struct SourceState {
    /// Which one.
    pub source: Source,
    /// As an error names it.
    pub place: String,
    /// Whether everything it has was read at least once.
    pub is_read: bool,
    /// How many pods it knows.
    pub pods: usize,
    /// For how long it has failed, and of what.
    pub failing: Option<(Duration, String)>,
    /// How often it has failed.
    pub failures: u64,
    /// How old what it knows may be, where it says so.
    pub lag: Option<Duration>,
}

impl Sources {
    /// How each watched source is doing, in the order in which they are asked.
    pub fn states(&self) -> Vec<SourceState> {
        let state = |watched: &Watched| {
            let health = watched.known.health().borrow().clone();
            SourceState {
                source: watched.source,
                place: watched.place.clone(),
                is_read: health.is_read,
                pods: watched.known.len(),
                failing: health
                    .failing
                    .map(|(since, problem)| (since.elapsed(), problem)),
                failures: health.failures,
                lag: watched.known.lag(),
            }
        };
        self.watched().map(state).collect()
    }

    /// The pods that an ADD waits for now: their annotation, or they themselves, have not come.
    pub fn awaited(&self) -> Vec<PodName> {
        let mut names: Vec<PodName> = self
            .watched()
            .flat_map(|watched| watched.known.awaited())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
