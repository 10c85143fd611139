//! `podwire node` with the profile *bridged*: the machine's only NIC is moved into br-ex, and
//! nothing can lose the machine by it.

mod changes;
mod extra;
mod guard;
mod kept;
mod missing;
mod network_manager;
mod networkd;
mod renewals;
mod steps;
mod temporary;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use podwire_tests::lan::Lan;
use podwire_tests::machine::Machine;
use podwire_tests::schema::assert_valid;
use serde_json::{Value, json};

/// What the machine is told.
const BRIDGED: &str = "--profile bridged --ovn-remote tcp:203.0.113.6:6642";

/// How long a connection may stand still.
const LIMIT: Duration = Duration::from_secs(60);

fn machine() -> (Machine, Lan) {
    Lan::with_machine()
}

fn addresses(machine: &Machine, link: &str) -> String {
    let show = ["-o", "address", "show", "dev", link, "scope", "global"];
    machine.node().run("ip", show)
}

/// Waits until a link has the machine's addresses: a manager may make one after the other.
#[track_caller]
fn await_addresses(machine: &Machine, link: &str) {
    machine.await_set(&format!("both addresses on {link}"), || {
        let there = addresses(machine, link);
        let both = ["192.0.2.11/24", "2001:db8::11/64"];
        let has_both = both.iter().all(|it| there.contains(it));
        has_both.then_some(()).ok_or(there)
    });
}

/// Waits until nobody else was found to have an address of a link: the kernel makes its route then.
#[track_caller]
fn await_own_addresses(machine: &Machine) {
    machine.await_set("no tentative address", || {
        let show = "-6 address show up tentative";
        let shown = machine.node().run("ip", show);
        shown.is_empty().then_some(()).ok_or(shown)
    });
}

/// Whether the NIC is in the bridge, and has what belongs to it there.
#[track_caller]
fn assert_moved(machine: &Machine) {
    await_addresses(machine, "br-ex");
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

/// Waits until the record says this.
#[track_caller]
fn await_record(machine: &Machine, phase: &str) {
    let record = "/run/podwire/node/uplink/record";
    machine.await_file(record, |text| text.contains(phase));
}

/// Waits until the guard has moved the NIC back.
#[track_caller]
fn await_moved_back(machine: &Machine) {
    await_record(machine, "rolled-back");
}

/// Whether everything is on the NIC as before, and the bridge is gone.
#[track_caller]
fn assert_moved_back(machine: &Machine, lan: &Lan) {
    await_addresses(machine, "eth0");
    let bridges = machine.node().vsctl("list-br");
    assert!(!bridges.contains("br-ex"), "{bridges}");
    lan.assert_reached(machine);
}

#[test]
fn a_gateway_that_no_longer_answers_undoes_the_move() {
    let (machine, lan) = machine();
    lan.assert_reached(&machine);
    let before = machine.snapshot();
    // The question before the move is answered, those after it are not.
    lan.answer_once();
    let refused = machine.podwire_node("init", BRIDGED);
    lan.answer_all();
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
    let done = |verb: &str, note: &str| {
        let arguments = machine.arguments(verb, "-o json");
        let (code, done) = machine.node().podwire_json(arguments);
        assert_valid("nodeDone", &done);
        assert_eq!(
            (code, &done["notes"]),
            (Some(0), &json!([note])),
            "{done:#}"
        );
    };
    done("confirm", "eth0 stays in br-ex");
    assert_eq!(phase(&machine).as_deref(), Some("confirmed"));
    done("rollback", "moved eth0 out of br-ex");
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

/// The ends of a connection from the machine to its gateway.
#[track_caller]
fn connection(machine: &Machine, lan: &Lan) -> (TcpStream, TcpStream) {
    let gateway = "192.0.2.1:7000";
    let listener = lan.place().run(|| TcpListener::bind(gateway)).unwrap();
    let client = machine.node().place().run(|| TcpStream::connect(gateway));
    let (client, server) = (client.unwrap(), listener.accept().unwrap().0);
    for end in [&client, &server] {
        end.set_read_timeout(Some(LIMIT)).unwrap();
    }
    (client, server)
}

#[test]
fn a_connection_stays_while_the_nic_is_moved_and_moved_back() {
    let (machine, lan) = machine();
    let (mut client, mut server) = connection(&machine, &lan);
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
        let before = machine.snapshot().without_lifetimes();
        let said = machine.podwire_node("init", BRIDGED);
        said.assert_says(Some(1), words);
        before.assert_same(&machine.snapshot().without_lifetimes());
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
    execute_after_database_start(machine, &boot_file(machine));
}

fn boot_file(machine: &Machine) -> String {
    let file = "/etc/systemd/system/ovsdb-server.service.d/91-podwire-uplink.conf";
    machine.node().run("cat", file)
}

#[track_caller]
fn execute_after_database_start(machine: &Machine, text: &str) {
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

    let read = boot_file(&machine);
    boot(&machine);
    assert_eq!(node.vsctl("list-ports br-ex").trim(), "");
    lan.assert_reached(&machine);
    // It was confirmed before.
    let run = machine.start_run(BRIDGED);
    await_record(&machine, "confirmed");
    assert_moved(&machine);
    lan.assert_reached(&machine);
    // The record, by which a restart is told from a boot, is there again if somebody removes it.
    node.remove_under("/run/podwire");
    run.await_log("record of eth0's move was removed, and is written again", 1);
    // In this boot, too, where systemd goes by what it read when the machine started.
    node.stop_ovsdb_server();
    node.start_ovsdb_server();
    execute_after_database_start(&machine, &read);
    assert_moved(&machine);
    lan.assert_reached(&machine);
    assert!(run.stop().success());
    machine.cleanup("");
    assert_moved_back(&machine, &lan);
    let files = node.run("find", "/etc/systemd/system -name 91-podwire-uplink.conf");
    assert_eq!(files, "");
}

/// What a boot leaves: the database, and files below /etc.
#[track_caller]
fn boot(machine: &Machine) {
    boot_with(machine, || configure_by_hand(machine));
}

/// The same, where this configures the NIC before Open vSwitch starts.
#[track_caller]
fn boot_with<T>(machine: &Machine, configure: impl FnOnce() -> T) -> T {
    let node = machine.node();
    node.kill_vswitchd();
    node.stop_ovsdb_server();
    node.run("rm", "-rf /run/podwire");
    node.run("nft", "flush ruleset");
    node.run("ip", "address flush dev eth0");
    let links =
        "for link in br-ex br-int ovn-k8s-mp0; do ip link del $link 2>/dev/null; done; true";
    node.run("sh", ["-c", links]);
    let configured = configure();
    node.start_ovsdb_server();
    after_database_start(machine);
    node.start_vswitchd();
    configured
}

/// What a script at boot sets on the NIC.
#[track_caller]
fn configure_by_hand(machine: &Machine) {
    for line in BY_HAND {
        machine.node().run("ip", line);
    }
}

/// IPv4 first.
const BY_HAND: [&str; 7] = [
    "address replace 192.0.2.11/24 dev eth0 noprefixroute",
    "route replace 192.0.2.0/24 dev eth0 proto kernel metric 100",
    "route replace default via 192.0.2.1 dev eth0 metric 100",
    "address replace fe80::11/64 dev eth0 nodad",
    "address replace 2001:db8::11/64 dev eth0 noprefixroute nodad",
    "route replace 2001:db8::/64 dev eth0 proto kernel metric 100",
    "-6 route replace default via 2001:db8::1 dev eth0 metric 100",
];

#[test]
fn the_nic_is_chosen_once_and_another_one_is_refused_by_both_names() {
    let (machine, lan) = machine();
    let node = machine.node();
    node.run("ip", "link add eth1 type veth peer name far1");
    let hint = "mkdir -p /var/lib/ovnk; echo eth1 >/var/lib/ovnk/iface_default_hint";
    node.run("sh", ["-c", hint]);
    // It has no default route.
    machine.init(BRIDGED);
    assert_moved(&machine);
    let other = machine.podwire_node("init", format!("{BRIDGED} --interface eth1"));
    other.assert_says(Some(1), &["--interface eth1: eth0 is the NIC of br-ex"]);
    let mappings = "get open_vswitch . external_ids:ovn-bridge-mappings";
    assert_eq!(node.vsctl(mappings).trim(), "\"physnet:br-ex\"");
    machine.podwire_node("rollback", "").success("rollback");
    assert_moved_back(&machine, &lan);
    machine.cleanup("");
    let ids = node.vsctl("get open_vswitch . external_ids");
    assert!(!ids.contains("ovn-bridge-mappings"), "{ids}");
}

#[test]
fn the_operator_s_bridge_is_used_and_never_changed() {
    let (machine, lan) = machine();
    let node = machine.node();
    let adopt = "--profile adopt --ovn-remote tcp:203.0.113.6:6642";
    let planned = machine.podwire_node("plan", adopt);
    planned.assert_says(
        Some(1),
        &["+ adopted bridge br-ex, as it is (after bridge br-ex"],
    );
    // As an operator moves it, by hand.
    let mac = node.run("cat", "/sys/class/net/eth0/address");
    let kind = node.vsctl("get bridge br-int datapath_type");
    let (mac, kind) = (mac.trim(), kind.trim());
    node.vsctl(format!(
        "add-br br-ex -- set bridge br-ex datapath_type={kind} other_config:hwaddr={mac} -- \
         add-port br-ex eth0"
    ));
    node.run("ip", "address flush dev eth0 scope global");
    for line in [
        "link set br-ex addrgenmode none",
        "link set br-ex up",
        "address add 192.0.2.11/24 dev br-ex",
        "address add 2001:db8::11/64 dev br-ex nodad",
        "route replace default via 192.0.2.1 dev br-ex",
        "-6 route replace default via 2001:db8::1 dev br-ex",
    ] {
        node.run("ip", line);
    }
    lan.assert_reached(&machine);
    let before = machine.snapshot();
    let said = machine.init(adopt);
    assert!(said.contains("ovn-bridge-mappings:physnet"), "{said}");
    let rows = node.vsctl("list bridge br-ex");
    assert!(!rows.contains("podwire"), "{rows}");
    assert_moved(&machine);
    let (_, shown) = node.podwire_json({
        let mut show = machine.arguments("show", adopt);
        show.extend(["-o".to_owned(), "json".to_owned()]);
        show
    });
    assert_eq!(shown["well"], true, "{shown:#}");
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
    lan.assert_reached(&machine);
}
