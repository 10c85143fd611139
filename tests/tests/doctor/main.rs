//! `podwire doctor` alone brings broken nodes to their mended state: its own commands are run, in its own order, until it
//! finds nothing more.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::os::unix::fs::PermissionsExt as _;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, annotation, links, plugin_binary};
use serde_json::{Value, json};

const CONF_DIR: &str = "/run/cni/net.d";
const BIN_DIR: &str = "/run/cni/bin";
/// A finding may hide behind another, but not many deep.
const ROUNDS: usize = 6;

/// A node with the runtime's directories, and with who plays the parts of systemd and the control plane there: neither
/// is to be had on a machine that only runs tests.
struct Patient<'node> {
    node: &'node TestNode,
    agent: Option<Agent<'node>>,
    options: AgentOptions,
    /// Runs what a unit or the control plane would: true when the command was one of theirs.
    others: Box<dyn Fn(&str) -> bool + 'node>,
    followed: Vec<String>,
}

impl<'node> Patient<'node> {
    /// With the plugin installed, no configuration, and no agent.
    fn new(node: &'node TestNode, options: AgentOptions) -> Patient<'node> {
        for directory in [CONF_DIR, BIN_DIR] {
            std::fs::create_dir_all(node.path(directory)).unwrap();
        }
        let plugin = node.path(&format!("{BIN_DIR}/podwire-cni"));
        std::fs::copy(plugin_binary().unwrap(), plugin).unwrap();
        Patient {
            node,
            agent: None,
            options,
            others: Box::new(|_| false),
            followed: Vec::new(),
        }
    }

    /// With a configuration and a running agent as well: nothing is wrong with it.
    fn healthy(node: &'node TestNode, options: AgentOptions) -> Patient<'node> {
        let mut patient = Self::new(node, options);
        patient.write_conf("10-podwire.conf", r#"{"name":"pods","type":"podwire-cni"}"#);
        patient.start_agent();
        let (code, findings) = patient.ask();
        assert_eq!(
            (code, findings),
            (Some(0), vec![]),
            "before anything was broken"
        );
        patient
    }

    fn write_conf(&self, name: &str, text: &str) {
        std::fs::write(self.node.path(&format!("{CONF_DIR}/{name}")), text).unwrap();
    }

    fn start_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().unwrap();
        }
        self.agent = Some(self.node.start_agent(&self.options).unwrap());
    }

    /// Its exit code, and what is wrong: words and commands.
    fn ask(&self) -> (Option<i32>, Vec<(String, Vec<String>)>) {
        let arguments = [
            "doctor",
            "-o",
            "json",
            "--conf-dir",
            CONF_DIR,
            "--bin-dir",
            BIN_DIR,
        ];
        let (code, examined) = self.node.podwire_json(&arguments).unwrap();
        let findings = examined.as_array().unwrap().iter();
        let findings = findings.flat_map(|it| it["findings"].as_array().unwrap());
        let text = |it: &Value| it.as_str().unwrap().to_owned();
        let wrong = findings.filter(|it| it["wrong"] == true).map(|it| {
            let mend = it["fix"].as_array().unwrap().iter().map(text).collect();
            (text(&it["what"]), mend)
        });
        (code, wrong.collect())
    }

    /// Follows the doctor until it finds nothing; it must have said these words at first.
    fn healthy_after(&mut self, words: &[&str]) {
        for round in 0..ROUNDS {
            let (code, findings) = self.ask();
            if round == 0 {
                let said = format!("{findings:#?}");
                assert!(!findings.is_empty(), "nothing found, of {words:?}");
                for word in words {
                    assert!(said.contains(word), "{word:?} is not in {said}");
                }
            }
            assert_eq!(code, Some(i32::from(!findings.is_empty())));
            let Some((what, mend)) = findings.into_iter().next() else {
                return;
            };
            assert!(!mend.is_empty(), "no command mends: {what}");
            for command in mend {
                self.follow(&command);
            }
        }
        panic!(
            "still wrong after {:#?}: {:#?}",
            self.followed,
            self.ask().1
        );
    }

    fn follow(&mut self, command: &str) {
        self.followed.push(command.to_owned());
        match command {
            "systemctl restart openvswitch-switch" => {
                let _ = self.node.kill_vswitchd();
                let _ = self.node.kill_ovsdb_server();
                self.node.start_ovsdb_server().unwrap();
                self.node.start_vswitchd().unwrap();
                if let Some(agent) = &self.agent {
                    agent.await_ready(true).unwrap();
                }
            }
            _ if command.ends_with("podwire agent &") => self.start_agent(),
            _ if (self.others)(command) => {}
            _ => {
                let done = self.node.shell(command).unwrap();
                assert!(done.status.success(), "{command}: {}", done.stderr);
                if command.contains("podwire.toml") {
                    let agent = self.agent.as_ref().unwrap();
                    agent.await_log("changed: ").unwrap();
                }
            }
        }
    }

    /// A pod is wired and let go again.
    fn serves(&self) {
        let pod = self.node.pod("probe").unwrap();
        pod.add().unwrap().success().unwrap();
        pod.del().unwrap().success().unwrap();
    }

    /// For what its commands alone can't mend.
    fn complains_of(&self, words: &str) {
        let said = format!("{:#?}", self.ask().1);
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

fn with_ovs() -> TestNode {
    TestNode::with_ovs().unwrap()
}

fn wired<'node>(node: &'node TestNode, name: &str) -> Pod<'node> {
    let pod = node.pod(name).unwrap();
    pod.add().unwrap().success().unwrap();
    pod
}

#[test]
fn a_node_with_nothing_but_the_plugin() {
    let node = TestNode::new().unwrap();
    let mut patient = Patient::new(&node, AgentOptions::default());
    patient.healthy_after(&[
        "its database does not answer",
        "no agent answers",
        "has no configuration",
    ]);
    let conf = std::fs::read_to_string(node.path("/run/cni/net.d/10-podwire.conflist")).unwrap();
    assert!(conf.contains("podwire-cni"), "{conf}");
    patient.serves();
}

#[test]
fn no_bridge_and_no_agent() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.agent.take().unwrap().stop().unwrap();
    node.vsctl(&["del-br", "br-int"]).unwrap();
    patient.healthy_after(&["bridge br-int is missing; the agent makes it"]);
    patient.serves();
}

#[test]
fn open_vswitch_stopped_killed_and_hung() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let _pod = wired(&node, "web");
    node.stop_vswitchd().unwrap();
    node.stop_ovsdb_server().unwrap();
    patient.healthy_after(&["its database does not answer"]);
    node.kill_vswitchd().unwrap();
    patient.healthy_after(&["ovs-vswitchd does not answer"]);
    node.signal_vswitchd(nix::sys::signal::Signal::SIGSTOP)
        .unwrap();
    patient.healthy_after(&["ovs-vswitchd does not answer"]);
    patient.serves();
}

#[test]
fn an_agent_that_died_and_rows_whose_links_are_gone() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let pod = wired(&node, "web");
    patient.agent.take().unwrap().kill().unwrap();
    node.run("ip", &["link", "del", &pod.container[..15]])
        .unwrap();
    patient.healthy_after(&["no agent answers", "1 ports of podwire's have no link"]);
    patient.serves();
}

#[test]
fn rights_of_the_socket_and_of_its_directory() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let mode = |path: &str| {
        std::fs::metadata(node.path(path))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    node.shell("chmod 666 /run/podwire/agent.sock; chmod 755 /run/podwire; chown 1 /run/podwire/agent.sock")
        .unwrap();
    patient.healthy_after(&["has mode 666", "has mode 755", "belongs to uid 1"]);
    assert_eq!(mode("/run/podwire/agent.sock"), 0o600);
    assert_eq!(mode("/run/podwire"), 0o700);
}

#[test]
fn ovn_kubernetes_configuration_before_ours_and_its_binary_over_ours() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let overlay =
        json!({"cniVersion": "0.4.0", "name": "ovn-kubernetes", "type": "ovn-k8s-cni-overlay"});
    patient.write_conf("10-ovn-kubernetes.conf", &overlay.to_string());
    std::fs::write(
        node.path(&format!("{BIN_DIR}/ovn-k8s-cni-overlay")),
        "theirs",
    )
    .unwrap();
    patient.healthy_after(&[
        "10-ovn-kubernetes.conf (ovn-k8s-cni-overlay)",
        "sorts before",
    ]);
    assert_eq!(
        patient.followed,
        ["mv /run/cni/net.d/10-podwire.conf /run/cni/net.d/05-podwire.conf"]
    );
    std::fs::remove_file(node.path(&format!("{CONF_DIR}/05-podwire.conf"))).unwrap();
    patient.healthy_after(&["which is ovn-kubernetes' own plugin"]);
    let [ours, theirs] = ["podwire-cni", "ovn-k8s-cni-overlay"]
        .map(|name| std::fs::read(node.path(&format!("{BIN_DIR}/{name}"))).unwrap());
    assert!(ours == theirs);
}

/// No number sorts before `00-a`: what stands there is set aside.
#[test]
fn a_configuration_that_sorts_before_every_number() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    patient.write_conf("00-a.conf", r#"{"name":"b","type":"bridge"}"#);
    patient.healthy_after(&["00-a.conf (bridge), which sorts before"]);
    patient.write_conf("00-a.conf", r#"{"name":"b","type":"bridge"}"#);
    std::fs::remove_file(node.path(&format!("{CONF_DIR}/10-podwire.conf"))).unwrap();
    patient.healthy_after(&["no configuration names podwire"]);
    std::fs::remove_file(node.path(&format!("{CONF_DIR}/10-podwire.conflist"))).unwrap();
    patient.write_conf("00-q.conf", r#"{"name":"b","type":"bridge"}"#);
    patient.healthy_after(&["no configuration names podwire"]);
    assert!(patient.followed.last().unwrap().ends_with("--priority 00"));
}

#[test]
fn adds_that_fail_are_a_finding_until_the_pod_has_its_network() {
    let node = with_ovs();
    let patient = Patient::healthy(&node, AgentOptions::default());
    let pod = node.pod("web").unwrap();
    let mut conf = podwire_tests::conf();
    conf["args"] = json!({"cni": {"ips": ["10.186.0.1/22"]}});
    for _ in 0..4 {
        pod.exec("ADD", &conf).unwrap().error().unwrap();
    }
    patient.complains_of("the last ADD of tests/web failed");
    pod.add().unwrap().success().unwrap();
    assert_eq!(patient.ask(), (Some(0), vec![]));
}

#[test]
fn an_mtu_too_large_for_the_tunnel() {
    let node = with_ovs();
    std::fs::write(node.path("/run/podwire.toml"), "mtu = 1500\n").unwrap();
    let options = AgentOptions::default().with(["--config", "/run/podwire.toml"]);
    let mut patient = Patient::healthy(&node, options);
    let _pod = wired(&node, "web");
    node.shell(
        "ip link add underlay type veth peer other && ip link set underlay mtu 1500 up && \
         ip addr add 192.0.2.1/24 dev underlay && \
         ovs-vsctl set open_vswitch . external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=192.0.2.1",
    )
    .unwrap()
    .success("ip")
    .unwrap();
    patient.healthy_after(&["pods get MTU 1500", "underlay (MTU 1500) carries 1442"]);
    assert_eq!(
        patient.followed,
        ["sed -i -e '1i mtu = 1442' -e '/^ *mtu *=/d' /run/podwire.toml"]
    );
    let told = patient.node.podwire(&["doctor"]).unwrap().stdout;
    let old = "pods with a larger MTU than the 1442 that get through: 1";
    assert!(told.contains(old), "{told}");
    let new = wired(&node, "new");
    assert_eq!(links::find(new.place(), "eth0").unwrap().unwrap().mtu, 1442);
}

#[test]
fn checksum_offload_on_a_netdev_bridge_and_a_link_set_down() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let pod = wired(&node, "web");
    pod.run("ethtool", &["-K", "eth0", "tx", "on"]).unwrap();
    node.run("ip", &["link", "set", &pod.container[..15], "down"])
        .unwrap();
    patient.healthy_after(&["TX checksum offload", "is down"]);
}

#[test]
fn ports_left_over() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    let mut pod = wired(&node, "web");
    let host_end = links::LinkRecorder::start(node.place()).unwrap();
    pod.remove_netns().unwrap();
    host_end.await_gone(&pod.container[..15]).unwrap();
    patient.healthy_after(&["attachments left over: 1"]);
    assert_eq!(patient.followed, ["podwire gc"]);
    node.leftovers().unwrap().assert_none();
}

#[test]
fn an_annotation_that_does_not_come() {
    let (node, server) = ApiServer::beside_a_node().unwrap();
    let pod = node.pod("web").unwrap();
    server.apply(apiserver::pod_on("n1", &pod, json!({})));
    let annotations = annotation::default_network(&annotation::entry(11));
    let annotated = apiserver::pod_on("n1", &pod, annotations);
    let wired = std::sync::OnceLock::new();
    let mut patient = Patient::healthy(&node, server.watched_by("n1", "60"));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| {
            let added = pod.add().unwrap();
            wired.set(()).unwrap();
            added.success().unwrap()
        });
        let agent = patient.agent.as_ref().unwrap();
        agent.await_log("awaits its pod's annotation").unwrap();
        patient.others = Box::new(|command| {
            let is_theirs =
                command.starts_with("kubectl -n tests annotate pod web k8s.ovn.org/pod-networks=");
            if is_theirs {
                server.apply(annotated.clone());
                wired.wait();
            }
            is_theirs
        });
        patient.healthy_after(&["an ADD of pod tests/web waits for its network annotation"]);
        add.join().unwrap();
    });
}

#[test]
fn ovn_controller_gone_and_with_it_the_bridge() {
    let central = Central::start().unwrap();
    let node = central.node("node-a", 1).unwrap();
    let mut patient = Patient::healthy(&node, OvnNode::agent_options());
    patient.others = Box::new(|command| {
        let is_theirs = command == "systemctl restart ovn-controller";
        if is_theirs {
            let _ = node.end_controller(nix::sys::signal::Signal::SIGKILL);
            node.make_bridge().unwrap();
            node.start_controller().unwrap();
            central.await_chassis("node-a").unwrap();
        }
        is_theirs
    });
    node.end_controller(nix::sys::signal::Signal::SIGTERM)
        .unwrap();
    node.vsctl(&["--if-exists", "del-br", "br-int"]).unwrap();
    patient.healthy_after(&["bridge br-int is missing", "ovn-controller"]);

    node.set_key("ovn-bridge", "br-other").unwrap();
    node.vsctl(&["--if-exists", "del-br", "br-int"]).unwrap();
    patient.healthy_after(&["external_ids:ovn-bridge has ovn-controller use br-other"]);
    for key in ["ovn-encap-ip", "ovn-remote"] {
        node.vsctl(&["remove", "open_vswitch", ".", "external_ids", key])
            .unwrap();
        patient.complains_of(&format!("external_ids:{key} is not set"));
        patient.complains_of(&format!("external_ids:{key}="));
    }
}

#[test]
fn a_subnet_without_an_address_left_and_a_switch_without_descriptors() {
    let node = with_ovs();
    let options = AgentOptions::default().subnet("10.9.0.0/30");
    let patient = Patient::healthy(&node, options);
    let _pod = wired(&node, "web");
    patient.complains_of("subnet 10.9.0.0/30 has no address left");
    // Ports without links take no file; of each that has one the switch holds some.
    let mut ports = vec!["--no-wait".to_owned()];
    for number in 0..130 {
        ports.extend(["--", "add-port", "br-int"].map(str::to_owned));
        ports.push(format!("p{number}"));
    }
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    node.run("ovs-vsctl", &ports).unwrap();
    let pid = std::fs::read_to_string(node.path("/run/openvswitch/ovs-vswitchd.pid")).unwrap();
    node.run("prlimit", &["--nofile=256:256", "--pid", pid.trim()])
        .unwrap();
    patient.complains_of("may open 256 files and has 132 ports");
}

#[test]
fn a_plugin_that_can_not_be_run() {
    let node = with_ovs();
    let mut patient = Patient::healthy(&node, AgentOptions::default());
    node.run("chmod", &["644", "/run/cni/bin/podwire-cni"])
        .unwrap();
    patient.healthy_after(&["podwire-cni can't be run (mode 644)"]);
    assert_eq!(patient.followed, ["chmod 755 /run/cni/bin/podwire-cni"]);
}

#[test]
fn an_api_server_that_is_not_there() {
    let node = with_ovs();
    let patient = Patient::new(&node, AgentOptions::default());
    let url = ["--k8s-apiserver", "http://127.0.0.1:1", "--node-name", "n1"];
    let agent = Agent::launch(&node, &AgentOptions::default().with(url)).unwrap();
    agent.await_log("can't watch this node's pods").unwrap();
    patient.complains_of("the pods of http://127.0.0.1:1 for node n1 can't be read");
}
