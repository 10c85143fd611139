//! The objects and the log of their changes.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde_json::{Value, json};

use super::objects::{Target, is_kept, resource_of};

/// Objects by resource and `namespace/name`, and everything that happened to them.
#[derive(Debug, Default)]
pub(super) struct Store {
    version: u64,
    /// Changes up to this version are no longer in the log.
    compacted: u64,
    objects: BTreeMap<(String, String), Value>,
    log: Vec<Change>,
}

/// One change, with the object before and after it.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    resource: String,
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

    /// Makes an object or changes it.
    pub(super) fn apply(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let resource = resource_of(object["kind"].as_str().unwrap_or_default());
        let place = (resource.to_owned(), key(&object));
        let before = self.objects.insert(place, object.clone());
        self.log(resource, before, Some(object));
    }

    /// Deletes an object by its `namespace/name`. One with finalizers stays until it has none. What
    /// it controls is deleted with it, as by Kubernetes' garbage collector.
    pub(super) fn delete(&mut self, resource: &str, key: &str) {
        let place = (resource.to_owned(), key.to_owned());
        let Some(object) = self.objects.get(&place) else {
            return;
        };
        if is_kept(object) {
            if object["metadata"]["deletionTimestamp"].is_null() {
                let mut object = object.clone();
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                self.apply(object);
            }
            return;
        }
        let Some(object) = self.objects.remove(&place) else {
            return;
        };
        self.version += 1;
        let uid = object["metadata"]["uid"].clone();
        self.log(resource, Some(object), None);
        for (resource, key) in self.controlled_by(&uid) {
            self.delete(&resource, &key);
        }
    }

    fn controlled_by(&self, uid: &Value) -> Vec<(String, String)> {
        let is_its = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|all| all.iter().any(|it| it["uid"] == *uid))
        };
        let own = self.objects.iter().filter(|(_, object)| is_its(object));
        own.filter(|_| uid.is_string())
            .map(|(place, _)| place.clone())
            .collect()
    }

    pub(super) fn get(&self, resource: &str, key: &str) -> Option<&Value> {
        self.objects.get(&(resource.to_owned(), key.to_owned()))
    }

    /// A bookmark is a change of nothing.
    pub(super) fn bookmark(&mut self) {
        self.version += 1;
        self.log("", None, None);
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.log.clear();
    }

    /// The objects of a selection whose `namespace/name` comes after another, in that order.
    pub(super) fn select<'a>(
        &'a self,
        target: &'a Target,
        selector: &'a Selector,
        after: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let after = (target.resource.clone(), after.to_owned());
        let objects = self
            .objects
            .range((Bound::Excluded(after), Bound::Unbounded));
        objects
            .take_while(|((resource, _), _)| *resource == target.resource)
            .map(|((_, key), object)| (key.as_str(), object))
            .filter(|(_, object)| is_in(target, object) && selector.matches(object))
    }

    /// What happened after a version; bookmarks are for every resource.
    pub(super) fn since(&self, target: &Target, version: u64) -> impl Iterator<Item = &Change> {
        // Versions grow along the log.
        let from = self.log.partition_point(|change| change.version <= version);
        self.log[from..].iter().filter(move |change| {
            let object = change.after.as_ref().or(change.before.as_ref());
            change.resource.is_empty()
                || change.resource == target.resource
                    && object.is_some_and(|object| is_in(target, object))
        })
    }

    fn log(&mut self, resource: &str, before: Option<Value>, after: Option<Value>) {
        let version = self.version;
        self.log.push(Change {
            version,
            resource: resource.to_owned(),
            before,
            after,
        });
    }
}

impl Change {
    /// The event that a watch gets of it; none when it does not concern the selection.
    pub(super) fn event(
        &self,
        target: &Target,
        selector: &Selector,
        bookmarks: bool,
    ) -> Option<Value> {
        let was = self.before.as_ref().filter(|pod| selector.matches(pod));
        let is = self.after.as_ref().filter(|pod| selector.matches(pod));
        let (kind, mut object) = match (was, is) {
            (None, Some(pod)) => ("ADDED", pod.clone()),
            (Some(_), Some(pod)) => ("MODIFIED", pod.clone()),
            (Some(pod), None) => ("DELETED", pod.clone()),
            (None, None) if self.before.is_none() && self.after.is_none() && bookmarks => (
                "BOOKMARK",
                json!({
                    "kind": target.kind().0,
                    "apiVersion": target.kind().1,
                    "metadata": { "creationTimestamp": null },
                }),
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
            // An Event's `source` selects by its component (core/v1, ToSelectableFields).
            let field = match field.as_str() {
                "source" => "source.component",
                field => field,
            };
            let pointer = format!("/{}", field.replace('.', "/"));
            pod.pointer(&pointer).and_then(Value::as_str) == Some(value)
        })
    }
}

fn is_in(target: &Target, object: &Value) -> bool {
    let namespace = target.namespace.as_deref();
    namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
}

fn key(pod: &Value) -> String {
    let member = |name: &str| pod["metadata"][name].as_str().unwrap_or_default();
    format!("{}/{}", member("namespace"), member("name"))
}
