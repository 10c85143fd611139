//! The files of ovn-kubernetes and MicroShift: `/etc/openvswitch/ovn_k8s.conf` and
//! `/etc/microshift/ovn.yaml`. They are for the cluster as much as for the node: keys for other
//! components are ignored, and unknown keys get a warning, as in ovn-kubernetes.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::super::layers::{Given, Layer, Origin, Parsed, Wrong};
use super::{CLUSTERS_SECTION, Fixed, NAMES, OvnOption, TRUE, ini};

/// Parses ovn-kubernetes' file.
pub(in super::super) fn ovn_k8s(text: &str, path: &Path) -> Parsed {
    let (mut layer, mut unknown) = (Layer::new(), Vec::new());
    for entry in ini::parse(text)? {
        let shown = format!("[{}] {}", entry.section, entry.name);
        let wrong = |problem: String| Wrong {
            line: Some(entry.line),
            problem: format!("{shown}: {problem}"),
        };
        let name = NAMES
            .iter()
            .find(|name| (name.section, name.key) == (entry.section.as_str(), &entry.name));
        let Some(name) = name else {
            if entry.section != CLUSTERS_SECTION {
                unknown.push(shown);
            }
            continue;
        };
        let value = match (entry.value.as_deref(), name.meaning.key()) {
            // An empty value counts as unset: the installers' templates leave them in.
            (Some(""), _) | (None, None) => continue,
            // The whole cluster shares the file, and other nodes may need another value.
            (Some(_), None) if matches!(name.meaning, Fixed(..)) => continue,
            (Some(value), _) => name.meaning.convert(value).map_err(wrong)?,
            (None, _) if matches!(name.meaning, OvnOption(_)) => {
                name.meaning.convert(TRUE).map_err(wrong)?
            }
            (None, Some(_)) => return Err(wrong("expected = and a value".to_owned())),
        };
        if let Some(key) = name.meaning.key() {
            let (path, line) = (path.to_owned(), Some(entry.line));
            let origin = Origin::File {
                path,
                key: shown,
                line,
            };
            layer.insert(key.to_owned(), Given::one(value, origin));
        }
    }
    Ok((layer, not_used(&unknown)))
}

/// Parses MicroShift's file.
pub(in super::super) fn microshift(text: &str, path: &Path) -> Parsed {
    let wrong = |problem: String| Wrong {
        line: None,
        problem,
    };
    let content: Option<BTreeMap<String, Value>> =
        serde_saphyr::from_str(text).map_err(|error| {
            let problem = error.to_string();
            wrong(problem.lines().next().unwrap_or_default().to_owned())
        })?;
    let (mut layer, mut unknown) = (Layer::new(), Vec::new());
    for (key, value) in content.unwrap_or_default() {
        match (key.as_str(), &value) {
            (_, Value::Null) => {}
            ("mtu", Value::Number(mtu)) if mtu.is_u64() => {
                let (path, line) = (path.to_owned(), None);
                let origin = Origin::File { path, key, line };
                layer.insert("mtu".to_owned(), Given::one(mtu.to_string(), origin));
            }
            ("mtu", _) => {
                let problem = format!("mtu: expected a number of bytes, and not {value}");
                return Err(wrong(problem));
            }
            // Who creates br-ex, and with which NIC: `podwire node` reads it.
            ("disableOVSInit", Value::Bool(_)) | ("ovsInit", Value::Object(_)) => {}
            ("disableOVSInit", _) => {
                let problem = format!("disableOVSInit: expected true or false, and not {value}");
                return Err(wrong(problem));
            }
            _ => unknown.push(key),
        }
    }
    Ok((layer, not_used(&unknown)))
}

/// The warning about unknown keys.
fn not_used(unknown: &[String]) -> Vec<String> {
    let keys = unknown.join(", ");
    let warning =
        (!unknown.is_empty()).then(|| format!("not used, for podwire knows no such key: {keys}"));
    warning.into_iter().collect()
}
