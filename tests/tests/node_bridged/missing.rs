//! A NIC that is named and not there: unplugged, or under another name. It is a fault of its own,
//! which is shown, and the node goes on without it.

use podwire_tests::NodeRun;
use podwire_tests::http::get_from;

use super::*;

#[track_caller]
fn assert_told(machine: &Machine, flags: &str, wanted: &str) {
    let mut show = machine.arguments("show", flags);
    show.extend(["-o".to_owned(), "json".to_owned()]);
    let (code, shown) = machine.node().podwire_json(show);
    assert_eq!(code, Some(1), "{shown:#}");
    assert!(shown["conflicts"].to_string().contains(wanted), "{shown:#}");
    let (_, examined) = machine.node().podwire_json("doctor -o json");
    assert!(examined.to_string().contains(wanted), "{examined:#}");
    let (_, metrics) = get_from(machine.node().place(), "127.0.0.1:9477", "/metrics").unwrap();
    assert!(metrics.contains("podwire_node_conflicts 1\n"), "{metrics}");
}

/// Whether the role still keeps what is not on the NIC.
#[track_caller]
fn assert_kept(machine: &Machine, run: &NodeRun) {
    let restored = "restored address 10.244.1.2/24";
    let count = run.count(restored);
    let delete = "address del 10.244.1.2/24 dev ovn-k8s-mp0";
    machine.node().run("ip", delete);
    run.await_log(restored, count + 1);
    let tables = machine.node().run("nft", "list tables");
    assert!(tables.contains("inet podwire-node"), "{tables}");
}

#[test]
fn a_missing_uplink_is_told_of_and_the_node_goes_on() {
    let machine = Machine::new();
    let node = machine.node();
    let before = machine.snapshot();
    let flags = "--interface eth7 --metrics-address 127.0.0.1:9477";
    let missing = "--interface eth7: there is no such link; the links are ";
    let run = machine.launch_run(flags);
    run.await_state("READY=1");
    run.await_log(&format!("conflict: {missing}"), 1);
    assert_told(&machine, "--interface eth7", missing);
    assert_kept(&machine, &run);
    // Nobody knows where tunnels end.
    let ids = node.vsctl("get open_vswitch . external_ids");
    assert!(!ids.contains("ovn-encap-ip"), "{ids}");

    node.run("ip", "link add eth7 type veth peer name far7");
    run.await_log("conflict: --interface eth7: eth7 has no address", 1);
    assert_kept(&machine, &run);
    node.run("ip", "link set eth7 addrgenmode none up");
    node.run("ip", "address add 198.51.100.7/24 dev eth7");
    run.await_state("STATUS=in sync");
    let forwards = "/proc/sys/net/ipv4/conf/eth7/forwarding";
    assert_eq!(node.run("cat", forwards).trim(), "1");
    let ids = node.vsctl("get open_vswitch . external_ids:ovn-encap-ip");
    assert_eq!(ids.trim(), "\"198.51.100.7\"");
    let mtu = node.run("cat", "/sys/class/net/ovn-k8s-mp0/mtu");
    assert_eq!(mtu.trim(), "1442");

    // It is pulled out: pods keep what they have.
    node.run("ip", "link del eth7");
    run.await_log(&format!("conflict: {missing}"), 2);
    assert_told(&machine, "--interface eth7", missing);
    assert_kept(&machine, &run);
    let ids = node.vsctl("get open_vswitch . external_ids:ovn-encap-ip");
    assert_eq!(ids.trim(), "\"198.51.100.7\"");
    let mtu = node.run("cat", "/sys/class/net/ovn-k8s-mp0/mtu");
    assert_eq!(mtu.trim(), "1442");
    assert!(run.stop().success());
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_boot_without_the_nic_of_the_bridge_is_told_of_until_it_is_there() {
    let (machine, lan) = machine();
    let node = machine.node();
    machine.init(BRIDGED);
    let rename = |from: &str, to: &str| {
        for line in [
            format!("link set {from} down"),
            format!("link set {from} name {to}"),
            format!("link set {to} up"),
        ] {
            node.run("ip", line);
        }
    };
    boot_with(&machine, || rename("eth0", "eth9"));
    let flags = format!("{BRIDGED} --metrics-address 127.0.0.1:9477");
    let missing = "--interface eth0: there is no such link; the links are ";
    let run = machine.launch_run(&*flags);
    run.await_state("READY=1");
    run.await_log(&format!("conflict: {missing}"), 1);
    assert_told(&machine, BRIDGED, missing);
    assert_kept(&machine, &run);
    assert_eq!(node.vsctl("list-ports br-ex"), "");
    // Once it is there and has all that it had, it is moved again, and not while it has some.
    rename("eth9", "eth0");
    let (of_v4, of_v6) = BY_HAND.split_at(3);
    of_v4.iter().for_each(|line| drop(node.run("ip", *line)));
    let lacks = "2001:db8::11, route 2001:db8::/64 in table 254, route ::/0 in table 254 of eth0, \
                 which it had when its move was confirmed";
    run.await_log(lacks, 1);
    assert_eq!(node.vsctl("list-ports br-ex"), "");
    of_v6.iter().for_each(|line| drop(node.run("ip", *line)));
    await_record(&machine, "confirmed");
    assert_moved(&machine);
    lan.assert_reached(&machine);
    run.await_state("STATUS=in sync");
    assert!(run.stop().success());
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
}

/// Runs init while this is done, once it has begun.
#[track_caller]
pub(super) fn init_during(machine: &Machine, done: impl FnOnce()) {
    machine.node().run("mkdir", "-p /run/podwire");
    let flags = format!("{BRIDGED} --interface eth0");
    std::thread::scope(|scope| {
        let init = scope.spawn(|| machine.podwire_node("init", &flags));
        let node = machine.node();
        machine.await_file("/run/podwire/begun", |_| {
            node.path("/run/podwire/node").exists()
        });
        done();
        let said = init.join().unwrap();
        said.assert_says(Some(0), &["made uplink eth0 in br-ex"]);
    });
    assert_moved(machine);
}

#[test]
fn init_waits_for_a_nic_that_is_just_being_configured() {
    let (machine, lan) = machine();
    let node = machine.node();
    for family in ["-4", "-6"] {
        node.run("ip", [family, "route", "flush", "dev", "eth0"]);
    }
    node.run("ip", "address flush dev eth0");
    init_during(&machine, || configure_by_hand(&machine));
    lan.assert_reached(&machine);
}
