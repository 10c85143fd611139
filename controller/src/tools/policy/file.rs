//! Files with NetworkPolicies: YAML or JSON, several documents, Lists.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use podwire_cluster::api::{NetworkPolicy, Part};
use serde_json::Value;

use crate::cluster::ObjectName;
use crate::cluster::policy::Policy;
use crate::tools::ToolError;

/// The largest file, in bytes.
const LARGEST: u64 = 4 << 20;
const KIND: &str = "NetworkPolicy";
const API: &str = "networking.k8s.io/v1";
/// The fields of a policy's spec.
const FIELDS: [&str; 4] = ["podSelector", "policyTypes", "ingress", "egress"];

/// The policies of some files.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<(ObjectName, Policy)>, ToolError> {
    let mut found = Vec::new();
    for path in files {
        let failed = |problem: String| ToolError::File(format!("{}: {problem}", path.display()));
        let text = text_of(path).map_err(failed)?;
        let documents = serde_saphyr::from_multiple::<Value>(&text);
        let documents = documents.map_err(|error| failed(format!("no YAML or JSON: {error}")))?;
        for (number, document) in (1..).zip(documents) {
            let failed = |problem| failed(format!("document {number}: {problem}"));
            match document["items"].as_array() {
                Some(items) => {
                    for (item, object) in items.iter().enumerate() {
                        let at = |problem| failed(format!("items[{item}]: {problem}"));
                        found.push(policy(object).map_err(at)?);
                    }
                }
                // What is between two separators, or after the last.
                None if document.is_null() => {}
                None => found.push(policy(&document).map_err(failed)?),
            }
        }
        if found.is_empty() {
            return Err(failed(format!("it has no {KIND}")));
        }
    }
    Ok(found)
}

fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(LARGEST + 1).read_to_string(&mut text),
        false => std::fs::File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text)),
    };
    match read {
        Err(error) => Err(error.to_string()),
        Ok(size) if size as u64 > LARGEST => Err(format!("it has more than {LARGEST} bytes")),
        Ok(_) => Ok(text),
    }
}

/// A policy without a mistake.
fn policy(object: &Value) -> Result<(ObjectName, Policy), String> {
    let is = |field: &str, wanted: &str| match &object[field] {
        Value::String(text) if text == wanted => Ok(()),
        Value::Null => Err(format!("{field}: it is missing; it has to be {wanted}")),
        other => Err(format!("{field}: {other} is not {wanted}")),
    };
    is("kind", KIND)?;
    is("apiVersion", API)?;
    let name = |field: &str| match object["metadata"][field].as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(format!("metadata.{field}: it is missing")),
    };
    let (namespace, name) = (name("namespace")?, name("name")?);
    let of = |problem: String| format!("{namespace}/{name}: {problem}");
    let fields = object["spec"].as_object().into_iter().flatten();
    if let Some((field, _)) = fields
        .into_iter()
        .find(|(it, _)| !FIELDS.contains(&it.as_str()))
    {
        return Err(of(format!("spec.{field}: there is no such field")));
    }
    let parsed: NetworkPolicy =
        serde_json::from_value(object.clone()).map_err(|error| of(error.to_string()))?;
    if let Part::Unreadable(problem) = &parsed.spec {
        return Err(of(format!("spec: {problem}")));
    }
    let policy = Policy::of(&parsed).ok_or_else(|| of("spec: it can't be read".to_owned()))?;
    match policy.problems.first() {
        Some(problem) => Err(of(problem.clone())),
        None => Ok(((namespace.into(), name.into()), policy)),
    }
}
