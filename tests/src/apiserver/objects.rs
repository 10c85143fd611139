//! Requests for one object: read, made, replaced, patched.

use serde_json::{Value, json};

use super::connection::status;
use super::events::merge;
use super::{Request, State};

/// What a path names: `/api/v1/…` or `/apis/GROUP/VERSION/…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// `pods`, `nodes`, …
    pub(super) resource: String,
    version: &'static str,
    pub(super) namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
}

/// The resources that there are, each with the kind and the API version of its objects.
const RESOURCES: [(&str, &str, &str); 23] = [
    ("pods", "Pod", "v1"),
    ("nodes", "Node", "v1"),
    ("services", "Service", "v1"),
    ("namespaces", "Namespace", "v1"),
    ("networkpolicies", "NetworkPolicy", "networking.k8s.io/v1"),
    (
        "clusternetworkpolicies",
        "ClusterNetworkPolicy",
        "policy.networking.k8s.io/v1alpha2",
    ),
    (
        "adminnetworkpolicies",
        "AdminNetworkPolicy",
        "policy.networking.k8s.io/v1alpha1",
    ),
    (
        "baselineadminnetworkpolicies",
        "BaselineAdminNetworkPolicy",
        "policy.networking.k8s.io/v1alpha1",
    ),
    ("endpointslices", "EndpointSlice", "discovery.k8s.io/v1"),
    (
        "endpointslices",
        "EndpointSlice",
        "discovery.k8s.io/v1beta1",
    ),
    (
        "network-attachment-definitions",
        "NetworkAttachmentDefinition",
        "k8s.cni.cncf.io/v1",
    ),
    (
        "multi-networkpolicies",
        "MultiNetworkPolicy",
        "k8s.cni.cncf.io/v1beta1",
    ),
    (
        "userdefinednetworks",
        "UserDefinedNetwork",
        "k8s.ovn.org/v1",
    ),
    (
        "clusteruserdefinednetworks",
        "ClusterUserDefinedNetwork",
        "k8s.ovn.org/v1",
    ),
    ("leases", "Lease", "coordination.k8s.io/v1"),
    ("configmaps", "ConfigMap", "v1"),
    // Which ovn-kubernetes watches.
    ("endpoints", "Endpoints", "v1"),
    ("serviceaccounts", "ServiceAccount", "v1"),
    ("events", "Event", "v1"),
    ("daemonsets", "DaemonSet", "apps/v1"),
    ("deployments", "Deployment", "apps/v1"),
    ("statefulsets", "StatefulSet", "apps/v1"),
    ("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1"),
];

impl Target {
    pub(super) fn parse(path: &str) -> Option<Target> {
        let (version, rest) = match path.strip_prefix("/api/") {
            Some(rest) => {
                let (version, rest) = rest.split_once('/')?;
                (version.to_owned(), rest)
            }
            None => {
                let (group, rest) = path.strip_prefix("/apis/")?.split_once('/')?;
                let (version, rest) = rest.split_once('/')?;
                (format!("{group}/{version}"), rest)
            }
        };
        let mut words = rest.split('/');
        let mut next = || words.next().map(str::to_owned);
        let mut resource = next()?;
        let mut namespace = None;
        let mut name = next();
        if resource == "namespaces"
            && let Some(inner) = next()
        {
            (namespace, resource, name) = (name, inner, next());
        }
        let subresource = next();
        let mut known = RESOURCES.iter();
        let known = known.find(|known| known.0 == resource && known.2 == version)?;
        Some(Target {
            resource,
            version: known.2,
            namespace,
            name,
            subresource,
        })
    }

    /// Whether the request is for one object, or makes one: neither a list nor a watch.
    pub(super) fn is_one(&self, request: &Request) -> bool {
        self.name.is_some() || request.method != "GET"
    }

    /// The kind and the API version of its objects.
    pub(super) fn kind(&self) -> (&'static str, &'static str) {
        let known = RESOURCES.iter().find(|known| known.0 == self.resource);
        known.map_or(("", ""), |(_, kind, _)| (kind, self.version))
    }

    /// Whether it is of a version of discovery.k8s.io other than this.
    pub(super) fn is_other_discovery(&self, version: &str) -> bool {
        let of_group = self.version.strip_prefix("discovery.k8s.io/");
        of_group.is_some_and(|it| version != "all" && it != version)
    }

    pub(super) fn is_of(&self, group: &str) -> bool {
        let version = self.version.strip_prefix(group);
        version.is_some_and(|it| it.starts_with('/'))
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace.as_deref().unwrap_or_default())
    }
}

/// The resource of a kind's objects.
pub(super) fn resource_of(kind: &str) -> &'static str {
    let known = RESOURCES.iter().find(|known| known.1 == kind);
    known.map_or("pods", |(resource, ..)| resource)
}

/// Whether finalizers keep an object that is deleted.
pub(super) fn is_kept(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.is_empty())
}

/// Does what the request wants; the answer is the object, or why not.
pub(super) fn serve(target: &Target, request: &Request, state: &mut State) -> Value {
    let body = request.body.as_ref();
    let name = target.name.as_deref();
    let name = name.or_else(|| body?["metadata"]["name"].as_str());
    let Some(name) = name else {
        return status(422, "Invalid", "metadata.name: Required value");
    };
    let key = target.key(name);
    let known = state.store.get(&target.resource, &key).cloned();
    let (method, body) = (request.method.as_str(), body.cloned());
    let mut object = match (method, known, body) {
        ("GET", Some(known), _) => return known,
        ("POST", Some(_), _) => {
            let message = format!("{} {name:?} already exists", target.resource);
            return status(409, "AlreadyExists", &message);
        }
        ("DELETE", Some(known), options) => {
            let wanted = options.map(|it| it["preconditions"]["uid"].clone());
            let wanted = wanted.filter(|it| !it.is_null());
            if wanted.is_some_and(|uid| uid != known["metadata"]["uid"]) {
                return status(409, "Conflict", "the UID in the precondition is another");
            }
            state.store.delete(&target.resource, &key);
            return known;
        }
        ("POST", None, Some(body)) => match refused_in_namespace(target, state) {
            Some(refusal) => return refusal,
            None => body,
        },
        ("PUT", Some(known), Some(body)) => {
            let version = &body["metadata"]["resourceVersion"];
            if !version.is_null() && *version != known["metadata"]["resourceVersion"] {
                return status(409, "Conflict", "the object has been modified");
            }
            body
        }
        ("PATCH", Some(known), Some(patch)) => match patched(known, &patch, target, request) {
            Ok(object) => object,
            Err(refusal) => return refusal,
        },
        (_, None, _) => {
            let message = format!("{} {name:?} not found", target.resource);
            return status(404, "NotFound", &message);
        }
        _ => return status(400, "BadRequest", "no such request"),
    };
    if method == "POST" && object["metadata"]["uid"].is_null() {
        object["metadata"]["uid"] = format!("uid-{}-of-{name}", state.store.version()).into();
    }
    let (kind, version) = target.kind();
    object["kind"] = kind.into();
    object["apiVersion"] = version.into();
    if let Some(namespace) = &target.namespace {
        object["metadata"]["namespace"] = namespace.as_str().into();
    }
    // The last finalizer is gone, and with it what is being deleted.
    let is_over = !object["metadata"]["deletionTimestamp"].is_null() && !is_kept(&object);
    state.store.apply(object);
    let made = state.store.get(&target.resource, &key).cloned();
    if is_over {
        state.store.delete(&target.resource, &key);
    }
    made.unwrap_or_default()
}

/// In a namespace that is being deleted nothing is made.
fn refused_in_namespace(target: &Target, state: &State) -> Option<Value> {
    let namespace = target.namespace.as_deref()?;
    let known = state.store.get("namespaces", &format!("/{namespace}"))?;
    if known["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let message = format!("unable to create new content in namespace {namespace}");
    let mut refusal = status(403, "Forbidden", &message);
    refusal["details"] = json!({ "causes": [
        { "reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace" },
    ] });
    Some(refusal)
}

fn patched(
    mut object: Value,
    patch: &Value,
    target: &Target,
    request: &Request,
) -> Result<Value, Value> {
    let uid = &patch["metadata"]["uid"];
    if !uid.is_null() && *uid != object["metadata"]["uid"] {
        // As the real one's validation of the patched object.
        let message = "metadata.uid: Invalid value: field is immutable";
        let mut refusal = status(422, "Invalid", message);
        refusal["details"] = json!({"causes": [
            {"reason": "FieldValueInvalid", "message": message, "field": "metadata.uid"},
        ]});
        return Err(refusal);
    }
    let version = &patch["metadata"]["resourceVersion"];
    if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
        return Err(status(409, "Conflict", "the object has been modified"));
    }
    let mut patch = patch.clone();
    match request.content_type.as_str() {
        // What is applied is JSON, too, and nobody else owns its fields.
        "application/merge-patch+json" | "application/apply-patch+yaml" => {}
        // Of its own rules two matter: conditions are merged by their type, and removed by it.
        "application/strategic-merge-patch+json" => {
            if let Some(conditions) = patch["status"]["conditions"].as_array() {
                let known = object["status"]["conditions"].as_array();
                let mut all = known.cloned().unwrap_or_default();
                for condition in conditions {
                    let at = all.iter().position(|it| it["type"] == condition["type"]);
                    match (at, condition["$patch"] == "delete") {
                        (Some(at), true) => drop(all.remove(at)),
                        (None, true) => {}
                        (Some(at), false) => merge(&mut all[at], condition),
                        (None, false) => all.push(condition.clone()),
                    }
                }
                patch["status"]["conditions"] = json!(all);
            }
        }
        other => return Err(status(415, "UnsupportedMediaType", other)),
    }
    // A status is changed by its subresource alone; there the metadata is changed too, and nothing
    // else (podStatusStrategy and nodeStatusStrategy of the registry); that of a custom resource is
    // not (statusStrategy of apiextensions-apiserver).
    let is_status = target.subresource.as_deref() == Some("status");
    let own = [
        "v1",
        "networking.k8s.io/v1",
        "discovery.k8s.io/v1",
        "coordination.k8s.io/v1",
    ];
    let is_custom = !own.contains(&target.version);
    if let Some(members) = patch.as_object_mut() {
        members.retain(|name, _| match name.as_str() {
            "metadata" => !(is_status && is_custom),
            "status" => is_status,
            _ => !is_status,
        });
    }
    merge(&mut object, &patch);
    Ok(object)
}
