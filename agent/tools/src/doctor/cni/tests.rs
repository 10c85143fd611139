use std::fs;

use super::*;

/// By this sentence the installation knows the plugin's file.
const MARK: &[u8] = b"the CNI plugin of podwire ";

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        fs::create_dir(node.0.path().join("conf")).unwrap();
        fs::create_dir(node.0.path().join("bin")).unwrap();
        node
    }

    fn plugin(self, name: &str, is_ours: bool) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let text = if is_ours { MARK } else { b"ELF" };
        let path = self.0.path().join("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn conf(self, name: &str, text: &str) -> Self {
        fs::write(self.0.path().join("conf").join(name), text).unwrap();
        self
    }

    fn crio(self, network: &str) -> Self {
        let text = format!("[crio.network]\ncni_default_network = \"{network}\"\n");
        fs::create_dir(self.0.path().join("crio.conf.d")).unwrap();
        fs::write(self.0.path().join("crio.conf.d/10-network.conf"), text).unwrap();
        self
    }

    fn examined(&self) -> Examined {
        let (conf, bin) = (self.0.path().join("conf"), self.0.path().join("bin"));
        examine(&Directories {
            conf: &conf,
            bin: &bin,
            crio: self.0.path(),
        })
    }

    /// What is found, with the directory's own name left out.
    fn findings(&self) -> Vec<(String, Vec<String>)> {
        let root = format!("{}/", self.0.path().display());
        let bare = |text: &str| text.replace(&root, "");
        let examined = self.examined();
        examined
            .findings
            .iter()
            .map(|it| (bare(&it.what), it.fix.iter().map(|it| bare(it)).collect()))
            .collect()
    }

    fn only(&self) -> (String, String) {
        let mut findings = self.findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        let (what, fix) = findings.remove(0);
        (what, fix.join("; "))
    }
}

const OURS: &str = r#"{"name":"pods","type":"podwire-cni"}"#;
const CHAIN: &str = r#"{
    "name": "n", "installedBy": "podwire 0",
    "plugins": [{"type": "podwire-cni"}, {"type": "portmap"}]
}"#;
const OVERLAY: &str = r#"{"name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay"}"#;

#[test]
fn a_configuration_of_ours_that_comes_first_is_well() {
    let node = || Node::new().plugin("podwire-cni", true);
    for node in [
        node().conf("10-podwire.conf", OURS),
        node()
            .plugin("portmap", false)
            .conf("10-podwire.conflist", CHAIN),
        node()
            .conf("10-podwire.conf", OURS)
            .conf("99-bridge.conf", r#"{"type":"bridge"}"#),
        node()
            .conf("10-podwire.conf", OURS)
            .conf("00-read.me", "no configuration"),
        node()
            .plugin("ovn-k8s-cni-overlay", true)
            .conf("10-ovn-kubernetes.conf", OVERLAY),
        node()
            .conf("00-multus.conf", r#"{"type":"multus-shim"}"#)
            .conf("10-podwire.conf", OURS),
        node()
            .conf("05-bridge.conf", r#"{"name":"other","type":"bridge"}"#)
            .conf("10-podwire.conf", OURS)
            .crio("pods"),
        // Installed in place of the other plugin, without a name of its own.
        Node::new()
            .plugin("ovn-k8s-cni-overlay", true)
            .conf("10-ovn-kubernetes.conf", OVERLAY),
    ] {
        assert_eq!(node.findings(), [], "{:?}", node.0);
    }
}

#[test]
fn what_a_host_port_lacks_is_said() {
    let node = || Node::new().plugin("podwire-cni", true);
    let (what, fix) = node().conf("10-podwire.conflist", CHAIN).only();
    assert_eq!(
        what,
        "the plugin bin/portmap is missing, and conf/10-podwire.conflist calls it: no pod starts"
    );
    assert_eq!(fix, "podwire install --conf-only --conf-dir conf");
    let by_hand = CHAIN.replace("installedBy", "by");
    let (_, fix) = node().conf("10-podwire.conflist", &by_hand).only();
    assert_eq!(fix, "");
    let seen = |node: Node| node.examined().seen.contains("hostPort does not work");
    let with = || node().plugin("portmap", false);
    assert!(!seen(with().conf("10-podwire.conflist", CHAIN)));
    assert!(seen(with().conf("10-podwire.conf", OURS)));
}

#[test]
fn one_that_is_not_first_gets_a_name_that_is() {
    let node = || Node::new().plugin("podwire-cni", true);
    let (what, fix) = node()
        .conf("10-ovn-kubernetes.conf", OVERLAY)
        .plugin("ovn-k8s-cni-overlay", false)
        .conf("10-podwire.conf", OURS)
        .only();
    assert!(what.contains("writes it again"), "{what}");
    assert_eq!(fix, "mv conf/10-podwire.conf conf/05-podwire.conf");
    let (_, fix) = node()
        .conf("00-a.conf", "{")
        .conf("podwire.conflist", OURS)
        .only();
    assert_eq!(fix, "mv conf/00-a.conf conf/00-a.conf.disabled");
}

#[test]
fn a_node_without_ours_is_told_which_is_taken_and_how_to_write_one() {
    let node = || Node::new().plugin("podwire-cni", true);
    let (what, fix) = node().only();
    assert!(what.contains("conf has no configuration"), "{what}");
    assert_eq!(fix, "podwire install --conf-only --conf-dir conf");
    let (what, fix) = node().conf("05-bridge.conf", r#"{"type":"bridge"}"#).only();
    assert!(what.contains("05-bridge.conf (bridge)"), "{what}");
    assert_eq!(
        fix,
        "podwire install --conf-only --conf-dir conf --priority 04"
    );
}

#[test]
fn ovn_kubernetes_own_binary_is_told_from_ours() {
    let (what, fix) = Node::new()
        .plugin("podwire-cni", true)
        .plugin("ovn-k8s-cni-overlay", false)
        .conf("10-ovn-kubernetes.conf", OVERLAY)
        .only();
    assert!(what.contains("not podwire's"), "{what}");
    assert_eq!(
        fix,
        "cp --remove-destination bin/podwire-cni bin/ovn-k8s-cni-overlay"
    );
}

#[test]
fn a_plugin_that_is_missing_or_overwritten_is_installed_again() {
    let (what, fix) = Node::new().conf("10-podwire.conf", OURS).only();
    assert!(what.contains("bin/podwire-cni is missing"), "{what}");
    assert_eq!(fix, "podwire install --plugin-only --bin-dir bin");
    let (what, fix) = Node::new()
        .plugin("podwire-cni", false)
        .conf("10-podwire.conf", OURS)
        .only();
    assert!(what.contains("copied over it"), "{what}");
    assert_eq!(fix, "podwire install --plugin-only --force --bin-dir bin");
}

#[test]
fn where_crio_is_told_another_network_that_one_counts() {
    let node = Node::new()
        .plugin("podwire-cni", true)
        .conf("10-podwire.conf", OURS)
        .conf("20-bridge.conf", r#"{"name":"other","type":"bridge"}"#)
        .crio("other");
    let (what, _) = node.only();
    assert!(what.contains("20-bridge.conf"), "{what}");
}

#[test]
fn where_multus_calls_podwire_by_definitions_alone_that_is_said_and_nothing_to_fix() {
    let node = Node::new()
        .plugin("podwire-cni", true)
        .conf("00-multus.conf", r#"{"type":"multus-shim"}"#);
    let (what, fix) = node.only();
    assert!(what.contains("calls other plugins"), "{what}");
    assert_eq!(fix, "");
}
