//! Pods by name, up to a limit per source.
//!
//! The source is another program, or a directory that others write to: it must not make the agent
//! grow without bound.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Pod, PodName};

/// The maximum number of pods per source. Kubernetes is tested with 110 on a node.
pub(super) const MOST_PODS: usize = 5_000;
/// The maximum size in bytes of their names and annotations: 500 pods with all the annotations that
/// an API server admits (256 KiB each, `TotalAnnotationSizeLimitB`).
pub(super) const MOST_BYTES: usize = 128 << 20;

/// A source exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMuch {
    /// Too many pods.
    #[error("there are more than {MOST_PODS} pods for this node")]
    Pods,
    /// The pods are too large.
    #[error("the pods of this node have more than {MOST_BYTES} bytes of annotations")]
    Bytes,
}

/// The pods that one source knows.
#[derive(Debug, Default)]
pub(super) struct Pods {
    by_name: HashMap<PodName, Arc<Pod>>,
    bytes: usize,
}

impl Pods {
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn get(&self, name: &PodName) -> Option<&Arc<Pod>> {
        self.by_name.get(name)
    }

    /// Adds or replaces a pod, and returns whether anything changed.
    ///
    /// # Errors
    /// [`TooMuch`]; nothing is changed then.
    pub(super) fn insert(&mut self, name: PodName, pod: Pod) -> Result<bool, TooMuch> {
        let before = self.by_name.get(&name);
        if before.is_none() && self.len() == MOST_PODS {
            return Err(TooMuch::Pods);
        }
        let bytes = self.bytes - before.map_or(0, |before| size(&name, before)) + size(&name, &pod);
        if bytes > MOST_BYTES {
            return Err(TooMuch::Bytes);
        }
        self.bytes = bytes;
        let pod = Arc::new(pod);
        let before = self.by_name.insert(name, Arc::clone(&pod));
        Ok(before.is_none_or(|before| before != pod))
    }

    pub(super) fn remove(&mut self, name: &PodName) -> Option<Arc<Pod>> {
        let pod = self.by_name.remove(name)?;
        self.bytes -= size(name, &pod);
        Some(pod)
    }
}

/// A pod's size, in bytes.
fn size(name: &PodName, pod: &Pod) -> usize {
    let uid = pod.uid.as_ref().map_or(0, String::len);
    let annotations = pod.annotations.iter();
    let annotations: usize = annotations
        .map(|(name, value)| name.len() + value.len())
        .sum();
    name.namespace.len() + name.name.len() + uid + annotations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> PodName {
        PodName {
            namespace: String::new(),
            name: format!("{number:07}"),
        }
    }

    fn pod(bytes: usize) -> Pod {
        Pod {
            uid: Some("x".repeat(bytes)),
            ..Pod::default()
        }
    }

    #[test]
    fn pods_are_counted_and_what_is_too_much_changes_nothing() {
        let mut pods = Pods::default();
        for number in 0..MOST_PODS {
            assert_eq!(pods.insert(name(number), pod(0)), Ok(true));
        }
        assert_eq!(pods.insert(name(MOST_PODS), pod(0)), Err(TooMuch::Pods));
        assert_eq!(pods.insert(name(0), pod(0)), Ok(false));
        assert_eq!(pods.insert(name(0), pod(1)), Ok(true));
        pods.remove(&name(1)).unwrap();
        assert_eq!(pods.insert(name(MOST_PODS), pod(0)), Ok(true));
        assert_eq!(pods.len(), MOST_PODS);
    }

    #[test]
    fn bytes_are_counted_and_given_back() {
        let mut pods = Pods::default();
        assert_eq!(pods.insert(name(0), pod(MOST_BYTES - 14)), Ok(true));
        assert_eq!(pods.insert(name(1), pod(1)), Err(TooMuch::Bytes));
        assert_eq!(pods.insert(name(1), pod(0)), Ok(true));
        assert_eq!(pods.insert(name(0), pod(10)), Ok(true));
        assert_eq!(pods.bytes, 24);
        pods.remove(&name(0)).unwrap();
        assert_eq!(pods.insert(name(2), pod(MOST_BYTES - 14)), Ok(true));
    }
}
