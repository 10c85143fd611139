//! The fixtures themselves: they are what every other test believes.

use std::net::IpAddr;
use std::time::Duration;

use podwire_tests::links::{self, Change, LinkRecorder};
use podwire_tests::{Failure, Pod, TestNode, process, traffic};

/// Wires a pod without podwire, by the tools that podwire replaces.
fn wire_by_hand(
    node: &TestNode,
    pod: &Pod<'_>,
    host: &str,
    addresses: [&str; 2],
) -> Result<(), Failure> {
    node.run(
        "ip",
        format!(
            "link add {host} type veth peer name eth0 netns {}",
            pod.netns
        ),
    );
    node.run("ip", format!("link set {host} up"));
    node.vsctl(format!("add-port br-int {host}"));
    pod.run("ethtool", "-K eth0 tx off");
    pod.run("ip", format!("address add {} dev eth0", addresses[0]));
    pod.run("ip", format!("address add {} dev eth0 nodad", addresses[1]));
    pod.run("ip", "link set eth0 up");
    Ok(())
}

#[test]
fn a_node_starts_with_an_open_vswitch_that_applies_changes() {
    let node = TestNode::with_ovs();
    node.add_bridge("br-int");
    let interface = node.ovsdb_rows("Interface").remove(0);
    assert_eq!(interface["name"], "br-int");
    assert_eq!(interface["ofport"], 65534);
}

#[test]
fn traffic_flows_between_pods_in_both_families() {
    let node = TestNode::with_ovs();
    node.add_bridge("br-int");
    let [web, db] = ["web", "db"].map(|name| node.pod(name));
    wire_by_hand(&node, &web, "web", ["10.9.0.1/24", "fd09::1/64"]).unwrap();
    wire_by_hand(&node, &db, "db", ["10.9.0.2/24", "fd09::2/64"]).unwrap();
    for address in ["10.9.0.2", "fd09::2"] {
        let address: IpAddr = address.parse().unwrap();
        traffic::ping(web.place(), address, 2).unwrap();
        traffic::tcp_echo(web.place(), db.place(), address, 1 << 20).unwrap();
        traffic::udp_echo(web.place(), db.place(), address, 1200).unwrap();
    }
}

#[test]
fn traffic_that_nobody_carries_is_a_failure() {
    let node = TestNode::new();
    let [web, db] = ["web", "db"].map(|name| node.pod(name));
    let address: IpAddr = "127.0.0.1".parse().unwrap();
    db.run("ip", "link set lo up");
    assert!(traffic::ping(web.place(), address, 1).is_err());
    assert!(traffic::tcp_echo(web.place(), db.place(), address, 1 << 10).is_err());
    assert!(traffic::udp_echo(web.place(), db.place(), address, 100).is_err());
}

#[test]
fn leftovers_are_links_rows_and_records_of_pods_but_not_the_bridge() {
    let node = TestNode::with_ovs();
    node.add_bridge("br-int");
    node.leftovers().assert_none();
    let pod = node.pod("web");
    wire_by_hand(
        &node,
        &pod,
        "0123456789abcde",
        ["10.9.0.1/24", "fd09::1/64"],
    )
    .unwrap();
    node.vsctl("set port 0123456789abcde qos=@q -- --id=@q create qos type=linux-htb");
    std::fs::create_dir_all(node.path("/run/podwire/attachments")).unwrap();
    std::fs::write(node.path("/run/podwire/attachments/a"), "").unwrap();
    let left = node.leftovers();
    assert_eq!(left.links, ["0123456789abcde"]);
    assert_eq!(
        left.rows[..2],
        ["Port 0123456789abcde", "Interface 0123456789abcde"]
    );
    assert!(left.rows[2].starts_with("QoS "), "{left}");
    assert_eq!(left.records, ["a"]);
}

#[test]
fn daemons_stop_die_and_come_back_each_apart() {
    let node = TestNode::with_ovs();
    node.add_bridge("br-int");
    node.kill_vswitchd();
    node.vsctl("--no-wait add-port br-int lost");
    node.start_vswitchd();
    let interfaces = node.ovsdb_rows("Interface");
    let lost = interfaces.iter().find(|row| row["name"] == "lost").unwrap();
    assert_eq!(lost["ofport"], -1, "{lost:?}");
    node.kill_ovsdb_server();
    assert!(node.ovsdb().rows("Bridge").is_err());
    node.start_ovsdb_server();
    assert_eq!(
        node.ovsdb_rows("Bridge").len(),
        1,
        "the database outlives its server"
    );
    node.stop_vswitchd();
    node.stop_ovsdb_server();
}

#[test]
fn nodes_do_not_see_each_other_and_leave_the_machine_alone() {
    let (one, other) = (TestNode::with_ovs(), TestNode::with_ovs());
    one.add_bridge("br-int");
    assert!(other.ovsdb_rows("Bridge").is_empty());
    let names = |node: &TestNode| {
        links::list(node.place())
            .into_iter()
            .map(|link| link.name)
            .collect::<Vec<_>>()
    };
    assert!(names(&one).contains(&"br-int".to_owned()));
    assert_eq!(names(&other), ["lo"]);
    assert!(!std::path::Path::new("/run/openvswitch/db.sock").exists());
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(
        !mounts.contains("podwire-node"),
        "a mount of a node reached the machine"
    );
}

#[test]
fn a_dropped_node_takes_its_daemons_along() {
    let node = TestNode::with_ovs();
    let pids = ["ovsdb-server", "ovs-vswitchd"].map(|name| {
        let pid =
            std::fs::read_to_string(node.path(&format!("/run/openvswitch/{name}.pid"))).unwrap();
        format!("/proc/{}", pid.trim())
    });
    assert!(pids.iter().all(|pid| std::path::Path::new(pid).exists()));
    drop(node);
    assert!(!pids.iter().any(|pid| std::path::Path::new(pid).exists()));
}

#[test]
fn a_link_recorder_tells_creation_rename_and_move() {
    let node = TestNode::new();
    let pod = node.pod("web");
    let recorder = LinkRecorder::start(node.place());
    node.run("ip", "link add one type veth peer name two");
    node.run("ip", "link set one name uno");
    node.run("ip", format!("link set two netns {}", pod.netns));
    let events = recorder.events();
    let of = |change, name: &str| {
        events
            .iter()
            .filter(|event| event.change == change && event.name == name)
            .count()
    };
    assert!(
        of(Change::New, "one") > 0 && of(Change::New, "uno") > 0 && of(Change::Gone, "two") > 0,
        "{events:?}"
    );
    assert!(recorder.events().is_empty());
}

#[test]
fn links_that_come_and_go_together_may_be_awaited_in_any_order() {
    let node = TestNode::new();
    let recorder = LinkRecorder::start(node.place());
    node.run("ip", "link add one type veth peer name two");
    recorder.await_born("one");
    recorder.await_born("two");
    node.run("ip", "link del one");
    recorder.await_gone("two");
    recorder.await_gone("one");
}

#[test]
fn addresses_are_awaited_until_the_link_is_there_has_them_and_is_up() {
    let node = TestNode::new();
    let run = |line: &str| node.run("ip", line);
    std::thread::scope(|scope| {
        let place = node.place();
        let wanted = ["10.9.0.1/24", "fd09::1/64"];
        let awaiting = scope.spawn(move || links::await_addresses(place, "late", &wanted));
        run("link add late type veth peer name other");
        run("address add 10.9.0.1/24 dev late");
        run("address add fd09::1/64 dev late nodad");
        run("link set other up");
        assert!(!awaiting.is_finished(), "it is not up yet");
        run("link set late up");
        awaiting.join().unwrap();
    });
}

#[test]
fn a_program_that_does_not_end_is_killed_at_its_deadline() {
    let mut command = std::process::Command::new("sleep");
    command.arg("1000");
    let failure = process::finish(command, b"", Duration::from_millis(50)).unwrap_err();
    assert!(
        failure.to_string().contains("the end of `sleep 1000`"),
        "{failure}"
    );
}
