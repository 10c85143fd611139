//! portmap, the plugin that leads a container's hostPort to its pod: podwire's network
//! configurations name it where the node has it.
//!
//! A runtime can't start any pod by a configuration that names a plugin which is missing, or which
//! does not know the version that the runtime has chosen (docs/decisions/0096).

use serde_json::{Value, json};

/// The plugin's name.
pub(super) const NAME: &str = "portmap";

/// The variable and the input that request a plugin's versions (CNI spec, VERSION).
pub(super) const REQUEST: (&str, &str) = ("CNI_COMMAND", "VERSION");
pub(super) const INPUT: &str = r#"{"cniVersion":"1.0.0"}"#;

/// portmap's entry in a list of plugins.
pub(super) fn entry() -> Value {
    json!({"type": NAME, "capabilities": {"portMappings": true}})
}

/// Whether a list of plugins names it.
pub(super) fn is_in(list: &Value) -> bool {
    let plugins = list["plugins"].as_array();
    plugins.into_iter().flatten().any(is_it)
}

/// The versions in a plugin's answer.
pub(super) fn versions(answer: &str) -> Result<Vec<Value>, String> {
    let read: Result<Value, _> = serde_json::from_str(answer);
    let read = read.map_err(|error| format!("{NAME} does not name its versions: {error}"))?;
    let versions = read["supportedVersions"].as_array();
    Ok(versions.cloned().unwrap_or_default())
}

/// Changes a configuration to what this node's portmap can serve, which knows these versions, or
/// can't be run for this reason. Returns what is different because of that.
pub(super) fn fit(list: &mut Value, versions: Result<Vec<Value>, String>) -> Option<String> {
    let versions = match versions {
        Ok(versions) => versions,
        Err(problem) => {
            list["plugins"].as_array_mut()?.retain(|it| !is_it(it));
            return Some(format!(
                "hostPort of containers does not work: {problem}; containernetworking-plugins has \
                 this plugin"
            ));
        }
    };
    let offered = list["cniVersions"].as_array_mut()?;
    let is_unknown = |version: &&Value| !versions.contains(version);
    let unknown: Vec<String> = offered
        .iter()
        .filter(is_unknown)
        .map(Value::to_string)
        .collect();
    offered.retain(|version| versions.contains(version));
    (!unknown.is_empty()).then(|| {
        format!(
            "CNI {} is not offered to the runtime, because this node's {NAME} does not know it; \
             that of containernetworking-plugins 1.6 does",
            unknown.join(", ")
        )
    })
}

fn is_it(plugin: &Value) -> bool {
    plugin["type"] == NAME
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Value {
        json!({
            "cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
            "plugins": [{"type": "podwire-cni"}, entry()],
        })
    }

    #[test]
    fn a_portmap_that_knows_all_versions_changes_nothing() {
        let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}"#;
        let mut fitted = list();
        assert_eq!(fit(&mut fitted, versions(answer)), None);
        assert_eq!(fitted, list());
    }

    #[test]
    fn a_version_that_portmap_does_not_know_is_not_offered() {
        let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}"#;
        let mut fitted = list();
        let notice = fit(&mut fitted, versions(answer)).unwrap();
        assert!(notice.contains(r#"CNI "1.1.0" is not offered"#), "{notice}");
        assert_eq!(fitted["cniVersions"], json!(["0.4.0", "1.0.0"]));
        assert!(is_in(&fitted));
    }

    #[test]
    fn without_portmap_the_configuration_does_not_name_it() {
        for versions in [Err("portmap can't be run".to_owned()), versions("no JSON")] {
            let mut fitted = list();
            let notice = fit(&mut fitted, versions).unwrap();
            assert!(
                notice.starts_with("hostPort of containers does not work: portmap"),
                "{notice}"
            );
            assert_eq!(fitted["plugins"], json!([{"type": "podwire-cni"}]));
        }
    }
}
