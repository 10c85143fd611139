//! `podwire install` and `podwire uninstall`: on a scratch root, with agents that can and can't
//! serve, while ADDs run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::Signal;
use podwire_tests::links::LinkRecorder;
use podwire_tests::process::Finished;
use podwire_tests::{AgentOptions, PluginRun, Pod, TestNode, plugin_binary};
use serde_json::{Value, json};

const ROOT: &str = "/run/scratch";
const PLUGIN: &str = "/run/scratch/opt/cni/bin/podwire-cni";
const OVERLAY: &str = "/run/scratch/opt/cni/bin/ovn-k8s-cni-overlay";
const CONF: &str = "/run/scratch/etc/cni/net.d/10-podwire.conflist";

/// `podwire VERB --root ROOT …` on the node.
fn podwire(node: &TestNode, verb: &str, arguments: &str) -> Finished {
    node.podwire(format!("{verb} --root {ROOT} {arguments}"))
}

fn install(node: &TestNode, arguments: &str) -> Finished {
    let plugin = plugin_binary();
    let arguments = format!("--plugin {} {arguments}", plugin.display());
    podwire(node, "install", &arguments)
}

fn write(node: &TestNode, path: &str, text: &str) {
    let path = node.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn read(node: &TestNode, path: &str) -> String {
    fs::read_to_string(node.path(path)).unwrap()
}

fn is_same(node: &TestNode, one: &str, other: &str) -> bool {
    fs::read(node.path(one)).unwrap() == fs::read(node.path(other)).unwrap()
}

fn mode(node: &TestNode, path: &str) -> u32 {
    fs::metadata(node.path(path)).unwrap().permissions().mode() & 0o7777
}

/// What a runtime makes of the installed list for one call of its plugin.
fn installed_conf(node: &TestNode) -> Value {
    let list: Value = serde_json::from_str(&read(node, CONF)).unwrap();
    let mut conf = list["plugins"][0].clone();
    conf["cniVersion"] = list["cniVersions"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    conf["name"] = list["name"].clone();
    conf
}

fn exec_installed(pod: &Pod<'_>, node: &TestNode, verb: &str) -> PluginRun {
    let conf = installed_conf(node).to_string();
    pod.exec_binary(Path::new(PLUGIN), verb, conf.as_bytes(), &[])
}

#[test]
fn the_conf_comes_only_once_the_agent_can_serve_an_add() {
    let node = TestNode::new();
    let failed = install(&node, "--wait 1");
    assert!(!failed.status.success());
    assert!(
        failed.stderr.contains("/run/podwire/agent.sock"),
        "{failed:?}"
    );
    assert_eq!(mode(&node, PLUGIN), 0o755);
    assert!(!node.path(CONF).exists());

    let agent = podwire_tests::Agent::launch(&node, &AgentOptions::default()).unwrap();
    let failed = install(&node, "--wait 1");
    assert!(!failed.status.success());
    assert!(failed.stderr.contains("db.sock"), "{failed:?}");
    assert!(!node.path(CONF).exists());

    thread::scope(|scope| {
        let waiting = scope.spawn(|| install(&node, ""));
        node.start_ovsdb_server();
        node.start_vswitchd();
        let installed = waiting.join().unwrap();
        assert!(installed.status.success(), "{installed:?}");
    });
    assert_eq!(mode(&node, CONF), 0o600);
    agent.stop();
    assert!(
        node.path(CONF).exists(),
        "pods keep their network through an upgrade"
    );
}

#[test]
fn an_install_that_came_first_goes_on_when_the_agent_starts() {
    let node = TestNode::with_ovs();
    fs::remove_dir(node.path("/run/podwire")).unwrap_or_default();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| install(&node, ""));
        let _agent = node.start_agent(&AgentOptions::default());
        let installed = waiting.join().unwrap();
        assert!(installed.status.success(), "{installed:?}");
        let pod = node.pod("web");
        exec_installed(&pod, &node, "ADD").success();
        exec_installed(&pod, &node, "STATUS").success();
        exec_installed(&pod, &node, "DEL").success();
    });
    node.leftovers().assert_none();
}

#[test]
fn plugin_and_conf_are_replaced_while_adds_run() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    assert!(install(&node, "").status.success());
    // What came with another version differs in its bytes.
    let mut newer = fs::read(plugin_binary()).unwrap();
    newer.push(0);
    fs::write(node.path("/run/newer"), newer).unwrap();

    let held = node.pod("held");
    node.signal_vswitchd(Signal::SIGSTOP);
    let recorder = LinkRecorder::start(node.place());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let adding = scope.spawn(|| exec_installed(&held, &node, "ADD").success());
        recorder.await_born(held.host_link());
        // The file is being executed: writing into it would fail with "text file busy".
        let upgraded = podwire(&node, "install", "--plugin /run/newer --upgrade");
        assert!(upgraded.status.success(), "{upgraded:?}");
        assert!(is_same(&node, PLUGIN, "/run/newer"));
        node.signal_vswitchd(Signal::SIGCONT);
        adding.join().unwrap();

        let runtimes: Vec<_> = (0..2)
            .map(|number| {
                let (node, done) = (&node, &done);
                scope.spawn(move || {
                    let pod = node.pod(&format!("pod{number}"));
                    let mut rounds = 0;
                    while !done.load(Ordering::Relaxed) || rounds == 0 {
                        exec_installed(&pod, node, "ADD").success();
                        exec_installed(&pod, node, "DEL").success();
                        rounds += 1;
                    }
                })
            })
            .collect();
        for round in 0..10 {
            let plugin = plugin_binary();
            let plugin = ["/run/newer", plugin.to_str().unwrap()][round % 2];
            let installed = podwire(&node, "install", &format!("--plugin {plugin}"));
            assert!(installed.status.success(), "{installed:?}");
        }
        done.store(true, Ordering::Relaxed);
        for runtime in runtimes {
            runtime.join().unwrap();
        }
    });
    exec_installed(&held, &node, "DEL").success();
    node.leftovers().assert_none();
}

#[test]
fn what_is_somebody_elses_is_replaced_by_force_alone_and_given_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let theirs = r#"{"cniVersion":"0.4.0","name":"n","type":"bridge"}"#;
    write(&node, OVERLAY, "#!/bin/sh\n");
    write(&node, CONF, theirs);
    let refused = install(&node, "--as ovn-k8s-cni-overlay");
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    assert_eq!(read(&node, OVERLAY), "#!/bin/sh\n");
    assert_eq!(read(&node, CONF), theirs);

    let forced = install(&node, "--as ovn-k8s-cni-overlay --force");
    assert!(forced.status.success(), "{forced:?}");
    assert!(forced.stdout.contains("kept as"), "{forced:?}");
    assert_eq!(installed_conf(&node)["type"], "ovn-k8s-cni-overlay");
    assert_eq!(installed_conf(&node)["name"], "ovn-kubernetes");
    // A second time, as by an upgrade: what is kept is still theirs.
    let again = install(&node, "--as ovn-k8s-cni-overlay --force --network n");
    assert!(again.status.success(), "{again:?}");

    let gone = podwire(&node, "uninstall", "");
    assert!(gone.status.success(), "{gone:?}");
    assert_eq!(read(&node, OVERLAY), "#!/bin/sh\n");
    assert_eq!(read(&node, CONF), theirs);
}

#[test]
fn a_dry_run_tells_all_and_does_nothing() {
    let node = TestNode::new();
    write(
        &node,
        "/run/scratch/etc/cni/net.d/05-other.conf",
        r#"{"name":"o","type":"bridge"}"#,
    );
    write(
        &node,
        "/run/scratch/etc/cni/net.d/87-podman.conflist",
        r#"{"name":"p","plugins":[]}"#,
    );
    let told = install(&node, "--dry-run");
    assert!(told.status.success(), "{told:?}");
    for line in [
        "would install the plugin /run/scratch/opt/cni/bin/podwire-cni",
        "05-other.conf sorts before 10-podwire.conflist",
        "87-podman.conflist sorts after 10-podwire.conflist",
        "would install the network configuration",
        "\"type\": \"podwire-cni\"",
    ] {
        assert!(told.stdout.contains(line), "{line}: {}", told.stdout);
    }
    assert!(!node.path(PLUGIN).exists() && !node.path(CONF).exists());
}

#[test]
fn uninstall_leaves_the_pods_their_ports_and_says_so_or_takes_them_along() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    assert!(install(&node, "").status.success());
    write(
        &node,
        "/run/scratch/etc/cni/net.d/50-mine.conf",
        r#"{"name":"m","type":"podwire-cni"}"#,
    );
    let pods = ["web", "db"].map(|name| node.pod(name));
    for pod in &pods {
        exec_installed(pod, &node, "ADD").success();
    }

    let told = podwire(&node, "uninstall", "--pods --dry-run");
    assert!(
        told.stdout.contains("would remove the ports of 2 pods"),
        "{told:?}"
    );
    assert!(node.path(PLUGIN).exists() && node.path(CONF).exists());

    let gone = podwire(&node, "uninstall", "");
    assert!(gone.status.success(), "{gone:?}");
    assert!(!node.path(PLUGIN).exists() && !node.path(CONF).exists());
    for left in ["left: the ports of 2 pods", "50-mine.conf", "/run/podwire"] {
        assert!(gone.stdout.contains(left), "{left}: {}", gone.stdout);
    }
    assert_eq!(node.leftovers().links.len(), 2);

    let gone = podwire(&node, "uninstall", "--pods");
    assert!(gone.stdout.contains("ports of 2 pods removed"), "{gone:?}");
    node.leftovers().assert_none();

    assert!(install(&node, "").status.success());
    agent.stop();
    let asked = podwire(&node, "uninstall", "--pods");
    assert!(
        !asked.status.success()
            && asked
                .stderr
                .contains("nothing was removed, because --pods needs the agent"),
        "{asked:?}"
    );
    assert!(node.path(PLUGIN).exists() && node.path(CONF).exists());
    assert!(
        podwire(&node, "uninstall", "").status.success(),
        "without --pods nobody is needed"
    );
    assert!(!node.path(PLUGIN).exists() && !node.path(CONF).exists());
}

#[test]
fn uninstall_without_an_agent_takes_the_node_from_new_pods_and_waits_for_one_to_remove_the_ports() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    assert!(install(&node, "").status.success());
    let pod = node.pod("web");
    exec_installed(&pod, &node, "ADD").success();
    agent.stop();

    let flags = ["uninstall", "--pods", "--await-agent", "--root", ROOT];
    let waits = node.podwire_live(flags);
    waits.await_line(&["waiting for podwire's agent", "apply its DaemonSet again"]);
    assert!(!node.path(CONF).exists(), "no new pods");
    assert!(node.path(PLUGIN).exists());
    let ended = node.podwire_live(flags);
    ended.await_line(&["waiting for podwire's agent"]);
    ended.terminate();
    assert!(ended.await_end().success());

    let agent = node.start_agent(&AgentOptions::default());
    waits.await_line(&["ports of 1 pod removed"]);
    assert!(waits.await_end().success());
    assert!(!node.path(PLUGIN).exists() && !node.path(CONF).exists());
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn an_agent_names_portmap_in_its_conf_where_the_node_has_it() {
    const PORTMAP: &str = "/run/scratch/opt/cni/bin/portmap";
    let node = TestNode::with_ovs();
    assert!(install(&node, "--plugin-only").status.success());
    let conf = json!({
        "cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0"], "name": "pods",
        "plugins": [
            {"type": "podwire-cni"},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    write(&node, "/run/etc/10-podwire.conflist", &conf.to_string());
    let options = AgentOptions::default().with(
        "--install-conf /run/etc/10-podwire.conflist --cni-conf-dir \
         /run/scratch/etc/cni/net.d --cni-bin-dir /run/scratch/opt/cni/bin",
    );
    let installed = || -> Value { serde_json::from_str(&read(&node, CONF)).unwrap() };
    let agent = podwire_tests::Agent::launch(&node, &options).unwrap();
    agent.await_log("10-podwire.conflist installed");
    agent.await_log("hostPort of containers does not work: /run/scratch/opt/cni/bin/portmap");
    assert_eq!(installed()["plugins"], json!([{"type": "podwire-cni"}]));
    assert_eq!(installed()["cniVersions"], conf["cniVersions"]);
    agent.stop();
    fs::remove_file(node.path(CONF)).unwrap();

    let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#;
    let asked = "test \"$CNI_COMMAND\" = VERSION && grep -q cniVersion";
    write(
        &node,
        PORTMAP,
        &format!("#!/bin/sh\n{asked} && echo '{answer}'\n"),
    );
    fs::set_permissions(node.path(PORTMAP), fs::Permissions::from_mode(0o755)).unwrap();
    let agent = podwire_tests::Agent::launch(&node, &options).unwrap();
    agent.await_file(CONF);
    assert_eq!(installed()["plugins"], conf["plugins"]);
    assert_eq!(installed()["cniVersions"], json!(["0.4.0", "1.0.0"]));
    fs::remove_file(node.path(PORTMAP)).unwrap();
    agent.await_log("/run/scratch/opt/cni/bin/portmap is missing");
    agent.stop();
}

#[test]
fn an_agent_installs_its_conf_when_it_can_serve_and_tells_when_ovn_kubernetes_comes_back() {
    let node = TestNode::new();
    let conf = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "podwire-cni"}]});
    write(&node, "/run/etc/10-podwire.conflist", &conf.to_string());
    let options = AgentOptions::default().with(
        "--install-conf /run/etc/10-podwire.conflist --cni-conf-dir \
         /run/scratch/etc/cni/net.d --cni-bin-dir /run/scratch/opt/cni/bin",
    );
    let agent = podwire_tests::Agent::launch(&node, &options).unwrap();
    assert!(!node.path(CONF).exists());
    assert!(install(&node, "--plugin-only").status.success());
    node.start_ovsdb_server();
    node.start_vswitchd();
    agent.await_log("10-podwire.conflist installed");
    assert_eq!(mode(&node, CONF), 0o600);

    let theirs = r#"{"cniVersion":"0.4.0","name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay"}"#;
    write(
        &node,
        "/run/scratch/etc/cni/net.d/10-ovn-kubernetes.conf",
        theirs,
    );
    agent.await_log("10-ovn-kubernetes.conf sorts before");
    fs::remove_file(node.path("/run/scratch/etc/cni/net.d/10-ovn-kubernetes.conf")).unwrap();
    fs::write(node.path("/run/other"), "theirs").unwrap();
    fs::rename(node.path("/run/other"), node.path(PLUGIN)).unwrap();
    agent.await_log("is not podwire's plugin any more");
    agent.stop();
    assert!(node.path(CONF).exists());
}
