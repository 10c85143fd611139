//! MicroShift's file, `/etc/microshift/ovn.yaml`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::super::layers::{Given, Layer, Origin};
use super::{Parsed, Wrong, passed_over};

pub(super) fn parse(text: &str, path: &Path) -> Parsed {
    let wrong = |problem: String| Wrong {
        line: None,
        problem,
    };
    let content: Option<BTreeMap<String, Value>> =
        serde_saphyr::from_str(text).map_err(|error| {
            let problem = error.to_string();
            wrong(problem.lines().next().unwrap_or_default().to_owned())
        })?;
    let mut layer = Layer::new();
    let mut unknown = Vec::new();
    for (key, value) in content.unwrap_or_default() {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("mtu", Value::Number(mtu)) if mtu.is_u64() => {
                let (path, key) = (path.to_owned(), key.clone());
                let line = None;
                let given = Given::one(mtu.to_string(), Origin::File { path, key, line });
                layer.insert("mtu".to_owned(), given);
            }
            ("mtu", value) => {
                return Err(wrong(format!(
                    "mtu: expected a number of bytes, and not {value}"
                )));
            }
            // Whether microshift-ovs-init makes br-ex. podwire never does, and so has nothing to leave out.
            ("disableOVSInit", Value::Bool(_)) => {}
            ("disableOVSInit", value) => {
                let problem = format!("disableOVSInit: expected true or false, and not {value}");
                return Err(wrong(problem));
            }
            _ => unknown.push(key),
        }
    }
    Ok((layer, passed_over(&unknown)))
}
