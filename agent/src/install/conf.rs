//! Network configurations in a runtime's directory: which are podwire's, which one the runtime
//! uses, and the one that podwire installs.

use std::path::{Path, PathBuf};

use podwire_cni::wire;
use podwire_daemon::file::FileError;
use podwire_daemon::settings::bad;
use serde_json::{Map, Value, json};

use super::{InstallError, place, portmap};
use crate::config::usual::{DROP_IN, PLUGIN_NAMES};
use crate::config::{
    is_network_configuration, network_configuration, network_configurations, plugin_types,
};

/// The member that marks a configuration as installed by podwire. Runtimes ignore it.
const MARK: &str = "installedBy";

/// A network configuration to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// Its file name.
    pub file: String,
    /// The file's content.
    pub text: String,
}

/// An existing network configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// Who wrote it.
    pub owner: Owner,
    /// The network's name.
    pub network: Option<String>,
    /// The plugins that it lists.
    pub plugins: Vec<String>,
}

/// Who wrote a network configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// podwire installed it.
    Installed,
    /// An administrator wrote it for podwire's plugin.
    ByHand,
    /// ovn-kubernetes' node process wrote it, or it lists that plugin.
    OvnKubernetes,
    /// It is Multus', which calls the next one.
    Multus,
    /// It is another plugin's, or unreadable.
    Other,
}

impl Conf {
    /// The configuration of the network `network`, served by the plugin `plugin`.
    ///
    /// Its `cniVersion` is one that runtimes without 1.1.0 accept (containerd up to 1.6 refuses
    /// 1.1.0). Runtimes that read `cniVersions` choose the highest common one, and so have STATUS
    /// and GC.
    pub fn generate(file: String, network: &str, plugin: &str, socket: &Path) -> Self {
        let mut entry = Map::from_iter([
            ("type".to_owned(), json!(plugin)),
            (
                "capabilities".to_owned(),
                json!({
                    "bandwidth": true,
                    "ips": true,
                    "mac": true,
                    "io.kubernetes.cri.pod-annotations": true,
                }),
            ),
        ]);
        if socket != Path::new(wire::DEFAULT_SOCKET) {
            entry.insert("agentSocket".to_owned(), json!(socket));
        }
        let list = json!({
            "cniVersion": "1.0.0",
            "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
            "name": network,
            "plugins": [entry, portmap::entry()],
        });
        Self::marked(file, list)
    }

    /// An administrator's configuration, to be installed under its own name.
    ///
    /// # Errors
    /// It can't be read, runtimes would ignore its name, or it does not list podwire's plugin.
    pub fn read(path: &Path) -> Result<Self, InstallError> {
        let bad = |problem: &str| -> InstallError {
            bad("--conf", &path.display().to_string(), problem).into()
        };
        let file = path.file_name().and_then(|name| name.to_str());
        let file = file.ok_or_else(|| bad("expected a file"))?;
        if !is_network_configuration(Path::new(file)) {
            return Err(bad("runtimes read only *.conf, *.conflist and *.json"));
        }
        let text = place::read(path)?.ok_or_else(|| bad("there is no such file"))?;
        let list: Value =
            serde_json::from_slice(&text).map_err(|error| bad(&format!("not JSON: {error}")))?;
        if !list["name"].is_string() {
            return Err(bad("it has no \"name\""));
        }
        if !plugin_types(&list).any(|it| PLUGIN_NAMES.contains(&it)) {
            return Err(bad(
                "no plugin in it has \"type\" podwire-cni, ovn-k8s-cni-overlay or ovs",
            ));
        }
        Ok(Self::marked(file.to_owned(), list))
    }

    /// The configuration, marked as podwire's.
    fn marked(file: String, mut list: Value) -> Self {
        list[MARK] = json!(concat!("podwire ", env!("CARGO_PKG_VERSION")));
        Self::of(file, &list)
    }

    fn of(file: String, list: &Value) -> Self {
        let text = format!("{list:#}\n");
        Self { file, text }
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Whether it names portmap.
    pub fn names_portmap(&self) -> bool {
        portmap::is_in(&self.list())
    }

    /// The configuration for a node whose portmap knows these versions, or can't be run for this
    /// reason; and what is different because of that.
    pub fn for_portmap(self, versions: Result<Vec<Value>, String>) -> (Self, Option<String>) {
        let mut list = self.list();
        let notice = portmap::fit(&mut list, versions);
        (Self::of(self.file, &list), notice)
    }
}

/// The network configurations in a directory, in the order in which runtimes sort them; most use
/// the first only.
///
/// # Errors
/// The directory exists and can't be listed.
pub fn survey(directory: &Path) -> Result<Vec<Found>, InstallError> {
    let found = network_configurations(directory).map_err(FileError::of("list", directory))?;
    let read = |(path, list): (PathBuf, Value)| Found::of(path, &list);
    Ok(found.into_iter().map(read).collect())
}

impl Found {
    /// Classifies a file's content; an unreadable one is [`Owner::Other`].
    fn of(path: PathBuf, list: &Value) -> Self {
        let plugins: Vec<String> = plugin_types(list).map(str::to_owned).collect();
        let is_marked = list[MARK]
            .as_str()
            .is_some_and(|mark| mark.starts_with("podwire "));
        let names = |wanted: &str| plugins.iter().any(|it| it == wanted);
        let owner = match () {
            () if is_marked => Owner::Installed,
            () if names(PLUGIN_NAMES[0]) => Owner::ByHand,
            () if names(DROP_IN) => Owner::OvnKubernetes,
            () if names("multus") || names("multus-shim") => Owner::Multus,
            () => Owner::Other,
        };
        Self {
            path,
            owner,
            network: list["name"].as_str().map(str::to_owned),
            plugins,
        }
    }

    /// Whether it leads containers' hostPort to pods.
    pub fn names_portmap(&self) -> bool {
        self.plugins.iter().any(|name| name == portmap::NAME)
    }

    /// Whether podwire wires the pods of this configuration.
    pub fn is_podwires(&self) -> bool {
        matches!(self.owner, Owner::Installed | Owner::ByHand)
    }
}

/// Who wrote the configuration in a file.
pub(super) fn owner(path: &Path) -> Owner {
    Found::of(path.to_owned(), &network_configuration(path)).owner
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn conf() -> Conf {
        Conf::generate(
            "10-podwire.conflist".into(),
            "podwire",
            "podwire-cni",
            Path::new(wire::DEFAULT_SOCKET),
        )
    }

    #[test]
    fn what_is_generated_is_a_list_that_our_own_reader_takes_in_every_version_it_offers() {
        let list: Value = serde_json::from_str(&conf().text).unwrap();
        for version in list["cniVersions"].as_array().unwrap() {
            let mut entry = list["plugins"][0].clone();
            entry["cniVersion"] = version.clone();
            entry["name"] = list["name"].clone();
            let read = podwire_cni::spec::NetConf::parse(entry.to_string().as_bytes()).unwrap();
            assert_eq!(read.name, "podwire");
            assert!(read.capabilities["io.kubernetes.cri.pod-annotations"]);
            assert_eq!(read.agent_socket, None);
        }
    }

    #[test]
    fn confs_are_told_apart_by_whose_they_are_and_come_in_the_runtimes_order() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            (
                "10-ovn-kubernetes.conf",
                r#"{"cniVersion":"0.4.0","name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay"}"#,
            ),
            ("05-mine.conf", r#"{"name":"x","type":"podwire-cni"}"#),
            ("00-multus.conf", r#"{"name":"m","type":"multus"}"#),
            ("99-broken.json", "{"),
            ("notes.txt", "{}"),
        ];
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        fs::write(dir.path().join("10-podwire.conflist"), conf().text).unwrap();
        let found = survey(dir.path()).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.path.file_name().unwrap().to_str().unwrap(), it.owner))
            .collect();
        assert_eq!(
            told,
            [
                ("00-multus.conf", Owner::Multus),
                ("05-mine.conf", Owner::ByHand),
                ("10-ovn-kubernetes.conf", Owner::OvnKubernetes),
                ("10-podwire.conflist", Owner::Installed),
                ("99-broken.json", Owner::Other),
            ]
        );
        assert!(survey(&dir.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_conf_of_ones_own_is_refused_when_runtimes_would_not_read_it_or_it_is_not_for_our_plugin() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, problem) in [
            ("a.txt", "{}", "runtimes read only"),
            ("a.conf", "{", "not JSON"),
            ("b.conf", "{}", "no \"name\""),
            (
                "c.conf",
                r#"{"name":"n","type":"bridge"}"#,
                "no plugin in it",
            ),
        ] {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            let error = Conf::read(&path).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(name), "{error}");
        }
        let path = dir.path().join("20-n.conf");
        fs::write(&path, r#"{"name":"n","type":"podwire-cni","mtu":1300}"#).unwrap();
        let read = Conf::read(&path).unwrap();
        assert_eq!(read.file, "20-n.conf");
        let text: Value = serde_json::from_str(&read.text).unwrap();
        assert_eq!(text["mtu"], 1300);
        assert!(text[MARK].as_str().unwrap().starts_with("podwire "));
    }
}
