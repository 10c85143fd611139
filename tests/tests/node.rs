//! `podwire node` on a machine with a real Open vSwitch: what it plans, makes, finds made and takes
//! away again.

use std::net::TcpListener;
use std::process::Command;

use podwire_tests::machine::Machine;
use podwire_tests::schema::assert_valid;
use serde_json::{Value, json};

#[test]
fn plan_changes_nothing_and_says_what_init_will_do() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let planned = machine.podwire_node("plan", "");
    assert_eq!(planned.status.code(), Some(1), "{planned:?}");
    for line in [
        "+ external_ids:ovn-remote = tcp:192.0.2.9:6642",
        "~ external_ids:hostname = node-a (now machine.example)",
        "+ port ovn-k8s-mp0 on br-int: iface-id k8s-node-a, MAC 0a:58:0a:f4:01:02, MTU 1442",
        "+ address 10.244.1.2/24 of ovn-k8s-mp0 (after port ovn-k8s-mp0)",
        "+ route 10.96.0.0/16 via 10.244.1.1 dev ovn-k8s-mp0 (after port ovn-k8s-mp0)",
        "+ nftables table inet podwire-node, ",
        "pods and ovn-k8s-mp0 have an MTU of 1442 bytes (eth0's 1500 less the tunnel's headers)",
    ] {
        assert!(
            planned.stdout.lines().any(|it| it.starts_with(line)),
            "{line}\n{planned:#?}"
        );
    }
    let (_, json) = machine
        .node()
        .podwire_json(machine.arguments("plan", "-o json"));
    assert_valid("nodePlan", &json);
    let hostname = json!({
        "item": "external_ids:hostname = node-a",
        "change": "change",
        "detail": "machine.example",
    });
    let changes = json["changes"].as_array().unwrap();
    assert!(changes.contains(&hostname), "{json:#}");
    before.assert_same(&machine.snapshot());

    let done = |verb: &str| {
        let (code, done) = machine
            .node()
            .podwire_json(machine.arguments(verb, "-o json"));
        assert_eq!(code, Some(0), "{verb}: {done:#}");
        assert_valid("nodeDone", &done);
        done
    };
    let made = done("init");
    let address = json!("made address 10.244.1.2/24 of ovn-k8s-mp0");
    let steps = made["steps"].as_array().unwrap();
    assert!(steps.contains(&address), "{made:#}");
    assert!(made["changes"]["ovsdb"].as_u64() > Some(0), "{made:#}");
    let planned = machine.podwire_node("plan", "");
    assert_eq!(planned.status.code(), Some(0), "{planned:#?}");
    let last = planned.stdout.lines().last().unwrap();
    assert!(last.starts_with("nothing to do: in sync, all "), "{last}");
    let undone = machine.node().podwire_json("node cleanup -o json").1;
    assert_valid("nodeDone", &undone);
    assert_ne!(undone["steps"], json!([]), "{undone:#}");
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_second_init_writes_nothing_at_all() {
    const RECORD: &str = "/run/strace";
    let machine = Machine::new();
    machine.init("");
    let node = machine.node();
    let mut strace = Command::new("strace");
    let calls = "trace=network,write,writev,openat,mkdir,unlink,rename";
    strace.args(["-f", "-s", "4096", "-e", calls, "-o", RECORD]);
    strace.arg(podwire_tests::agent_binary());
    strace.args(machine.arguments("init", ""));
    let done = node.place().run(|| strace.output()).unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let nothing = "0 steps: 0 changes by netlink and nft, 0 transactions of Open vSwitch's \
                   database, 0 files written\n";
    assert_eq!(said, nothing, "{}", String::from_utf8_lossy(&done.stderr));

    let calls = std::fs::read_to_string(node.path(RECORD)).unwrap();
    assert!(
        calls.contains("RTM_GETADDR") && calls.contains("monitor"),
        "{calls}"
    );
    let writes = calls.lines().filter(|call| {
        let sends = call.contains("send") || call.contains("write(") || call.contains("writev(");
        let netlink = ["RTM_NEW", "RTM_DEL", "RTM_SET"];
        let netlink = call.contains("send") && netlink.iter().any(|kind| call.contains(kind));
        let ovsdb = sends && call.contains(r#"\"transact\""#);
        let opened =
            call.contains("openat(") && (call.contains("O_WRONLY") || call.contains("O_RDWR"));
        let file = opened && !call.contains("/dev/null") && !call.contains("/dev/tty")
            || ["mkdir(", "unlink(", "rename("]
                .iter()
                .any(|name| call.contains(name));
        netlink || ovsdb || file
    });
    let writes: Vec<&str> = writes.collect();
    assert!(writes.is_empty(), "{writes:#?}");
}

#[test]
fn cleanup_leaves_the_machine_as_it_was() {
    let machine = Machine::new();
    let tuned = "set open_vswitch . external_ids:ovn-remote-probe-interval=5000";
    machine.node().vsctl(tuned);
    let before = machine.snapshot();
    let done = machine.init("");
    assert!(
        done.contains("made address fd00:10:244:1::2/64 of ovn-k8s-mp0"),
        "{done}"
    );
    let addresses = machine.node().run("ip", "-j addr show ovn-k8s-mp0");
    let addresses: Value = serde_json::from_str(&addresses).unwrap();
    assert_eq!(addresses[0]["address"], "0a:58:0a:f4:01:02");
    assert_eq!(addresses[0]["mtu"], 1442);
    let (code, shown) = machine.show();
    assert_eq!(
        (code, &shown["well"]),
        (Some(0), &Value::Bool(true)),
        "{shown:#}"
    );
    let items = shown["items"].as_array().unwrap().iter();
    let others = items.filter(|item| item["ours"] == false);
    let others: Vec<&Value> = others.map(|item| &item["item"]).collect();
    // Who gave the switch a name keeps it; the kernel's own value is nobody's.
    let expected = [
        "external_ids:system-id = a-chassis",
        "external_ids:ovn-remote-probe-interval = 100000",
        "sysctl net.ipv6.conf.ovn-k8s-mp0.disable_ipv6 = 0",
    ];
    assert_eq!(others, expected);
    let rows = machine.node().ovsdb_rows("Open_vSwitch");
    let probe = &rows[0]["external_ids"]["ovn-remote-probe-interval"];
    assert_eq!(probe, "5000");

    let done = machine.cleanup("");
    assert!(done.contains("removed port ovn-k8s-mp0"), "{done}");
    before.assert_same(&machine.snapshot());
    let again = machine.cleanup("");
    assert!(again.starts_with("0 steps"), "{again}");
    before.assert_same(&machine.snapshot());
}

/// The process is killed between a journal's line and its step, and between each two steps.
#[test]
fn killed_at_any_step_cleanup_leaves_the_machine_as_it_was() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let mut boundaries = 0;
    loop {
        boundaries += 1;
        let ended = machine.init_killed_at(boundaries);
        if ended.status.success() {
            break;
        }
        assert!(ended.status.code().is_none(), "{boundaries}: {ended:#?}");
        machine.cleanup("");
        before.assert_same(&machine.snapshot());
    }
    assert!(boundaries > 30, "only {boundaries} boundaries");
    // Killed while it is taken down, too.
    let mut boundaries = 0;
    loop {
        boundaries += 1;
        machine.init("");
        let ended = machine.cleanup_killed_at(boundaries);
        if ended.status.success() {
            break;
        }
        machine.cleanup("");
        before.assert_same(&machine.snapshot());
    }
    assert!(boundaries > 8, "only {boundaries} boundaries");
    before.assert_same(&machine.snapshot());
}

#[test]
fn init_goes_on_where_a_killed_one_ended() {
    let machine = Machine::new();
    let before = machine.snapshot();
    for boundary in [3, 9, 20] {
        let ended = machine.init_killed_at(boundary);
        assert!(!ended.status.success(), "{ended:#?}");
    }
    machine.init("");
    let (code, shown) = machine.show();
    assert_eq!(code, Some(0), "{shown:#}");
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn what_others_made_in_our_place_is_named_and_stays() {
    let machine = Machine::new();
    let node = machine.node();
    let run = |arguments: &str| node.run("ip", arguments);
    run("route add 10.96.0.0/16 via 192.0.2.1 proto static");
    node.vsctl("--no-wait set open_vswitch . external_ids:ovn-remote=tcp:198.51.100.1:6642");
    node.vsctl(
        "add-port br-int ovn-k8s-mp0 -- set interface ovn-k8s-mp0 type=internal \
         external_ids:iface-id=k8s-node-a mtu_request=1400 mac=\"0a:58:0a:f4:01:09\"",
    );
    run("link set ovn-k8s-mp0 addrgenmode none");
    run("link set ovn-k8s-mp0 up");
    let before = machine.snapshot();

    let refused = machine.podwire_node("init", "");
    assert_eq!(refused.status.code(), Some(1));
    for words in [
        "external_ids:ovn-remote: somebody else set it to tcp:198.51.100.1:6642",
        "port ovn-k8s-mp0: ovn-kubernetes created it: --take-over adopts it until cleanup",
    ] {
        assert!(refused.stderr.contains(words), "{words}\n{refused:#?}");
    }
    before.assert_same(&machine.snapshot());

    // Another's address is another's, whatever we are told.
    run("address add 10.244.1.2/32 dev lo");
    let refused = machine.podwire_node("init", "--take-over");
    let said = "--node-subnet 10.244.1.0/24: this machine itself needs 10.244.1.2/32 of link lo";
    assert!(refused.stderr.contains(said), "{refused:#?}");
    run("address del 10.244.1.2/32 dev lo");
    before.assert_same(&machine.snapshot());
    // Their route is replaced by ours, and comes back.
    let before = machine.snapshot();
    machine.init("--take-over");
    machine.cleanup("");
    // The link takes MAC and MTU from its row.
    node.await_vswitchd();
    before.assert_same(&machine.snapshot());
}

#[test]
fn what_can_not_be_is_one_sentence_and_changes_nothing() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let refused = machine.podwire_node("init", "--interface eth7");
    refused.assert_says(
        Some(1),
        &[
            "so nothing was changed:\n  --interface eth7: there is no such link; the links are \
             br-int, eth0, far, lo, ovs-netdev\n",
        ],
    );
    for said in [
        "--mtu 100: expected 1280 to 65535 bytes",
        "--node-subnet 10.244.2.5/24: its host part is not zero: is 10.244.2.0/24 meant?",
        "--ovn-remote 192.0.2.9: \"192.0.2.9\" is not an OVSDB remote that podwire connects to; it \
         takes unix:/path, tcp:host:port and ssl:host:port",
        "--service-cidr 10.244.0.0/16: it overlaps the pod network 10.244.1.0/24",
    ] {
        // Each begins with what was given.
        let (arguments, _) = said.split_once(": ").unwrap();
        let refused = machine.podwire_node("init", arguments);
        assert_eq!(refused.stderr, format!("podwire node: {said}\n"));
        assert_ne!(refused.status.code(), Some(0));
    }
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_route_that_is_taken_over_is_named_as_it_is_and_returns_as_it_was() {
    let machine = Machine::new();
    let node = machine.node();
    let ip = |line: &str| drop(node.run("ip", line));
    ip("nexthop add id 7 via 192.0.2.1 dev eth0 onlink");
    for (route, named) in [
        ("blackhole 10.96.0.0/16", "blackhole proto boot"),
        ("unreachable 10.96.0.0/16", "unreachable proto boot"),
        ("throw 10.96.0.0/16 proto static", "throw proto static"),
        (
            "10.96.0.0/16 via 192.0.2.1 mtu 1400 advmss 1300",
            "via 192.0.2.1 dev eth0 proto boot",
        ),
        ("10.96.0.0/16 via 192.0.2.1 realm 5", "with RouteRealm"),
        (
            "10.96.0.0/16 nexthop via 192.0.2.1 nexthop via 192.0.2.2 weight 2",
            "over 2 next hops",
        ),
        (
            "10.96.0.0/16 via inet6 fe80::1 dev eth0",
            "dev eth0 proto boot",
        ),
        ("10.96.0.0/16 nhid 7", "with next hop 7"),
        (
            "fd00:10:96::/112 via fe80::1 dev eth0 pref high",
            "via fe80::1 dev eth0 proto boot",
        ),
    ] {
        ip(&format!("route add {route}"));
        let before = machine.snapshot();
        let refused = machine.podwire_node("init", "");
        assert!(refused.stderr.contains(named), "{route}: {refused:#?}");
        machine.init("--take-over");
        machine.cleanup("");
        before.assert_same(&machine.snapshot());
        ip(&format!("route del {route}"));
    }
}

#[test]
fn a_route_that_can_t_return_keeps_nothing_else_from_being_undone() {
    let machine = Machine::new();
    let node = machine.node();
    let ip = |line: &str| drop(node.run("ip", line));
    ip("route add 10.96.0.0/16 via 192.0.2.1");
    let before = machine.snapshot();
    machine.init("--take-over");
    ip("address del 192.0.2.11/24 dev eth0");
    for _ in 0..2 {
        let done = machine.podwire_node("cleanup", "");
        assert_eq!(done.status.code(), Some(1), "{done:#?}");
        let said = "cannot restore former route 10.96.0.0/16: ";
        assert!(done.stderr.contains(said), "{done:#?}");
    }
    assert_eq!(node.run("nft", "list ruleset"), "");
    assert!(!node.run("ip", "-o link").contains("ovn-k8s-mp0"));
    ip("address add 192.0.2.11/24 dev eth0");
    ip("route add default via 192.0.2.1 onlink dev eth0");
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn cleanup_leaves_what_a_successor_has_set_since() {
    let machine = Machine::new();
    let node = machine.node();
    machine.init("");
    node.vsctl(
        "set open_vswitch . external_ids:hostname=successor \
         external_ids:ovn-remote=tcp:198.51.100.1:6642",
    );
    node.run("sh", ["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]);
    let done = machine.cleanup("");
    let left = "left external_ids:hostname, which somebody else has set";
    assert!(done.contains(left), "{done}");
    let rows = node.ovsdb_rows("Open_vSwitch");
    let ids = &rows[0]["external_ids"];
    assert_eq!(ids["hostname"], "successor");
    assert_eq!(ids["ovn-remote"], "tcp:198.51.100.1:6642");
    assert_eq!(ids["ovn-encap-ip"], Value::Null);
    let forwarding = node.run("cat", "/proc/sys/net/ipv4/conf/eth0/forwarding");
    assert_eq!(forwarding.trim(), "1");
}

#[test]
fn cleanup_undoes_what_it_can_without_open_vswitch_and_without_its_mark() {
    let machine = Machine::new();
    let node = machine.node();
    let before = machine.snapshot();
    machine.init("");
    node.stop_ovsdb_server();
    let done = machine.podwire_node("cleanup", "");
    assert_eq!(done.status.code(), Some(1), "{done:#?}");
    let said = "Open vSwitch's database, which does not answer";
    assert!(done.stderr.contains(said), "{done:#?}");
    assert_eq!(node.run("nft", "list ruleset"), "");
    node.start_ovsdb_server();
    node.await_vswitchd();
    node.vsctl("remove open_vswitch . external_ids podwire.io/node");
    machine.cleanup("");
    // Only the mark knew of it.
    node.vsctl("set open_vswitch . external_ids:hostname=machine.example");
    before.assert_same(&machine.snapshot());
}

#[test]
fn cleanup_ends_though_the_api_server_does_not_answer() {
    let machine = Machine::new();
    machine.init("");
    let place = machine.node().place();
    // The kernel accepts, and nobody reads.
    let silent = place.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = silent.local_addr().unwrap();
    let flags = format!("--cluster --node-name node-a --k8s-apiserver http://{server}");
    let done = machine.podwire_node("cleanup", flags);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let said = "remove the node's annotations and resources: no answer within 10 s";
    assert!(done.stderr.contains(said), "{done:?}");
    // What is this machine's own is undone.
    assert!(done.stdout.contains("removed "), "{done:?}");
}
