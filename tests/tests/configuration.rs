//! A running agent's configuration: changed under load, refused, swapped as a ConfigMap is,
//! detected from the node.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::Signal;
use podwire_tests::ovn::Central;
use podwire_tests::{Agent, AgentOptions, CONFIG, Pod, TestNode, agent_binary, links, traffic};

fn start<'node>(node: &'node TestNode, text: &str) -> Agent<'node> {
    node.configure(text);
    node.start_agent(&AgentOptions::default().configured())
}

/// The MTU and the IPv4 address that a new pod gets.
fn wired(pod: &Pod<'_>) -> (u64, String) {
    let result = pod.add().success();
    let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
    let link = links::find(pod.place(), "eth0").unwrap();
    (link.mtu, address)
}

fn wire(node: &TestNode, name: &str) -> (u64, String) {
    let pod = node.pod(name);
    let wired = wired(&pod);
    pod.del().success();
    wired
}

#[test]
fn settings_change_under_load_and_no_add_is_refused_meanwhile() {
    let node = TestNode::with_ovs();
    let agent = start(&node, "mtu = 1400\nsubnets = ['10.1.0.0/24']");
    let older = node.pod("older");
    assert_eq!(wired(&older), (1400, "10.1.0.2/24".to_owned()));
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..2 {
            let (node, enough) = (&node, &enough);
            scope.spawn(move || {
                for number in 0.. {
                    let (mtu, address) = wire(node, &format!("pod-{worker}-{number}"));
                    assert!((1300..=1500).contains(&mtu), "{mtu}");
                    assert!(address.starts_with("10.1.0.") || address.starts_with("10.2.0."));
                    if enough.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        // Whatever happens here, the others must end.
        let _enough = Enough(&enough);
        for mtu in (1300..1400).step_by(10).rev() {
            node.configure(&format!("mtu = {mtu}\nsubnets = ['10.1.0.0/24']"));
            agent.await_log(&format!("to {mtu} "));
        }
        for (text, said) in [
            (
                "mtu = 1300\nsubnets = ['10.2.0.0/24']",
                "subnets from 10.1.0.0/24 to 10.2.0.0/24",
            ),
            (
                "mtu = 1500\nsubnets = ['10.1.0.0/24,range=10.1.0.2-10.1.0.2', \
                 '10.2.0.0/24']\nadd-timeout = 20",
                "add-timeout from 30 to 20",
            ),
        ] {
            node.configure(text);
            agent.await_log(said);
        }
    });
    let (mtu, address) = wire(&node, "later");
    assert_eq!(mtu, 1500);
    // The one address for pods of the subnet that came back is held by who has had it all the time.
    assert!(address.starts_with("10.2.0."), "{address}");
    agent.await_log("\"10.1.0.1/24,10.2.0.1/24\"");
    let gateways = links::addresses(node.place(), "br-int");
    assert!(gateways.contains(&"10.2.0.1/24".to_owned()), "{gateways:?}");
    traffic::ping(older.place(), "10.1.0.1".parse().unwrap(), 2).unwrap();
    assert!(!agent.log().contains("refused"));
    older.del().success();
    node.leftovers().assert_none();
}

/// Sets a flag when the test goes on or fails.
struct Enough<'a>(&'a AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_is_not_valid_is_refused_whole_and_the_old_settings_stay() {
    let node = TestNode::with_ovs();
    let agent = start(&node, "mtu = 1400");
    for (text, said) in [
        (
            "mtu = 1300\nadd-timeout = 0",
            "line 2: add-timeout = 0: at least 1 second",
        ),
        ("mtu = 1300\nmtuu = 1", "line 2: there is no setting"),
        ("mtu = 1300\nlog = 'inof'", "line 2: log = inof"),
        ("mtu = [", "line 1: "),
        (
            "mtu = 1300\nsubnets = ['10.1.0.0/24', '10.1.0.0/25']",
            "overlap",
        ),
    ] {
        node.configure(text);
        agent.await_log(said);
        assert_eq!(wire(&node, "pod").0, 1400);
    }
    assert!(agent.log().contains("the old settings stay"));
    node.configure("mtu = 1300");
    agent.await_log("mtu from 1400 to 1300");
    assert_eq!(wire(&node, "pod").0, 1300);
    // A file that goes away says nothing any more; but this one was named, and so must be there.
    fs::remove_file(node.path(CONFIG)).unwrap();
    agent.await_log("podwire.toml: No such file");
    assert_eq!(wire(&node, "pod").0, 1300);
}

#[test]
fn a_configmap_that_is_swapped_takes_effect() {
    let node = TestNode::with_ovs();
    let at = |path: &str| node.path(&format!("/run/map/{path}"));
    for (version, mtu) in [("..1", 1400), ("..2", 1300)] {
        fs::create_dir_all(at(version)).unwrap();
        fs::write(at(version).join("podwire.toml"), format!("mtu = {mtu}")).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/podwire.toml", at("podwire.toml")).unwrap();
    let options = AgentOptions::default().with("--config /run/map/podwire.toml");
    let agent = node.start_agent(&options);
    assert_eq!(wire(&node, "pod").0, 1400);
    // As kubelet does it.
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    agent.await_log("mtu from 1400 to 1300");
    assert_eq!(wire(&node, "pod").0, 1300);
}

#[test]
fn a_change_that_was_taken_back_needs_no_restart() {
    let node = TestNode::with_ovs();
    let agent = start(&node, "mtu = 1400");
    node.configure("bridge = 'br-other'");
    agent.await_log("needs a restart of the agent: bridge from br-int to br-other");
    node.configure("mtu = 1400");
    agent.await_log("no restart is needed");
    let log = agent.log();
    assert!(!log.contains("bridge from br-other"), "{log}");
}

#[test]
fn a_token_of_the_command_line_is_used_and_can_not_be_read_off_it() {
    let node = TestNode::with_ovs();
    for flag in [
        "--k8s-token secret",
        "--k8s-token=secret",
        "-k8s-token=secret",
    ] {
        let agent = node.start_agent(&AgentOptions::default().with(flag));
        let of = |file: &str| fs::read(format!("/proc/{}/{file}", agent.pid())).unwrap();
        let text = String::from_utf8_lossy(&of("cmdline")).into_owned();
        assert!(
            text.contains("--k8s-token=(hidden)") && !text.contains("secret"),
            "{text:?}"
        );
        let environment = String::from_utf8_lossy(&of("environ")).into_owned();
        assert!(environment.contains("=secret"));
        agent.stop();
    }
}

#[test]
fn what_needs_a_restart_is_said_and_waits_for_it() {
    let node = TestNode::with_ovs();
    let agent = start(&node, "mtu = 1400");
    node.configure("mtu = 1300\nbridge = 'br-other'");
    agent.await_log("needs a restart of the agent: bridge from br-int to br-other");
    // The rest did not wait.
    assert_eq!(wire(&node, "pod").0, 1300);
    let bridges = |node: &TestNode| node.ovsdb_rows("Bridge").len();
    assert_eq!(bridges(&node), 1);
    let _agent = agent.kill_and_restart();
    wire(&node, "pod");
    assert_eq!(bridges(&node), 2);
}

#[test]
fn another_level_counts_at_once_and_is_said_by_the_louder_of_the_two() {
    let node = TestNode::with_ovs();
    let agent = start(&node, "");
    node.configure("log = 'warn'");
    agent.await_log("log from info to warn");
    let before = agent.log();
    wire(&node, "quiet");
    assert_eq!(agent.log(), before);
    node.configure("log = 'debug'");
    agent.await_log("log from warn to debug");
    wire(&node, "loud");
    agent.await_log("\"level\":\"DEBUG\"");
}

#[test]
fn a_sighup_has_the_log_go_on_in_a_new_file() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default().with("--log-file /run/podwire.log"));
    let log = |name: &str| fs::read_to_string(node.path(name)).unwrap_or_default();
    assert!(log("/run/podwire.log").contains("\"serving\""));
    fs::rename(
        node.path("/run/podwire.log"),
        node.path("/run/podwire.log.1"),
    )
    .unwrap();
    agent.signal(Signal::SIGHUP);
    // Signals are taken up in order with nothing else; a pod's line shows which file is written.
    agent.await_file("/run/podwire.log");
    wire(&node, "pod");
    assert!(log("/run/podwire.log").contains("pod"));
    assert!(log("/run/podwire.log.1").contains("SIGHUP"));
    assert!(agent.log().is_empty(), "nothing goes to standard error");
}

#[test]
fn pods_get_the_uplinks_mtu_and_follow_it_when_nobody_names_one() {
    let node = TestNode::with_ovs();
    let ip = |line: &str| node.run("ip", line);
    for (link, mtu, address) in [
        ("up0", 1450, "192.0.2.1/24"),
        ("up1", 1350, "198.51.100.1/24"),
    ] {
        ip(&format!(
            "link add {link} mtu {mtu} type veth peer name {link}-peer"
        ));
        // Its routes would tell of another MTU as well, and a node need not have any.
        let knob = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
        node.place().run(|| fs::write(knob, "1")).unwrap();
        ip(&format!("address add {address} dev {link}"));
        ip(&format!("link set {link} up"));
        ip(&format!("link set {link}-peer up"));
    }
    ip("route add default via 192.0.2.254 dev up0");
    let agent = node.start_agent(&AgentOptions::default());
    assert_eq!(wire(&node, "pod").0, 1450);
    ip("link set up0 mtu 1440");
    agent.await_log("\"mtu\":1440");
    assert_eq!(wire(&node, "pod").0, 1440);
    ip("route replace default via 198.51.100.254 dev up1");
    agent.await_log("\"mtu\":1350");
    assert_eq!(wire(&node, "pod").0, 1350);
    // The bridge is a gateway for pods of either size.
    ip("link set up1 mtu 1600");
    agent.await_log("\"mtu\":1600");
    let pod = node.pod("large");
    assert_eq!(wired(&pod).0, 1600);
    node.await_vswitchd();
    assert_eq!(links::find(node.place(), "br-int").unwrap().mtu, 1600);
}

#[test]
fn in_ovn_mode_the_tunnels_overhead_is_taken_off_the_uplinks_mtu() {
    let (central, node) = Central::with_node();
    let agent = node.start_agent(&AgentOptions::default().with("--mode ovn"));
    let (first, _) = central.schedule(&node, "web", 11);
    assert_eq!(wired(&first).0, 1500 - 58);
    // OVN takes for each pair of nodes the best that both have.
    node.set_key("ovn-encap-type", "geneve,stt");
    agent.await_log("\"mtu\":1428");
    let (second, _) = central.schedule(&node, "db", 12);
    assert_eq!(wired(&second).0, 1500 - 72);
}

#[test]
fn the_settings_and_where_they_come_from_are_shown_also_to_who_calls_ovnkube() {
    let dir = tempfile::tempdir().unwrap();
    let ovnkube = dir.path().join("ovnkube");
    symlink(agent_binary(), &ovnkube).unwrap();
    let conf = dir.path().join("ovn_k8s.conf");
    fs::write(
        &conf,
        "[default]\nmtu=\"1350\" ; quoted\n[logging]\nloglevel=5",
    )
    .unwrap();
    let output = Command::new(&ovnkube)
        .args(["-init-node", "n1", "-config-file"])
        .arg(&conf)
        .args([
            "-loglevel=3",
            "-k8s-apiserver",
            "https://192.0.2.1:6443",
            "-print-config",
        ])
        .env("K8S_TOKEN", "secret")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let conf = conf.display().to_string();
    for (setting, origin) in [
        ("mode = \"ovn\"", "follows from --init-node"),
        ("node-name = \"n1\"", "--init-node"),
        ("mtu = 1350", &format!("{conf}, line 2: [default] mtu")),
        ("log = \"warn\"", "--loglevel"),
        ("# k8s-token = …", "$K8S_TOKEN (secret)"),
        ("add-timeout = 30", "default"),
    ] {
        let line = printed.lines().find(|line| line.starts_with(setting));
        let line = line.unwrap_or_else(|| panic!("{setting} is not in\n{printed}"));
        assert_eq!(
            line.split_once(" # ").map(|(_, origin)| origin),
            Some(origin),
            "{line}"
        );
    }
    let refused = Command::new(&ovnkube)
        .arg("-init-master=m1")
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        words.contains("control plane") && words.contains("is podwire-controller or ovnkube"),
        "{words}"
    );
}
