//! Events: made by POST, changed by a merge patch (RFC 7386).

use serde_json::{Value, json};

use super::connection::status;
use super::{Request, State};

/// Whether a request makes or changes an Event.
pub(super) fn is_about(request: &Request) -> bool {
    matches!(request.method.as_str(), "POST" | "PATCH") && place(&request.path).is_some()
}

/// Does what the request wants; the answer is the Event, or why not.
pub(super) fn serve(request: &Request, state: &mut State) -> Value {
    let (Some((namespace, name)), Some(body)) = (place(&request.path), &request.body) else {
        return status(400, "BadRequest", "the body is not JSON");
    };
    if state.forbids_events {
        let verb = request.method.to_lowercase();
        return status(
            403,
            "Forbidden",
            &format!("events is forbidden: cannot {verb}"),
        );
    }
    match name {
        None => make(namespace, body, state),
        Some(name) => change(namespace, name, request, body, state),
    }
}

fn make(namespace: &str, event: &Value, state: &mut State) -> Value {
    // What the real server's validation looks at in a core/v1 Event (ValidateEvent, legacy part).
    let object = &event["involvedObject"];
    // An object without a namespace has its Events in the one that is always there.
    let is_its =
        object["namespace"] == namespace || object["namespace"].is_null() && namespace == "default";
    if !is_its || event["metadata"]["namespace"] != namespace {
        return status(
            422,
            "Invalid",
            "involvedObject.namespace: does not match event.namespace",
        );
    }
    let Some(name) = event["metadata"]["name"].as_str() else {
        return status(422, "Invalid", "metadata.name: Required value");
    };
    // A name is that of a DNS subdomain.
    let is_label =
        |label: &str| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
    if name.len() > 253 || !name.split('.').all(is_label) {
        return status(422, "Invalid", "metadata.name: Invalid value");
    }
    if find(namespace, name, state).is_some() {
        return status(
            409,
            "AlreadyExists",
            &format!("events {name:?} already exists"),
        );
    }
    state.events.push(event.clone());
    event.clone()
}

fn change(
    namespace: &str,
    name: &str,
    request: &Request,
    patch: &Value,
    state: &mut State,
) -> Value {
    if request.content_type != "application/merge-patch+json" {
        return status(415, "UnsupportedMediaType", &request.content_type);
    }
    let Some(event) = find(namespace, name, state) else {
        return status(404, "NotFound", &format!("events {name:?} not found"));
    };
    merge(event, patch);
    event.clone()
}

fn find<'a>(namespace: &str, name: &str, state: &'a mut State) -> Option<&'a mut Value> {
    state.events.iter_mut().find(|event| {
        event["metadata"]["namespace"] == namespace && event["metadata"]["name"] == name
    })
}

pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        match value {
            Value::Null => drop(target.as_object_mut().and_then(|it| it.remove(name))),
            value => merge(&mut target[name], value),
        }
    }
}

/// Namespace and name of `/api/v1/namespaces/NAMESPACE/events[/NAME]`.
fn place(path: &str) -> Option<(&str, Option<&str>)> {
    let (namespace, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once('/')?;
    match rest.strip_prefix("events")? {
        "" => Some((namespace, None)),
        name => Some((namespace, Some(name.strip_prefix('/')?))),
    }
}
