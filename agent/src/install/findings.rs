//! Problems in a runtime's directories: another network configuration ahead of podwire's, or
//! another plugin in place of podwire's.
//!
//! ovn-kubernetes' node process writes 10-ovn-kubernetes.conf and copies its plugin whenever it
//! starts. On a node that podwire has taken over, it then gets all new pods, and nothing reports an
//! error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::conf::{Found, Owner};
use super::{InstallError, conf, is_plugin, place, portmap};
use crate::config::usual::PLUGIN_NAMES;

/// A problem and its fix, as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The problem.
    pub problem: String,
    /// How to fix it.
    pub remedy: String,
}

/// The present state of a runtime's directories.
#[derive(Debug, Clone, Default)]
pub struct RuntimeState {
    /// The network configurations, in the runtime's order.
    pub confs: Vec<Found>,
    /// Those of podwire's plugin names for which a file exists, and whether it is podwire's. `None`
    /// if the directory is missing, as in a container that does not mount it.
    pub plugins: Option<BTreeMap<&'static str, bool>>,
    bin_dir: PathBuf,
    /// Whether portmap is there.
    has_portmap: bool,
}

/// Reads both directories.
///
/// # Errors
/// One exists and can't be read.
pub fn look(conf_dir: &Path, bin_dir: &Path) -> Result<RuntimeState, InstallError> {
    let mut seen = RuntimeState {
        confs: conf::survey(conf_dir)?,
        plugins: None,
        bin_dir: bin_dir.to_owned(),
        has_portmap: bin_dir.join(portmap::NAME).exists(),
    };
    if bin_dir.is_dir() {
        let mut plugins = BTreeMap::new();
        for name in PLUGIN_NAMES {
            if let Some(content) = place::read(&bin_dir.join(name))? {
                plugins.insert(name, is_plugin(&content));
            }
        }
        seen.plugins = Some(plugins);
    }
    Ok(seen)
}

impl RuntimeState {
    /// The problems on a node that podwire serves through a configuration that it installed.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let Some(ours) = self
            .confs
            .iter()
            .find(|conf| conf.owner == Owner::Installed)
        else {
            return findings;
        };
        let first = self.confs.iter().find(|conf| conf.owner != Owner::Multus);
        if let Some(first) = first.filter(|first| !self.leads_to_us(first)) {
            findings.push(Finding {
                problem: format!(
                    "{} sorts before {}: a runtime that uses only the first network configuration \
                     wires new pods with that one",
                    first.path.display(),
                    ours.path.display()
                ),
                remedy: match first.owner {
                    Owner::OvnKubernetes => format!(
                        "stop ovn-kubernetes' node process, which wrote it, then remove {}",
                        first.path.display()
                    ),
                    _ => format!(
                        "remove {}, or install podwire's with a smaller --priority",
                        first.path.display()
                    ),
                },
            });
        }
        if let Some(path) = self.lost_portmap(ours) {
            findings.push(Finding {
                problem: format!(
                    "{} is missing, and {} calls it: no pod starts",
                    path.display(),
                    ours.path.display()
                ),
                remedy: "install containernetworking-plugins there, or restart the agent, or run \
                         `podwire install --conf-only`, which leaves it out"
                    .to_owned(),
            });
        }
        for name in PLUGIN_NAMES {
            let is_called = ours.plugins.iter().any(|plugin| plugin == name);
            let problem = match self.plugins.as_ref().map(|plugins| plugins.get(name)) {
                Some(Some(false)) => "is not podwire's plugin any more",
                Some(None) => "is missing",
                Some(Some(true)) | None => continue,
            };
            if is_called {
                findings.push(Finding {
                    problem: format!(
                        "{} {problem}, and {} calls it",
                        self.bin_dir.join(name).display(),
                        ours.path.display()
                    ),
                    remedy: format!(
                        "stop the program that replaced it (ovn-kubernetes' node process copies \
                         its own plugin when it starts), then run `podwire install --plugin-only \
                         --as {name} --force`"
                    ),
                });
            }
        }
        findings
    }

    /// portmap's file, if this configuration names the plugin and the node has lost it. Then no pod
    /// starts.
    pub fn lost_portmap(&self, conf: &Found) -> Option<PathBuf> {
        let is_lost = self.plugins.is_some() && !self.has_portmap;
        let path = self.bin_dir.join(portmap::NAME);
        (is_lost && conf.names_portmap()).then_some(path)
    }

    /// Whether podwire wires the pods of this configuration: it lists podwire's plugin, or
    /// ovn-kubernetes' while podwire's plugin has that name.
    fn leads_to_us(&self, conf: &Found) -> bool {
        let is_ours = |plugin: &String| {
            let installed = self
                .plugins
                .as_ref()
                .map(|plugins| plugins.get(plugin.as_str()));
            plugin == PLUGIN_NAMES[0] || installed == Some(Some(&true))
        };
        conf.owner == Owner::Installed || conf.plugins.iter().any(is_ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(confs: &[(&str, Owner, &str)], plugins: &[(&'static str, bool)]) -> Vec<String> {
        let confs = confs.iter().map(|(file, owner, plugin)| Found {
            path: Path::new("/etc/cni/net.d").join(file),
            owner: *owner,
            network: None,
            plugins: vec![(*plugin).to_owned()],
        });
        let seen = RuntimeState {
            confs: confs.collect(),
            plugins: Some(plugins.iter().copied().collect()),
            has_portmap: false,
            bin_dir: "/opt/cni/bin".into(),
        };
        seen.findings()
            .into_iter()
            .map(|finding| finding.problem)
            .collect()
    }

    const OURS: (&str, Owner, &str) = ("10-podwire.conflist", Owner::Installed, "podwire-cni");
    const THEIRS: (&str, Owner, &str) = (
        "10-ovn-kubernetes.conf",
        Owner::OvnKubernetes,
        "ovn-k8s-cni-overlay",
    );

    #[test]
    fn a_node_of_ours_alone_or_behind_multus_is_as_it_should_be() {
        let plugin = [("podwire-cni", true)];
        assert!(seen(&[OURS], &plugin).is_empty());
        let multus = ("00-multus.conf", Owner::Multus, "multus");
        assert!(seen(&[multus, OURS], &plugin).is_empty());
        let by_hand = ("05-mine.conf", Owner::ByHand, "podwire-cni");
        assert!(seen(&[by_hand, OURS], &plugin).is_empty());
    }

    #[test]
    fn ovn_kubernetes_that_came_back_is_noticed_by_what_it_wrote() {
        let plugin = [("podwire-cni", true), ("ovn-k8s-cni-overlay", false)];
        let found = seen(&[THEIRS, OURS], &plugin);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("/etc/cni/net.d/10-ovn-kubernetes.conf sorts before"),
            "{found:?}"
        );
    }

    #[test]
    fn in_its_place_its_configuration_leads_to_us_until_its_plugin_is_back() {
        let drop_in = (
            "10-podwire.conflist",
            Owner::Installed,
            "ovn-k8s-cni-overlay",
        );
        assert!(seen(&[THEIRS, drop_in], &[("ovn-k8s-cni-overlay", true)]).is_empty());
        let found = seen(&[THEIRS, drop_in], &[("ovn-k8s-cni-overlay", false)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[1].contains("is not podwire's plugin any more"),
            "{found:?}"
        );
    }

    #[test]
    fn where_podwire_is_not_installed_nothing_is_amiss() {
        assert!(seen(&[THEIRS], &[]).is_empty());
        assert_eq!(
            seen(&[OURS], &[]).len(),
            1,
            "but then its plugin must be there"
        );
    }
}
