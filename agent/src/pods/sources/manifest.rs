//! Pods in YAML or JSON, as `kubectl apply` accepts them: one or several documents, or a List.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Pod, PodName};
use podwire_apiserver::brief;

/// A document. Kinds other than pods and lists are skipped: a file may hold a service beside its
/// pod.
#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    items: Vec<Document>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// The pods of one file. A pod without a namespace is in `default`.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(text: &str) -> Result<Vec<(PodName, Pod)>, String> {
    // JSON is YAML, but serde_json's errors are better, and kubectl writes large lists in it.
    let documents: Vec<Option<Document>> = match text.trim_start().starts_with('{') {
        true => vec![serde_json::from_str(text).map_err(|error| brief(&error))?],
        false => serde_saphyr::from_multiple(text).map_err(|error| brief(&error))?,
    };
    let mut pods = Vec::new();
    for document in documents.into_iter().flatten() {
        collect(document, &mut pods)?;
    }
    Ok(pods)
}

fn collect(document: Document, pods: &mut Vec<(PodName, Pod)>) -> Result<(), String> {
    match document.kind.as_deref() {
        Some("Pod") => {
            let metadata = document.metadata;
            let name = PodName {
                namespace: metadata.namespace.unwrap_or_else(|| "default".to_owned()),
                name: metadata.name.ok_or("a Pod without metadata.name")?,
            };
            let annotations = metadata.annotations.unwrap_or_default();
            pods.push((name, Pod::new(metadata.uid, annotations)));
            Ok(())
        }
        Some("List" | "PodList") => document
            .items
            .into_iter()
            .try_for_each(|item| collect(item, pods)),
        Some(_) => Ok(()),
        None => Err("a document without kind".to_owned()),
    }
}

#[cfg(test)]
mod tests;
