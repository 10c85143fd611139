//! `podwire node` with the profile *bridged*: the machine's only NIC is moved into br-ex, and
//! nothing can lose the machine by it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use podwire_tests::faulty_agent_binary;
use podwire_tests::lan::Lan;
use podwire_tests::machine::Machine;
use serde_json::Value;

/// A machine with a router, and what it is told.
const BRIDGED: &str = "--profile bridged --ovn-remote tcp:203.0.113.6:6642";

fn machine() -> (Machine, Lan) {
    let machine = Machine::new();
    let lan = Lan::around(&machine);
    // The machine's own units stay out of it.
    let over = ["-t", "tmpfs", "none", "/etc/systemd/system"];
    machine.node().run("mount", over);
    // The userspace datapath takes packets as they are, without checksums that hardware adds.
    machine.node().run("ethtool", "-K eth0 tx off");
    lan.place().run(|| {
        let done = Command::new("ethtool")
            .args(["-K", "eth0", "tx", "off"])
            .output();
        assert!(done.unwrap().status.success());
    });
    (machine, lan)
}

fn addresses(machine: &Machine, link: &str) -> String {
    let show = ["-o", "address", "show", "dev", link, "scope", "global"];
    machine.node().run("ip", show)
}

/// Whether the NIC is in the bridge, and has what belongs to it there.
#[track_caller]
fn assert_moved(machine: &Machine) {
    let on_bridge = addresses(machine, "br-ex");
    for address in ["192.0.2.11/24", "2001:db8::11/64"] {
        assert!(on_bridge.contains(address), "{on_bridge}");
    }
    assert_eq!(addresses(machine, "eth0"), "");
    let ports = machine.node().vsctl("list-ports br-ex");
    assert_eq!(ports.trim(), "eth0");
}

#[test]
fn the_only_nic_is_moved_into_the_bridge_and_back() {
    let (machine, lan) = machine();
    machine
        .node()
        .run("ip", "rule add iif eth0 priority 100 lookup 7");
    machine.node().run(
        "ip",
        "route add 198.51.100.0/24 via 192.0.2.20 dev eth0 table 7",
    );
    let before = machine.snapshot();
    let said = machine.init(BRIDGED);
    assert!(said.contains("made uplink eth0 in br-ex"), "{said}");
    assert_moved(&machine);
    lan.assert_reached(&machine);
    let routes = machine.node().run("ip", "route show table 7");
    assert_eq!(routes.trim(), "198.51.100.0/24 via 192.0.2.20 dev br-ex");
    let rules = machine.node().run("ip", "rule show priority 100");
    assert!(rules.contains("iif br-ex lookup 7"), "{rules}");
    // Router advertisements are not followed to the bridge.
    let accepts = machine
        .node()
        .run("cat", "/proc/sys/net/ipv6/conf/br-ex/accept_ra");
    assert_eq!(accepts.trim(), "0");
    let again = machine.init(BRIDGED);
    assert!(again.starts_with("0 steps: "), "{again}");
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
    lan.assert_reached(&machine);
}

/// How far the recorded move is.
fn phase(machine: &Machine) -> Option<String> {
    let record = machine.node().path("/run/podwire/node/uplink/record");
    let record: Value = serde_json::from_slice(&std::fs::read(record).ok()?).unwrap();
    let phase = &record["phase"];
    let name = phase.as_str().map(str::to_owned);
    name.or_else(|| phase.as_object()?.keys().next().cloned())
}

/// Waits until the guard has moved the NIC back.
#[track_caller]
fn await_moved_back(machine: &Machine) {
    machine.node().run(
        "timeout",
        [
            "60",
            "sh",
            "-c",
            "until grep -q rolled-back /run/podwire/node/uplink/record; do :; done",
        ],
    );
}

/// Whether everything is on the NIC as before, and the bridge is gone.
#[track_caller]
fn assert_moved_back(machine: &Machine, lan: &Lan) {
    let on_nic = addresses(machine, "eth0");
    for address in ["192.0.2.11/24", "2001:db8::11/64"] {
        assert!(on_nic.contains(address), "{on_nic}");
    }
    let bridges = machine.node().vsctl("list-br");
    assert!(!bridges.contains("br-ex"), "{bridges}");
    lan.assert_reached(machine);
}

#[test]
fn a_move_that_is_killed_at_any_step_is_undone_by_its_guard() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    let mut undone = 0;
    for boundary in 1.. {
        let mut init = Command::new(faulty_agent_binary());
        init.args(machine.arguments("init", BRIDGED));
        init.env("PODWIRE_NODE_FAULT", boundary.to_string());
        let ended = machine.finish(init);
        if ended.status.success() {
            break;
        }
        assert!(ended.status.code().is_none(), "{boundary}: {ended:#?}");
        match phase(&machine).as_deref() {
            None => continue,
            Some("confirmed") => assert_moved(&machine),
            Some(_) => {
                await_moved_back(&machine);
                undone += 1;
                assert_moved_back(&machine, &lan);
            }
        }
        machine.cleanup("");
        before.assert_same(&machine.snapshot());
    }
    assert!(undone > 12, "only {undone} boundaries within the move");
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_gateway_that_no_longer_answers_undoes_the_move() {
    let (machine, lan) = machine();
    lan.assert_reached(&machine);
    let before = machine.snapshot();
    let there = |line: &str| {
        let mut nft = Command::new("nft");
        nft.args(line.split(' '));
        let done = lan.place().run(|| nft.output()).unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    // The question before the move is answered, those after it are not.
    there("add table arp dead");
    there("add chain arp dead in { type filter hook input priority 0 ; }");
    there("add rule arp dead in arp operation request limit rate 1/day burst 1 packets accept");
    there("add rule arp dead in arp operation request drop");
    let refused = machine.podwire_node("init", BRIDGED);
    there("delete table arp dead");
    refused.assert_says(
        Some(1),
        &[
            "the gateway 192.0.2.1 does not answer on br-ex",
            "everything on the NIC was moved back",
        ],
    );
    assert_moved_back(&machine, &lan);
    let (_, shown) = machine.node().podwire_json({
        let mut show = machine.arguments("show", BRIDGED);
        show.extend(["-o".to_owned(), "json".to_owned()]);
        show
    });
    assert!(
        shown
            .to_string()
            .contains("eth0 was moved back: the gateway"),
        "{shown:#}"
    );
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_person_confirms_or_the_nic_is_moved_back_at_the_deadline() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    let by_hand = format!("{BRIDGED} --confirm-within 20s");
    let said = machine.init(&*by_hand);
    assert!(said.contains("podwire node confirm"), "{said}");
    assert_moved(&machine);
    let said = machine.podwire_node("confirm", "");
    assert!(said.stdout.contains("eth0 stays in br-ex"), "{said:?}");
    assert_eq!(phase(&machine).as_deref(), Some("confirmed"));
    machine.podwire_node("rollback", "").success("rollback");
    assert_moved_back(&machine, &lan);
    machine
        .podwire_node("rollback", "")
        .assert_says(Some(1), &["no NIC is in a bridge"]);

    machine.init(&*by_hand);
    assert_moved(&machine);
    await_moved_back(&machine);
    assert_moved_back(&machine, &lan);
    machine
        .podwire_node("confirm", "")
        .assert_says(Some(1), &["no NIC is in a bridge"]);
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_connection_stays_while_the_nic_is_moved_and_moved_back() {
    let (machine, lan) = machine();
    let listener = lan
        .place()
        .run(|| TcpListener::bind("192.0.2.1:7000"))
        .unwrap();
    let client = machine
        .node()
        .place()
        .run(|| TcpStream::connect("192.0.2.1:7000"));
    let (mut client, (mut server, _)) = (client.unwrap(), listener.accept().unwrap());
    let mut exchange = || {
        let mut read = [0; 4];
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut read).unwrap();
        server.write_all(b"pong").unwrap();
        client.read_exact(&mut read).unwrap();
    };
    exchange();
    machine.init(BRIDGED);
    exchange();
    assert_moved(&machine);
    machine.cleanup("");
    exchange();
}

#[test]
fn what_cannot_be_moved_safely_is_refused_before_the_first_change() {
    let (machine, _lan) = machine();
    let node = machine.node();
    let refused = |words: &[&str]| {
        let before = machine.snapshot();
        let said = machine.podwire_node("init", BRIDGED);
        said.assert_says(Some(1), words);
        before.assert_same(&machine.snapshot());
    };
    node.run("nft", "add table inet own");
    node.run("nft", "add chain inet own in");
    node.run(
        "nft",
        "add rule inet own in iifname eth0 tcp dport 22 accept",
    );
    refused(&["a rule of nftables names eth0", "nothing was changed"]);
    node.run("nft", "delete table inet own");
    node.run(
        "sh",
        [
            "-c",
            "mkdir -p /run/network; echo eth0=eth0 >/run/network/ifstate",
        ],
    );
    refused(&["ifupdown manages eth0"]);
    node.run("rm", "/run/network/ifstate");
    node.run(
        "ip",
        "address add 192.0.2.12/24 dev eth0 valid_lft 1000 preferred_lft 1000",
    );
    refused(&["address 192.0.2.12 of eth0 has a lifetime"]);
    node.run("ip", "address del 192.0.2.12/24 dev eth0");
}

/// What the database's unit runs after its start.
fn after_database_start(machine: &Machine) {
    let file = "/etc/systemd/system/ovsdb-server.service.d/91-podwire-uplink.conf";
    let text = machine.node().run("cat", file);
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("ExecStartPost=-"));
    machine.node().run("sh", ["-c", line.unwrap()]);
}

#[test]
fn a_boot_finds_the_nic_outside_the_bridge_and_a_restart_in_it() {
    let (machine, lan) = machine();
    let node = machine.node();
    machine.init(BRIDGED);
    node.stop_ovsdb_server();
    node.start_ovsdb_server();
    after_database_start(&machine);
    assert_moved(&machine);
    lan.assert_reached(&machine);

    // What a boot leaves: the database, and files below /etc.
    node.kill_vswitchd();
    node.stop_ovsdb_server();
    node.run("rm", "-r /run/podwire");
    node.run("nft", "flush ruleset");
    for link in ["br-ex", "br-int", "ovn-k8s-mp0"] {
        node.run("ip", format!("link del {link}"));
    }
    for line in [
        "address add fe80::11/64 dev eth0 nodad",
        "address add 192.0.2.11/24 dev eth0 noprefixroute",
        "address add 2001:db8::11/64 dev eth0 noprefixroute nodad",
        "route add 192.0.2.0/24 dev eth0 proto kernel metric 100",
        "route add 2001:db8::/64 dev eth0 proto kernel metric 100",
        "route add default via 192.0.2.1 dev eth0 metric 100",
        "-6 route add default via 2001:db8::1 dev eth0 metric 100",
    ] {
        node.run("ip", line);
    }
    let another = "echo 11111111-2222-3333-4444-555555555555 >/run/boot; mount --bind /run/boot \
                   /proc/sys/kernel/random/boot_id";
    node.run("sh", ["-c", another]);
    node.start_ovsdb_server();
    after_database_start(&machine);
    node.start_vswitchd();
    assert_eq!(node.vsctl("list-ports br-ex").trim(), "");
    lan.assert_reached(&machine);
    machine.init(BRIDGED);
    assert_moved(&machine);
    lan.assert_reached(&machine);
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
    let files = node.run("find", "/etc/systemd/system -name 91-podwire-uplink.conf");
    assert_eq!(files, "");
}
