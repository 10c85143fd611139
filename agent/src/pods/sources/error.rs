//! What was missing when an ADD stopped waiting for its pod's annotations.

use std::time::Duration;

use podwire_daemon::output::part;

use crate::duration;

use super::known::Pod;
use super::{AnnotationError, Annotations};

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// An annotation is invalid; waiting would not help.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    /// The annotation did not come in time.
    #[error("{}", missing_text(.pod, .wanted, .missing, .waited, .failing))]
    Missing {
        /// The pod, if the runtime passed one.
        pod: Option<String>,
        /// The annotations that would do.
        wanted: String,
        /// What was there instead.
        missing: Missing,
        /// How long the ADD waited.
        waited: Duration,
        /// Sources that fail: which, for how long, and why.
        failing: Vec<(String, Duration, String)>,
    },
    /// The pod was deleted during its ADD.
    #[error(
        "pod {pod}{} was deleted from {place} while this ADD ran",
        part(" (uid ", .uid.as_ref(), ")")
    )]
    PodDeleted {
        /// The pod.
        pod: String,
        /// Its uid.
        uid: Option<String>,
        /// The source.
        place: String,
    },
    /// Another pod has its name now.
    #[error(
        "pod {pod} with uid {was} was replaced by one with uid {now} in {place} while this ADD ran"
    )]
    PodReplaced {
        /// The pod.
        pod: String,
        /// The uid of the pod that this ADD is for.
        was: String,
        /// The uid of the pod with this name now.
        now: String,
        /// The source.
        place: String,
    },
    /// Its annotations no longer match what was created.
    #[error("the annotations of pod {pod} changed in {place} while this ADD ran")]
    AnnotationChanged {
        /// The pod.
        pod: String,
        /// The source.
        place: String,
    },
}

/// What was missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The runtime passed no pod.
    PodName,
    /// No source knows the pod.
    Pod {
        /// The sources that were asked.
        places: Vec<String>,
    },
    /// A source knows another pod with that name.
    Uid {
        /// K8S_POD_UID.
        runtime: String,
        /// The uid in the source.
        found: String,
        /// The source.
        place: String,
    },
    /// The pod is known, but its annotations contain no answer.
    Annotation {
        /// Those of its annotations that podwire reads.
        has: Vec<String>,
    },
}

impl Missing {
    /// What is missing before any source was asked.
    pub(super) fn at_first(names_pod: bool) -> Self {
        match names_pod {
            true => Self::Pod { places: Vec::new() },
            false => Self::PodName,
        }
    }

    pub(super) fn pod(place: &str) -> Self {
        Self::Pod {
            places: vec![place.to_owned()],
        }
    }

    pub(super) fn uid(runtime: Option<&str>, found: &Pod, place: &str) -> Self {
        Self::Uid {
            runtime: runtime.unwrap_or_default().to_owned(),
            found: found.uid.clone().unwrap_or_default(),
            place: place.to_owned(),
        }
    }

    pub(super) fn annotation(annotations: &Annotations) -> Self {
        Self::Annotation {
            has: annotations.keys().cloned().collect(),
        }
    }

    /// The one that is nearer to an answer; for two unknown pods, both places.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Pod { mut places }, Self::Pod { places: more }) => {
                places.extend(more);
                Self::Pod { places }
            }
            (mine, other) if other.nearness() > mine.nearness() => other,
            (mine, _) => mine,
        }
    }

    fn nearness(&self) -> u8 {
        match self {
            Self::PodName => 0,
            Self::Pod { .. } => 1,
            Self::Uid { .. } => 2,
            Self::Annotation { .. } => 3,
        }
    }
}

fn missing_text(
    pod: &Option<String>,
    wanted: &str,
    missing: &Missing,
    waited: &Duration,
    failing: &[(String, Duration, String)],
) -> String {
    let pod = pod.as_deref().unwrap_or_default();
    let waited = duration::text(*waited);
    let mut text = match missing {
        Missing::PodName => format!(
            "CNI_ARGS names no pod (K8S_POD_NAME), so the agent can't look for an annotation \
             ({wanted})"
        ),
        Missing::Pod { places } if places.is_empty() => {
            format!("the request for pod {pod} has no {wanted}, and no other source is set up")
        }
        Missing::Pod { places } => format!(
            "pod {pod} is not known to {} after {waited}",
            places.join(" nor to ")
        ),
        Missing::Uid {
            runtime,
            found,
            place,
        } => format!(
            "pod {pod} of uid {runtime} (K8S_POD_UID) is not known to {place} after {waited}: \
             the pod of that name there has uid {found}"
        ),
        Missing::Annotation { has } => {
            let has = match has.is_empty() {
                true => "none that podwire reads".to_owned(),
                false => has.join(", "),
            };
            format!(
                "pod {pod} is not annotated after {waited}: awaited {wanted}; \
                 its annotations: {has}"
            )
        }
    };
    for (place, since, problem) in failing {
        text.push_str(&format!(
            "; {place} has been failing for {}: {problem}",
            duration::text(*since)
        ));
    }
    text
}

impl Missing {
    /// The word for the log.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::PodName => "pod name",
            Self::Pod { .. } => "pod",
            Self::Uid { .. } => "pod uid",
            Self::Annotation { .. } => "annotation",
        }
    }
}
