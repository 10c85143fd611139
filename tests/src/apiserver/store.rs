//! The objects and the log of their changes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Pods by `namespace/name`, and everything that happened to them.
#[derive(Debug, Default)]
pub(super) struct Store {
    version: u64,
    /// Changes up to this version are no longer in the log.
    compacted: u64,
    pods: BTreeMap<String, Value>,
    log: Vec<Change>,
}

/// One change, with the pod before and after it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    before: Option<Value>,
    after: Option<Value>,
}

/// What a request's fieldSelector selects.
#[derive(Debug, Clone, Default)]
pub(super) struct Selector(Vec<(String, String)>);

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn is_compacted(&self, version: u64) -> bool {
        version < self.compacted
    }

    pub(super) fn apply(&mut self, mut pod: Value) {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        let before = self.pods.insert(key(&pod), pod.clone());
        self.log(before, Some(pod));
    }

    pub(super) fn delete(&mut self, namespace: &str, name: &str) {
        if let Some(pod) = self.pods.remove(&format!("{namespace}/{name}")) {
            self.version += 1;
            self.log(Some(pod), None);
        }
    }

    /// A bookmark is a change of nothing.
    pub(super) fn bookmark(&mut self) {
        self.version += 1;
        self.log(None, None);
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.log.clear();
    }

    /// The pods of a selection, in the order of their names.
    pub(super) fn select(&self, selector: &Selector) -> Vec<Value> {
        let selected = self.pods.values().filter(|pod| selector.matches(pod));
        selected.cloned().collect()
    }

    /// What happened after a version.
    pub(super) fn since(&self, version: u64) -> impl Iterator<Item = &Change> {
        self.log
            .iter()
            .filter(move |change| change.version > version)
    }

    fn log(&mut self, before: Option<Value>, after: Option<Value>) {
        let version = self.version;
        self.log.push(Change {
            version,
            before,
            after,
        });
    }
}

impl Change {
    /// The event that a watch gets of it; none when it does not concern the selection.
    pub(super) fn event(&self, selector: &Selector, bookmarks: bool) -> Option<Value> {
        let was = self.before.as_ref().filter(|pod| selector.matches(pod));
        let is = self.after.as_ref().filter(|pod| selector.matches(pod));
        let (kind, mut object) = match (was, is) {
            (None, Some(pod)) => ("ADDED", pod.clone()),
            (Some(_), Some(pod)) => ("MODIFIED", pod.clone()),
            (Some(pod), None) => ("DELETED", pod.clone()),
            (None, None) if self.before.is_none() && self.after.is_none() && bookmarks => (
                "BOOKMARK",
                json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "creationTimestamp": null } }),
            ),
            (None, None) => return None,
        };
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        Some(json!({ "type": kind, "object": object }))
    }
}

impl Selector {
    /// Reads `field=value,field=value`.
    pub(super) fn parse(text: &str) -> Selector {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        Selector(
            pairs
                .map(|(field, value)| (field.to_owned(), value.trim_start_matches('=').to_owned()))
                .collect(),
        )
    }

    fn matches(&self, pod: &Value) -> bool {
        self.0.iter().all(|(field, value)| {
            let pointer = format!("/{}", field.replace('.', "/"));
            pod.pointer(&pointer).and_then(Value::as_str) == Some(value)
        })
    }
}

fn key(pod: &Value) -> String {
    let member = |name: &str| pod["metadata"][name].as_str().unwrap_or_default();
    format!("{}/{}", member("namespace"), member("name"))
}
