//! `podwire bundle`: one file with everything about a node, and no secret in it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::Signal;
use podwire_tests::machine::Machine;
use podwire_tests::{AgentOptions, TestNode};
use serde_json::{Value, json};

/// A node of a test does not have them at the usual places.
const CNI: &str = "--conf-dir /run/cni/net.d --bin-dir /run/cni/bin";

/// Where the test puts each of them.
const SECRETS: [&str; 4] = ["opensesame", "swordfish", "sim-sala-bim", "hunter2hunter2"];

/// All files below a directory, by their path in it.
fn files(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
            let name = path.strip_prefix(directory).unwrap().display().to_string();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

#[track_caller]
fn of<'a>(files: &'a [(String, String)], name: &str) -> &'a str {
    let found = files.iter().find(|(file, _)| file == name);
    let names: Vec<&String> = files.iter().map(|(name, _)| name).collect();
    &found.unwrap_or_else(|| panic!("no {name} in {names:?}")).1
}

#[test]
fn a_bundle_has_everything_and_no_secret() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default()
        .with("--log-file /run/podwire.log")
        .variable("K8S_TOKEN", SECRETS[0]);
    let _agent = node.start_agent(&options);
    let pod = node.added_pod("web");
    node.vsctl(format!(
        "add-port br-int tun -- set interface tun type=geneve options:remote_ip=192.0.2.1 \
         options:psk={}",
        SECRETS[1]
    ));
    for directory in ["/run/cni/net.d", "/run/cni/bin"] {
        fs::create_dir_all(node.path(directory)).unwrap();
    }
    for line in [
        "route add blackhole 198.51.100.0/24 table 77".to_owned(),
        "-6 route add 2001:db8:1::/48 dev lo metric 9".to_owned(),
        "-6 rule add from 2001:db8::/32 fwmark 7 lookup 77 priority 99".to_owned(),
        format!(
            "neigh add 192.0.2.7 lladdr 02:00:00:00:00:07 dev {} nud permanent",
            pod.host_link()
        ),
    ] {
        node.run("ip", line);
    }
    let conf = format!(
        r#"{{"name":"pods","type":"other","k8s_auth_token":"{}"}}"#,
        SECRETS[2]
    );
    fs::write(node.path("/run/cni/net.d/20-other.conf"), conf).unwrap();
    let log = node.path("/run/podwire.log");
    let said = format!(
        "{}url=https://me:{}@api:6443\n",
        fs::read_to_string(&log).unwrap(),
        SECRETS[3]
    );
    fs::write(&log, said).unwrap();

    let line = format!("cd /run && podwire bundle b.tar.gz {CNI} && tar -xzf b.tar.gz");
    let done = node.shell(&line);
    assert!(done.status.success(), "{done:?}");
    assert!(
        done.stdout.starts_with("wrote b.tar.gz with "),
        "{}",
        done.stdout
    );
    let mode = node
        .path("/run/b.tar.gz")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = files(&node.path("/run/b"));
    for (name, text) in &files {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} is in {name}:\n{text}");
        }
    }
    let neighbour = format!(
        "192.0.2.7 dev {} lladdr 02:00:00:00:00:07 permanent",
        pod.host_link()
    );
    for (name, words) in [
        ("agent/status.json", "\"ready\": true"),
        ("agent/ports.json", "tests/web"),
        ("agent/timings.json", "make pair"),
        ("agent/check.json", "tests/web"),
        ("agent/leftovers.json", "qosRows"),
        ("agent/metrics.txt", "podwire_operations"),
        ("agent/config.txt", "# k8s-token = …"),
        ("agent/log.txt", "url=https://(removed)@api:6443"),
        ("doctor.txt", "ok    Open vSwitch"),
        ("version.json", env!("CARGO_PKG_VERSION")),
        ("openvswitch/rows.txt", "psk=(removed)"),
        ("openvswitch/dpif-show.txt", "br-int"),
        ("openvswitch/bridge-dump-flows.txt", "table_id=240"),
        ("machine/ovs-vswitchd-limits.txt", "Max open files"),
        ("machine/links.txt", pod.host_link()),
        ("machine/addresses.txt", "lo inet 127.0.0.1/8 scope host"),
        ("machine/addresses.txt", "lo inet6 ::1/128 scope host"),
        (
            "machine/routes.txt",
            "table 77 inet blackhole 198.51.100.0/24 proto boot",
        ),
        (
            "machine/routes.txt",
            "table local inet local 127.0.0.1/32 dev lo",
        ),
        (
            "machine/routes.txt",
            "table main inet6 2001:db8:1::/48 dev lo proto boot scope universe metric 9",
        ),
        ("machine/rules.txt", "inet 32766: from all lookup main"),
        (
            "machine/rules.txt",
            "inet6 99: from 2001:db8::/32 fwmark 0x7 lookup 77 proto unspec",
        ),
        ("machine/neighbours.txt", &neighbour),
        ("machine/sysctls.txt", "net.ipv4.ip_forward = "),
        ("cni/20-other.conf", r#""k8s_auth_token":"(removed)""#),
    ] {
        let text = of(&files, name);
        assert!(text.contains(words), "{words} is not in {name}:\n{text}");
    }
    let index: Value = serde_json::from_str(of(&files, "bundle.json")).unwrap();
    assert_eq!(index["missing"], json!([]), "{index:#}");
    // Open vSwitch writes its log elsewhere here.
    let absent = index["absent"].as_array().unwrap();
    let of_switch = |it: &Value| it["file"] == "openvswitch/log.txt";
    assert!(absent.iter().any(of_switch), "{index:#}");

    let again = node.shell("cd /run && podwire bundle b.tar.gz");
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(
        again.stderr.contains("write b.tar.gz: "),
        "{}",
        again.stderr
    );
}

#[test]
fn the_node_role_s_state_is_in_the_bundle() {
    let machine = Machine::new();
    let run = machine.start_run("");
    let node = machine.node();
    node.run("ip", "address del 10.244.1.2/24 dev ovn-k8s-mp0");
    run.await_log("restored address 10.244.1.2/24", 1);
    machine.await_well();
    // No agent runs there.
    let done = node.shell("podwire bundle /run/b");
    done.assert_says(Some(1), &["without agent/status.json: no agent answers"]);
    let files = files(&node.path("/run/b"));
    for (name, words) in [
        ("node/role.json", "\"item\": \"address 10.244.1.2/24"),
        ("node/journal.txt", "ovn-k8s-mp0"),
        ("node/nftables.txt", "table inet podwire-node"),
    ] {
        let text = of(&files, name);
        assert!(text.contains(words), "{words} is not in {name}:\n{text}");
    }
    run.stop();
    machine.cleanup("");
}

#[test]
fn without_an_agent_the_rest_is_written_and_what_is_missing_is_said() {
    let node = TestNode::with_ovs();
    let done = node.podwire("bundle /run/b");
    let missing = "without agent/status.json: no agent answers on /run/podwire/agent.sock";
    done.assert_says(Some(1), &[missing]);
    let files = files(&node.path("/run/b"));
    assert!(of(&files, "openvswitch/rows.txt").contains("Open_vSwitch"));
    assert!(of(&files, "doctor.txt").contains("WRONG agent"));
}

/// The node that somebody needs a bundle of is the one on which something hangs.
#[test]
fn daemons_that_hang_are_missing_with_the_reason_and_the_rest_is_written() {
    let node = TestNode::with_ovs();
    for directory in ["/run/cni/net.d", "/run/cni/bin"] {
        fs::create_dir_all(node.path(directory)).unwrap();
    }
    let agent = node.start_agent(&AgentOptions::default());
    let _pod = node.added_pod("web");
    node.signal_vswitchd(Signal::SIGSTOP);
    let done = node.podwire(format!("bundle /run/a {CNI}"));
    let first = "without openvswitch/version.txt: /var/run/openvswitch/ovs-vswitchd.";
    let rest = "without openvswitch/bridge-dump-flows.txt: not asked: /var/run/openvswitch/";
    done.assert_says(Some(1), &[first, "did not answer version within", rest]);
    let a = files(&node.path("/run/a"));
    let index: Value = serde_json::from_str(of(&a, "bundle.json")).unwrap();
    let missing = index["missing"].as_array().unwrap();
    let of_switch = |it: &Value| it["file"].as_str().unwrap().starts_with("openvswitch/");
    assert!(missing.iter().all(of_switch), "{index:#}");
    assert_eq!(missing.len(), 8, "{index:#}");
    for (name, words) in [
        ("agent/ports.json", "tests/web"),
        ("openvswitch/rows.txt", "br-int"),
        ("doctor.txt", "WRONG Open vSwitch"),
        ("machine/routes.txt", "table "),
    ] {
        let text = of(&a, name);
        assert!(text.contains(words), "{words} is not in {name}:\n{text}");
    }

    agent.signal(Signal::SIGSTOP);
    node.signal_ovsdb_server(Signal::SIGSTOP);
    let done = node.podwire(format!("bundle /run/b {CNI}"));
    let words = [
        "without agent/status.json: /v1/status on ",
        "without agent/metrics.txt: not asked: /v1/status on ",
        "without openvswitch/rows.txt: ",
    ];
    done.assert_says(Some(1), &words);
    let b = files(&node.path("/run/b"));
    assert!(of(&b, "doctor.txt").contains("WRONG agent"));
    assert!(of(&b, "machine/rules.txt").contains("lookup main"));
    node.signal_ovsdb_server(Signal::SIGCONT);
    node.signal_vswitchd(Signal::SIGCONT);
    agent.signal(Signal::SIGCONT);
}

#[test]
fn a_bundle_goes_to_standard_output_and_not_into_a_directory_named_like_an_archive() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let line = "cd /run && podwire bundle - 2>said | tar -xz && cat said podwire/version.json";
    let done = node.shell(line);
    assert!(done.status.success(), "{done:?}");
    assert!(done.stdout.contains("wrote - with "), "{}", done.stdout);
    assert!(done.stdout.contains(env!("CARGO_PKG_VERSION")));
    for name in ["b.zip", "b.tgz"] {
        let done = node.podwire(format!("bundle /run/{name}"));
        done.assert_says(Some(1), &[name, "no .tar.gz"]);
        assert!(!node.path(&format!("/run/{name}")).exists());
    }
}
