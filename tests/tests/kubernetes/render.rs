//! Rendering as kustomize does it, by Kubernetes' own types and rules of merging.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::DeepMerge;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Of kustomize what the overlays use, and no more.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "named so that they are known")]
struct Kustomization {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
    #[serde(default)]
    config_map_generator: Vec<Generator>,
    generator_options: Option<GeneratorOptions>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Generator {
    name: String,
    namespace: String,
    files: Vec<String>,
}

/// Names stay as they are written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct GeneratorOptions {
    disable_name_suffix_hash: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    path: String,
}

pub(super) fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
}

fn documents(path: &Path) -> Vec<Value> {
    parsed(&fs::read_to_string(path).unwrap(), path)
}

/// The documents of a text of YAML.
pub(super) fn parsed(text: &str, path: &Path) -> Vec<Value> {
    let documents = text.split("\n---\n");
    documents
        .map(|text| {
            serde_saphyr::from_str(text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        })
        .collect()
}

/// A directory's kustomization.
pub(super) fn kustomization(directory: &Path) -> Value {
    let text = fs::read_to_string(directory.join("kustomization.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// As `kubectl kustomize` renders a directory: its resources, its components, and the patches
/// merged by Kubernetes' own rules.
pub(super) fn render(directory: &Path) -> Vec<Value> {
    let mut objects = Vec::new();
    accumulate(directory, &mut objects);
    objects
}

/// An overlay of deploy/cluster with components, such as `ovn-one+ipv4`.
pub(super) fn whole(name: &str) -> Vec<Value> {
    let cluster = manifests().join("../cluster");
    let mut parts = name.split('+');
    let mut objects = render(&cluster.join("overlays").join(parts.next().unwrap()));
    for component in parts {
        accumulate(&cluster.join("components").join(component), &mut objects);
    }
    objects
}

fn accumulate(directory: &Path, objects: &mut Vec<Value>) {
    let this: Kustomization = serde_json::from_value(kustomization(directory)).unwrap();
    for resource in &this.resources {
        let path = directory.join(resource);
        if path.is_dir() {
            objects.extend(render(&path));
        } else {
            objects.extend(documents(&path));
        }
    }
    for generator in &this.config_map_generator {
        let options = this.generator_options.as_ref().unwrap();
        assert!(options.disable_name_suffix_hash, "{}", generator.name);
        let read = |file: &String| {
            let text = fs::read_to_string(directory.join(file)).unwrap();
            (file.clone(), text)
        };
        let data: BTreeMap<_, _> = generator.files.iter().map(read).collect();
        objects.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"name": generator.name, "namespace": generator.namespace},
        }));
    }
    for component in &this.components {
        accumulate(&directory.join(component), objects);
    }
    for patch in &this.patches {
        for patch in documents(&directory.join(&patch.path)) {
            let target = objects.iter_mut().find(|it| id(it) == id(&patch));
            let target = target.unwrap_or_else(|| panic!("nothing to patch: {patch}"));
            *target = match patch["kind"].as_str().unwrap() {
                "DaemonSet" => merged::<DaemonSet>(target, &patch),
                "Deployment" => merged::<Deployment>(target, &patch),
                "StatefulSet" => merged::<StatefulSet>(target, &patch),
                "ConfigMap" => merged::<ConfigMap>(target, &patch),
                kind => panic!("no rule to merge a {kind}"),
            };
        }
    }
}

fn id(object: &Value) -> (String, String) {
    (
        object["kind"].to_string(),
        object["metadata"]["name"].to_string(),
    )
}

fn merged<T: DeepMerge + DeserializeOwned + Serialize>(base: &Value, patch: &Value) -> Value {
    let mut object: T = exact(base);
    object.merge_from(exact(patch));
    let mut merged = serde_json::to_value(object).unwrap();
    order(&mut merged, patch);
    merged
}

/// Puts what a patch names to the front of its list, as kustomize does: a variable that is made of
/// others needs them before it.
fn order(merged: &mut Value, patch: &Value) {
    match (merged, patch) {
        (Value::Object(merged), Value::Object(patch)) => {
            for (field, value) in merged {
                patch.get(field).into_iter().for_each(|it| order(value, it));
            }
        }
        (Value::Array(merged), Value::Array(patch)) => {
            let key = |it: &Value| it.get("mountPath").or(it.get("name")).cloned();
            let keys: Vec<_> = patch.iter().map(key).collect();
            let place = |it: &Value| keys.iter().position(|other| *other == key(it));
            merged.sort_by_key(|it| place(it).unwrap_or(keys.len()));
            for value in merged {
                place(value)
                    .into_iter()
                    .for_each(|it| order(value, &patch[it]));
            }
        }
        _ => {}
    }
}

/// An object of Kubernetes' type, of which every field that is written is one that the type has.
pub(super) fn exact<T: DeserializeOwned + Serialize>(written: &Value) -> T {
    let object: T = serde_json::from_value(written.clone())
        .unwrap_or_else(|error| panic!("{error}: {written}"));
    let known = serde_json::to_value(&object).unwrap();
    assert_known(written, &known, "");
    object
}

fn assert_known(written: &Value, known: &Value, place: &str) {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            for (field, value) in written {
                let place = format!("{place}.{field}");
                let known = known
                    .get(field)
                    .unwrap_or_else(|| panic!("Kubernetes has no {place}"));
                assert_known(value, known, &place);
            }
        }
        (Value::Array(written), Value::Array(known)) => {
            for (number, (written, known)) in written.iter().zip(known).enumerate() {
                assert_known(written, known, &format!("{place}[{number}]"));
            }
        }
        _ => assert_eq!(written, known, "{place}"),
    }
}

pub(super) fn of_kind<T: DeserializeOwned + Serialize>(objects: &[Value], kind: &str) -> Vec<T> {
    let objects = objects.iter().filter(|object| object["kind"] == kind);
    objects.map(exact).collect()
}

pub(super) fn pod_spec(objects: &[Value]) -> PodSpec {
    let daemonset = of_kind::<DaemonSet>(objects, "DaemonSet").remove(0);
    daemonset.spec.unwrap().template.spec.unwrap()
}

pub(super) fn config(objects: &[Value], name: &str) -> BTreeMap<String, String> {
    let maps = of_kind::<ConfigMap>(objects, "ConfigMap");
    let map = maps
        .into_iter()
        .find(|map| map.metadata.name.as_deref() == Some(name));
    map.unwrap().data.unwrap()
}
