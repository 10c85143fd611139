//! The state of the sources as operators see it, and the pods that ADDs wait for.

use std::time::Duration;

use super::{PodName, Sources, Watched};
use crate::config::Source;

/// The state of a watched source.
#[derive(Debug, Clone)]
pub struct SourceState {
    /// The source.
    pub source: Source,
    /// Its name in errors.
    pub place: String,
    /// Whether it was read completely at least once.
    pub is_read: bool,
    /// Number of pods it knows.
    pub pods: usize,
    /// How long it has been failing, and why.
    pub failing: Option<(Duration, String)>,
    /// Number of failures.
    pub failures: u64,
    /// The possible age of its data, if known.
    pub lag: Option<Duration>,
}

impl Sources {
    /// The state of each watched source, in the order in which they are asked.
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

    /// The pods that ADDs wait for now, because they or their annotation are missing.
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
