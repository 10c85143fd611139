//! Files with policies.

use std::path::PathBuf;

use podwire_cluster::api::{self, Part};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fields::unknown;
use super::named;
use crate::cluster::policy::Policy;
use crate::cluster::tiered::{Content, Tiered};
use crate::key::{Key, Of};
use crate::tools::ToolError;
use crate::tools::file::documents;

/// The kinds of policies.
const KINDS: [Of; 4] = [
    Of::Policy,
    Of::ClusterPolicy,
    Of::AdminPolicy,
    Of::BaselinePolicy,
];

/// A policy of a file.
pub(super) enum Read {
    Policy(Policy),
    Tiered(Content),
}

/// The policies of some files.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<(Key, Read)>, ToolError> {
    let mut found = Vec::new();
    for path in files {
        let failed = |problem: String| ToolError::Mistake(format!("{}: {problem}", path.display()));
        for (place, object) in documents(path)? {
            let at = |problem| failed(format!("{place}: {problem}"));
            found.push(policy(&object).map_err(at)?);
        }
        if found.is_empty() {
            return Err(failed("it has no policy".to_owned()));
        }
    }
    Ok(found)
}

/// A policy without a mistake.
pub(super) fn policy(object: &Value) -> Result<(Key, Read), String> {
    let kinds = KINDS.map(|of| of.kind().map_or("", |(_, kind)| kind));
    let kind = object["kind"].as_str().unwrap_or_default();
    let of = match kinds.iter().position(|it| *it == kind) {
        Some(place) => KINDS[place],
        None if object["kind"].is_null() => {
            let known = kinds.join(", ");
            return Err(format!("kind: it is missing; known are {known}"));
        }
        None => {
            let known = kinds.join(", ");
            return Err(format!("kind: {} is none of {known}", object["kind"]));
        }
    };
    let api = of.kind().map_or("", |(api, _)| api);
    match &object["apiVersion"] {
        Value::String(text) if text == api => {}
        Value::Null => return Err(format!("apiVersion: it is missing; it has to be {api}")),
        other => return Err(format!("apiVersion: {other} is not {api}")),
    }
    let name = |field: &str| match object["metadata"][field].as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(format!("metadata.{field}: it is missing")),
    };
    let key = match of {
        Of::Policy => Key::object(of, (name("namespace")?.into(), name("name")?.into())),
        _ => Key::named(of, name("name")?.into()),
    };
    let of = |problem: String| format!("{}: {problem}", named(&key));
    if let Some(field) = unknown(key.of, &object["spec"]) {
        return Err(of(format!("{field}: there is no such field")));
    }
    let read = content(key.of, object).map_err(of)?;
    Ok((key, read))
}

fn content(of: Of, object: &Value) -> Result<Read, String> {
    let tiered = match of {
        Of::ClusterPolicy => Tiered::of_cluster(&parsed(object)?),
        Of::AdminPolicy => Tiered::of_admin(&parsed(object)?),
        Of::BaselinePolicy => Tiered::of_baseline(&parsed(object)?),
        _ => {
            let parsed: api::NetworkPolicy = parsed(object)?;
            if let Part::Unreadable(problem) = &parsed.spec {
                return Err(format!("spec: {problem}"));
            }
            let policy = Policy::of(&parsed).ok_or("spec: it can't be read")?;
            return match policy.problems.first() {
                Some(problem) => Err(problem.clone()),
                None => Ok(Read::Policy(policy)),
            };
        }
    };
    let content = tiered.content?;
    match content.problems.first() {
        Some(problem) => Err(problem.clone()),
        None => Ok(Read::Tiered(content)),
    }
}

fn parsed<T: DeserializeOwned>(object: &Value) -> Result<T, String> {
    serde_json::from_value(object.clone()).map_err(|error| error.to_string())
}
