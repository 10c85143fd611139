//! What `podwire node` tells Open vSwitch's daemons of processors and memory, and where tunnels
//! end.

use podwire_tests::machine::{Machine, await_well};
use podwire_tests::ovn::Central;
use serde_json::Value;

/// MicroShift's settings.
const TUNED: [&str; 7] = [
    "--ovs-cpus=0",
    "--ovs-no-mlockall",
    "--ovs-handler-threads",
    "1",
    "--ovs-revalidator-threads",
    "1",
    "--firewalld=off",
];

const UNIT: &str = "/etc/systemd/system/ovs-vswitchd.service.d/90-podwire.conf";

#[test]
fn open_vswitch_s_daemons_are_tuned_once_and_as_they_were_after_cleanup() {
    let machine = Machine::new();
    let node = machine.node();
    // The machine's own units stay out of it.
    let over = ["-t", "tmpfs", "none", "/etc/systemd/system"];
    node.run("mount", over);
    let files = || node.run("find", "/etc/systemd/system");
    let (before, files_before) = (machine.snapshot(), files());
    let made = machine.init(TUNED);
    assert!(made.contains(&format!("made file {UNIT}")), "{made}");
    let text = node.run("cat", UNIT);
    let lines: Vec<&str> = text.lines().collect();
    let [mark, "[Service]", "CPUAffinity=0", "ExecStart=", start] = &lines[..] else {
        panic!("{text}");
    };
    assert!(mark.starts_with("# Made by podwire node"), "{mark}");
    assert!(
        start.contains("ovs-ctl") && start.ends_with(" --no-mlockall"),
        "{start}"
    );
    let config = node.ovsdb_rows("Open_vSwitch")[0]["other_config"].clone();
    assert_eq!(config["n-revalidator-threads"], "1");
    assert_eq!(config["n-handler-threads"], "1");
    let again = machine.init(TUNED);
    assert!(again.starts_with("0 steps: 0 changes"), "{again}");
    await_well(node, machine.arguments("show", TUNED));

    // Somebody else's file of that name is not ours to replace.
    node.run("sh", ["-c", &format!("echo '[Service]' >{UNIT}")]);
    let refused = machine.podwire_node("init", TUNED);
    assert!(
        refused.stderr.contains("somebody else wrote it"),
        "{refused:?}"
    );
    node.run("rm", UNIT);
    machine.init(TUNED);
    // A reboot takes the journal.
    node.run("rm", "-r /run/podwire/node");
    machine.cleanup("--force");
    assert_eq!(files(), files_before);
    let after = machine.snapshot();
    for what in ["table Open_vSwitch", "files"] {
        let same = before.differences(&after);
        assert!(!same.iter().any(|it| it.starts_with(what)), "{same:#?}");
    }
}

/// A machine of the tests is a network namespace, where the kernel only shows the number.
#[test]
fn the_connection_tracking_table_is_refused_where_it_is_the_machine_s() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let refused = machine.podwire_node("init", ["--conntrack-buckets=8192", "--firewalld=off"]);
    let said = "and only the machine's own network namespace can change it";
    assert!(refused.stderr.contains(said), "{refused:?}");
    assert!(
        refused.stderr.contains("nf_conntrack_buckets"),
        "{refused:?}"
    );
    let same = before.differences(&machine.snapshot());
    assert!(same.is_empty(), "{same:#?}");
}

#[test]
#[ignore = "wants the machine's own network namespace: make test-kernel"]
fn the_connection_tracking_table_has_the_buckets_that_are_asked_for_until_cleanup() {
    const SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_buckets";
    const ASKED: &str = "8192";
    let machine = Machine::new();
    let node = machine.node();
    let number = || node.run("cat", SETTING).trim().to_owned();
    let before = number();
    assert_ne!(before, ASKED);
    let flags = ["--conntrack-buckets", ASKED, "--firewalld=off"];
    machine.init(flags);
    assert_eq!(number(), ASKED);
    await_well(node, machine.arguments("show", flags));
    // A tool for tuning writes its own number.
    node.run("sh", ["-c", &format!("echo 32768 >{SETTING}")]);
    let restored = machine.init(flags);
    assert!(restored.contains("nf_conntrack_buckets"), "{restored}");
    assert_eq!(number(), ASKED);
    // The virtual machine has no name that a node could have.
    machine.cleanup("--force --node-name node-a");
    assert_eq!(number(), before);
}

#[test]
fn tunnels_end_at_the_udp_port_that_is_named_also_after_ovn_controller_makes_its_rows_anew() {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let node = central.node_without_controller(name, number);
        node.make_bridge();
        node.start_controller();
        node
    });
    let line = |at: usize, verb: &str| -> Vec<String> {
        let node = &nodes[at];
        let name = ["node-a", "node-b"][at];
        let subnet = format!("10.128.{}.0/24", at + 1);
        let words = [
            "node",
            verb,
            "--mode",
            "ovn",
            "--node-name",
            name,
            "--interface",
            node.uplink(),
            "--node-subnet",
            &subnet,
            "--ovn-remote",
            "tcp:172.31.0.1:6642",
            "--encap-port",
            "8080",
        ];
        words.map(str::to_owned).to_vec()
    };
    let runs = [0, 1].map(|at| podwire_tests::NodeRun::start(&nodes[at], line(at, "run")));
    let ports = |node: &podwire_tests::TestNode| -> Vec<Value> {
        let rows = node.ovsdb_rows("Interface").into_iter();
        let tunnels = rows.filter(|row| row["type"] == "geneve");
        tunnels
            .map(|row| row["options"]["dst_port"].clone())
            .collect()
    };
    central.sync();
    for node in &nodes {
        assert_eq!(ports(node), ["8080"]);
    }
    // Whoever knows nothing of it writes the row anew.
    let of_node = [
        "--bare",
        "--columns=_uuid",
        "find",
        "encap",
        "chassis_name=node-a",
    ];
    let row = central.sbctl(of_node);
    central.sbctl(format!("remove encap {} options dst_port", row.trim()));
    runs[0].await_log("restored tunnels' UDP port of chassis node-a = 8080", 1);
    await_well(&nodes[0], line(0, "show"));
    central.sync();
    assert_eq!(ports(&nodes[1]), ["8080"]);
    for run in runs {
        run.stop();
    }
}
