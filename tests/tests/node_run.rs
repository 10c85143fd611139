//! `podwire node run`: what it makes, it keeps.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use podwire_tests::apiserver::{self, ApiServer, Request};
use podwire_tests::http::get_from;
use podwire_tests::machine::{Machine, overwrite_rule};
use podwire_tests::scrape::Scrape;
use podwire_tests::{NodeRun, agent_binary};
use serde_json::{Value, json};

const LINK: &str = "ovn-k8s-mp0";

#[test]
fn every_item_that_somebody_deletes_or_changes_is_put_back() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let run = machine.start_run("");
    let node = machine.node();
    let write = |sysctl: &str, value: &str| {
        let line = format!("echo {value} >/proc/sys/{sysctl}");
        node.run("sh", ["-c", &line]);
    };
    let ip = |line: &str| drop(node.run("ip", line));
    let nft = |line: &str| drop(node.run("nft", line));
    let vsctl = |line: &str| drop(node.vsctl(line));
    let deeds: [(&dyn Fn(), &str); 25] = [
        (
            &|| ip("route flush dev ovn-k8s-mp0"),
            "address 10.244.1.2/24",
        ),
        (
            &|| ip("-6 route flush dev ovn-k8s-mp0"),
            "address fd00:10:244:1::2/64",
        ),
        (
            &|| ip("route replace 10.96.0.0/16 via 10.244.1.1 mtu 1300"),
            "route 10.96.0.0/16",
        ),
        (
            &|| nft("add table inet podwire-node { flags dormant; }"),
            "nftables table inet podwire-node",
        ),
        (
            &|| nft("add chain inet podwire-node forward { policy drop; }"),
            "nftables table inet podwire-node",
        ),
        (
            &|| ip("address del 10.244.1.2/24 dev ovn-k8s-mp0"),
            "address 10.244.1.2/24",
        ),
        (
            &|| ip("address del fd00:10:244:1::2/64 dev ovn-k8s-mp0"),
            "address fd00:10:244:1::2/64",
        ),
        (
            &|| ip("address flush dev ovn-k8s-mp0"),
            "address 10.244.1.2/24",
        ),
        (
            &|| ip("neighbour del 10.244.1.1 dev ovn-k8s-mp0"),
            "neighbour 10.244.1.1",
        ),
        (
            &|| ip("neighbour replace 10.244.1.1 lladdr 02:00:00:00:00:09 dev ovn-k8s-mp0"),
            "neighbour 10.244.1.1",
        ),
        (&|| ip("route del 10.96.0.0/16"), "route 10.96.0.0/16"),
        (
            &|| ip("-6 route del fd00:10:96::/112"),
            "route fd00:10:96::/112",
        ),
        (
            &|| ip("route replace 10.244.0.0/16 via 192.0.2.1"),
            "route 10.244.0.0/16",
        ),
        (&|| ip("link set ovn-k8s-mp0 down"), "link ovn-k8s-mp0"),
        (
            &|| write("net/ipv4/conf/ovn-k8s-mp0/forwarding", "0"),
            "sysctl net.ipv4.conf.ovn-k8s-mp0",
        ),
        (
            &|| write("net/ipv4/conf/eth0/forwarding", "0"),
            "sysctl net.ipv4.conf.eth0",
        ),
        (&|| nft("flush ruleset"), "nftables table inet podwire-node"),
        (
            &|| nft("flush chain inet podwire-node postrouting"),
            "nftables table inet podwire-node",
        ),
        (
            &|| nft("add rule inet podwire-node postrouting drop"),
            "nftables table inet podwire-node",
        ),
        (
            &|| vsctl("--no-wait remove open_vswitch . external_ids ovn-encap-ip"),
            "external_ids:ovn-encap-ip",
        ),
        (
            &|| vsctl("--no-wait set open_vswitch . external_ids:hostname=else"),
            "external_ids:hostname",
        ),
        (
            &|| vsctl("--no-wait clear open_vswitch . external_ids"),
            "external_ids:ovn-remote",
        ),
        (
            &|| vsctl("--no-wait set interface ovn-k8s-mp0 mtu_request=1300"),
            "port ovn-k8s-mp0",
        ),
        (&|| vsctl("set port ovn-k8s-mp0 tag=7"), "port ovn-k8s-mp0"),
        (&|| vsctl("del-port ovn-k8s-mp0"), "port ovn-k8s-mp0"),
    ];
    for (deed, item) in deeds {
        let text = format!("restored {item}");
        let count = run.count(&text);
        deed();
        run.await_log(&text, count + 1);
        machine.await_well();
    }
    assert!(run.stop().success());
    machine.await_well();
    // Clearing external_ids took with it that somebody else had set two of them.
    machine.cleanup("");
    let set = [
        "set",
        "open_vswitch",
        ".",
        "external_ids:hostname=machine.example",
    ];
    node.vsctl(
        &[
            &["--no-wait"],
            &set[..],
            &["external_ids:system-id=a-chassis"],
        ]
        .concat(),
    );
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_rule_that_is_another_under_its_old_comment_is_noticed() {
    let machine = Machine::new();
    let run = machine.start_run("");
    overwrite_rule(machine.node(), "podwire-node");
    run.await_log("restored nftables table inet podwire-node", 1);
    machine.await_well();
    assert!(run.stop().success());
    // Also by one who comes later.
    overwrite_rule(machine.node(), "podwire-node");
    let (code, shown) = machine.show();
    assert_eq!(code, Some(1), "{shown}");
    machine.init("");
    machine.await_well();
    let again = machine.init("");
    assert!(again.contains("0 steps: 0 changes"), "{again}");
    machine.cleanup("");
}

#[test]
fn who_did_it_and_when_stands_in_the_log_in_show_and_in_the_metrics() {
    let machine = Machine::new();
    let run = machine.start_run("--metrics-address 127.0.0.1:9477");
    let node = machine.node();
    // A process that lives on, so that its name can still be read.
    let del = "ip address del 10.244.1.2/24 dev ovn-k8s-mp0";
    node.run("sh", ["-c", del]);
    let line = run.await_log("restored address 10.244.1.2/24", 1);
    assert!(line.contains("(was missing); removed by"), "{line}");
    node.run("nft", "flush ruleset");
    let line = run.await_log("restored nftables table", 1);
    assert!(line.contains("removed by nft (process "), "{line}");
    machine.await_well();
    let (_, shown) = machine.show();
    let restored = shown["restored"].as_array().unwrap();
    let table = restored
        .iter()
        .find(|it| it["item"] == "nftables table inet podwire-node")
        .unwrap();
    assert_eq!(table["was"], "was missing");
    assert!(table["at"].as_str().unwrap().ends_with('Z'), "{table}");

    let page = node.place().run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9477").unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    });
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    let page = Scrape::parse(body).unwrap();
    let count = |kind: &str| page.value("podwire_node_restored_total", &[("kind", kind)]);
    assert_eq!(count("table"), Some(1.0), "{body}");
    // By its former name too, for one release.
    let former = page.value("podwire_node_put_back_total", &[("kind", "table")]);
    assert_eq!(former, Some(1.0), "{body}");
    assert_eq!(count("address"), Some(1.0), "{body}");
    assert_eq!(page.value("podwire_node_well", &[]), Some(1.0), "{body}");
    run.stop();
    machine.cleanup("");
}

#[test]
fn open_vswitch_may_restart_and_lose_its_database() {
    let machine = Machine::new();
    let run = machine.start_run("");
    let node = machine.node();
    node.stop_vswitchd();
    node.start_vswitchd();
    machine.await_well();
    node.stop_ovsdb_server();
    // What is in the kernel is kept meanwhile.
    node.run("ip", format!("address del 10.244.1.2/24 dev {LINK}"));
    run.await_log("restored address 10.244.1.2/24", 1);
    node.start_ovsdb_server();
    node.await_vswitchd();
    machine.await_well();

    node.stop_vswitchd();
    node.lose_database();
    node.start_ovsdb_server();
    run.await_log("restored external_ids:ovn-remote", 1);
    // ovn-controller makes its bridge by what it reads there.
    node.start_vswitchd();
    node.add_bridge("br-int");
    machine.await_well();
    run.stop();
}

#[test]
fn what_is_taken_away_again_and_again_is_left_alone_for_a_while() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    let mut object = apiserver::node("node-a", "192.0.2.11");
    let (gateway, theirs) = (
        "k8s.ovn.org/l3-gateway-config",
        r#"{"blue":{"mode":"shared"}}"#,
    );
    object["metadata"]["annotations"][gateway] = theirs.into();
    server.apply(object);
    let url = server.url();
    let run = machine.start_run(format!("--k8s-apiserver {url}"));
    let text = "restored route 10.96.0.0/16";
    for round in 1..=11 {
        machine.node().run("ip", "route del 10.96.0.0/16");
        run.await_log(text, round);
    }
    run.await_log("route 10.96.0.0/16 was restored 10 times within 60 s", 1);
    machine.node().run("ip", "route del 10.96.0.0/16");
    run.await_state("not restored for a while: route 10.96.0.0/16");
    // The others are kept all the same.
    machine.node().run("ip", "route del 10.244.0.0/16");
    run.await_log("restored route 10.244.0.0/16", 1);
    assert_eq!(run.count(text), 11);
    let is_told = |event: &Value| {
        event["reason"] == "RestoredTooOften"
            && event["involvedObject"]["kind"] == "Node"
            && event["involvedObject"]["uid"] == "uid-of-node-a"
            && event["message"]
                .as_str()
                .unwrap()
                .starts_with("route 10.96.0.0/16 was restored")
    };
    let awaited = "an Event on the Node";
    let events = server.await_events(awaited, |events| events.iter().any(is_told));
    assert_eq!(
        events.iter().filter(|event| is_told(event)).count(),
        1,
        "{events:#?}"
    );
    run.stop();

    // What the API server was told goes with the node.
    let annotation = "k8s.ovn.org/host-cidrs";
    let annotations =
        || server.object("Node", "", "node-a").unwrap()["metadata"]["annotations"].clone();
    assert!(annotations().get(annotation).is_some(), "{}", annotations());
    let both = r#"{"blue":{"mode":"shared"},"default":{"mode":""}}"#;
    assert_eq!(annotations()[gateway], both);
    let flags = [
        "--cluster",
        "--node-name",
        "node-a",
        "--k8s-apiserver",
        &url,
    ];
    let done = machine.podwire_node("cleanup", flags);
    assert!(
        done.stdout.contains("annotations of node node-a"),
        "{done:?}"
    );
    // No southbound database answers here.
    assert!(
        done.stderr
            .contains("later, there: ovn-sbctl chassis-del a-chassis"),
        "{done:?}"
    );
    assert!(annotations().get(annotation).is_none(), "{}", annotations());
    assert_eq!(annotations()[gateway], theirs);
}

#[test]
fn the_nodes_condition_says_what_pods_lack_there_until_cleanup() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    let mut object = apiserver::node("node-a", "192.0.2.11");
    let ready = json!({ "type": "Ready", "status": "True" });
    let of_cloud = json!({ "type": "NetworkUnavailable", "status": "True",
                           "reason": "NoRouteCreated", "message": "not yet" });
    object["status"]["conditions"] = json!([ready, of_cloud]);
    server.apply(object);
    let url = server.url();
    let run = machine.start_run(format!("--k8s-apiserver {url}"));
    let of_network = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().unwrap().clone();
        assert!(conditions.contains(&ready), "{node:#}");
        let mut all = conditions.into_iter();
        all.find(|it| it["type"] == "NetworkUnavailable")
    };
    let told = |status: &str, reason: &str, message: &str| {
        let says = |node: &Value| {
            of_network(node).is_some_and(|it| {
                it["status"] == status
                    && it["reason"] == reason
                    && it["message"].as_str().unwrap().contains(message)
            })
        };
        let node = server.await_object(("Node", "", "node-a"), says);
        of_network(&node).unwrap()
    };
    let well = told("False", "PodwireNodeInSync", "as planned");
    assert!(well["lastTransitionTime"].is_string(), "{well:#}");

    // Whoever can't look does not say that all is well.
    machine.node().stop_ovsdb_server();
    let unwell = told("True", "PodwireNodeNotInSync", "database does not answer");
    assert!(unwell["lastTransitionTime"].is_string(), "{unwell:#}");
    machine.node().start_ovsdb_server();
    told("False", "PodwireNodeInSync", "");
    run.stop();

    let flags = [
        "--cluster",
        "--node-name",
        "node-a",
        "--k8s-apiserver",
        &url,
    ];
    // No southbound database answers here, which comes after this.
    machine.podwire_node("cleanup", flags);
    assert_eq!(
        of_network(&server.object("Node", "", "node-a").unwrap()),
        None
    );
}

/// The schema is this machine's, with and without the columns that Open vSwitch 3.3 brought.
#[test]
fn a_switch_that_knows_no_limit_of_connections_is_told_while_it_does_not() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    server.apply(apiserver::node("node-a", "192.0.2.11"));
    let node = machine.node();
    let database = "unix:/run/openvswitch/db.sock";
    let said = node.run(
        "ovsdb-client",
        format!("get-schema {database} Open_vSwitch"),
    );
    let mut schema: Value = serde_json::from_str(&said).unwrap();
    let with_limit = |schema: &mut Value, version: &str, is_there: bool| {
        let columns = schema["tables"]["Datapath"]["columns"].as_object_mut();
        let columns = columns.unwrap();
        drop(columns.remove("ct_zone_default_limit"));
        if is_there {
            let optional = json!({ "type": { "key": "integer", "min": 0, "max": 1 } });
            columns.insert("ct_zone_default_limit".to_owned(), optional);
        }
        schema["version"] = version.into();
        schema.as_object_mut().unwrap().remove("cksum");
        let file = "/run/converted.ovsschema";
        std::fs::write(node.path(file), schema.to_string()).unwrap();
        node.run("ovsdb-client", format!("convert {database} {file}"));
    };
    let told = |value: &str| {
        let is_told = |node: &Value| {
            node["metadata"]["annotations"]["k8s.ovn.org/podwire-no-connection-limit"] == value
        };
        server.await_object(("Node", "", "node-a"), is_told);
    };
    with_limit(&mut schema, "90.0.0", false);
    let run = machine.start_run(format!("--k8s-apiserver {}", server.url()));
    told("true");
    with_limit(&mut schema, "91.0.0", true);
    told("");
    run.stop();
}

/// Waits for the last of the Node's annotations: an answer that is awaited still would be held.
#[track_caller]
fn await_all_written(server: &ApiServer) -> Value {
    let last = "k8s.ovn.org/l3-gateway-config";
    let is_written = |node: &Value| node["metadata"]["annotations"].get(last).is_some();
    server.await_object(("Node", "", "node-a"), is_written)
}

fn writes(requests: &[Request]) -> usize {
    requests.iter().filter(|it| it.method == "PATCH").count()
}

#[test]
fn a_write_for_a_node_that_was_replaced_meanwhile_is_no_failure() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    let node = || apiserver::node("node-a", "192.0.2.11");
    server.apply(node());
    let run = machine.start_run(format!("--k8s-apiserver {}", server.url()));
    let own = "k8s.ovn.org/host-cidrs";
    let is_written = |node: &Value| node["metadata"]["annotations"].get(own).is_some();
    await_all_written(&server);
    let before = writes(&server.requests());

    server.hold(true);
    let mut reset = node();
    reset["metadata"]["annotations"]["other"] = "anything".into();
    server.apply(reset);
    server.await_requests("another write", |requests| writes(requests) > before);
    let mut other = node();
    other["metadata"]["uid"] = "another-uid".into();
    server.apply(other);
    server.hold(false);
    let written = server.await_object(("Node", "", "node-a"), is_written);
    assert_eq!(written["metadata"]["uid"], "another-uid");
    assert_eq!(
        run.count("write annotations of the Node"),
        0,
        "{}",
        run.log()
    );
    run.stop();
}

#[test]
fn a_write_that_was_made_though_nobody_heard_the_answer_is_no_trouble_for_long() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    server.apply(apiserver::node("node-a", "192.0.2.11"));
    let run = machine.start_run(format!("--k8s-apiserver {}", server.url()));
    let written = await_all_written(&server);
    let before = writes(&server.requests());
    server.hold(true);
    server.apply(apiserver::node("node-a", "192.0.2.11"));
    let both = "that of the annotations, and then of the condition";
    server.await_requests(both, |requests| writes(requests) == before + 2);
    // As if they were made by the server that does not answer.
    server.apply(written);
    run.await_log("write the condition NetworkUnavailable of the Node", 1);
    let unwritten = run.count("write annotations of the Node");
    assert_eq!(unwritten, 0, "{}", run.log());
    server.hold(false);
    run.stop();
}

#[test]
fn the_service_manager_hears_again_and_again_that_the_role_lives() {
    let machine = Machine::new();
    let mut command = Command::new(agent_binary());
    command.args(machine.arguments("run", ""));
    // In microseconds; half of it is how often it is told (sd_watchdog_enabled(3)).
    command.env("WATCHDOG_USEC", "400000");
    let run = NodeRun::launch_by(machine.node(), command);
    run.await_state("READY=1");
    for _ in 0..3 {
        run.await_state("WATCHDOG=1");
    }
    assert!(run.stop().success());
}

#[test]
fn the_tunnels_end_follows_the_uplink_s_address_unless_it_is_named() {
    let machine = Machine::new();
    let node = machine.node();
    let move_to = |from: &str, to: &str| {
        node.run("ip", format!("address del {from} dev eth0"));
        node.run("ip", format!("address add {to} dev eth0"));
        node.run("ip", "route replace default via 192.0.2.1 onlink dev eth0");
    };
    let encap = || {
        let rows = node.ovsdb_rows("Open_vSwitch");
        rows[0]["external_ids"]["ovn-encap-ip"].clone()
    };
    let run = machine.start_run("");
    move_to("192.0.2.11/24", "192.0.2.12/24");
    run.await_log(
        "changed with the machine: external_ids:ovn-encap-ip = 192.0.2.12",
        1,
    );
    assert_eq!(encap(), json!("192.0.2.12"));
    assert_eq!(run.count("restored"), 0, "{}", run.log());
    run.stop();
    // Without the southbound database, nobody knows whether it has the new address.
    let (code, shown) = machine.show();
    assert_eq!(code, Some(1), "{shown}");
    machine.cleanup("");

    let run = machine.start_run("--encap-ip 192.0.2.12");
    move_to("192.0.2.12/24", "192.0.2.13/24");
    node.run("ip", "route del 10.96.0.0/16");
    run.await_log("restored route 10.96.0.0/16", 1);
    assert_eq!(encap(), json!("192.0.2.12"));
    run.stop();
}

#[test]
fn a_node_is_ready_only_when_everything_is_there() {
    let machine = Machine::new();
    let node = machine.node();
    node.vsctl("del-br br-int");
    let arguments = machine.arguments("run", "");
    let run = NodeRun::launch(node, &arguments);
    run.await_state("STATUS=waiting for bridge br-int, which ovn-controller creates");
    assert_eq!(run.count("ready"), 0, "{}", run.log());
    node.add_bridge("br-int");
    run.await_state("READY=1");
    assert!(run.stop().success());

    // A foreign item ends it before anything is changed, as it does init.
    machine.cleanup("");
    node.run("ip", "route add 10.96.0.0/16 via 192.0.2.1 proto static");
    let before = machine.snapshot();
    let run = NodeRun::launch(node, &arguments);
    assert_eq!(run.await_end().code(), Some(1));
    let said = "route 10.96.0.0/16: another one exists via 192.0.2.1 dev eth0 proto static";
    assert!(run.log().contains(said), "{}", run.log());
    before.assert_same(&machine.snapshot());
}

#[test]
fn a_service_beside_the_service_network_is_named_and_the_node_is_not_well() {
    let machine = Machine::new();
    let server = ApiServer::start_in(machine.node().place());
    server.apply(apiserver::node("node-a", "192.0.2.11"));
    let kubernetes = |address| {
        let service = apiserver::service("default", "kubernetes", address, 443);
        server.apply(service);
    };
    kubernetes("10.43.0.1");
    let flags = format!(
        "--k8s-apiserver {} --metrics-address 127.0.0.1:9477",
        server.url()
    );
    let run = NodeRun::launch(machine.node(), machine.arguments("run", flags));
    run.await_state(
        "STATUS=--service-cidr 10.96.0.0/16,fd00:10:96::/112: service default/kubernetes has \
         10.43.0.1, which is not in it",
    );
    let place = machine.node().place();
    let health = || get_from(place, "127.0.0.1:9477", "/healthz").unwrap().0;
    assert_eq!(health(), 503);
    kubernetes("10.96.0.1");
    run.await_state("in sync: all");
    assert_eq!(health(), 200);
    run.stop();
}

#[test]
fn an_item_that_can_t_be_applied_holds_up_no_other() {
    let machine = Machine::new();
    let run = machine.start_run("");
    let node = machine.node();
    let sysctl = "/proc/sys/net/ipv4/conf/eth0/forwarding";
    node.run("mount", format!("--bind {sysctl} {sysctl}"));
    node.run("mount", format!("-o remount,ro,bind {sysctl}"));
    // This writes those of every link.
    for value in ["1", "0"] {
        let line = format!("echo {value} >/proc/sys/net/ipv4/ip_forward");
        node.run("sh", ["-c", &line]);
    }
    let failing = "cannot apply sysctl net.ipv4.conf.eth0.forwarding";
    run.await_log(failing, 1);
    node.run("nft", "flush ruleset");
    run.await_log("restored nftables table inet podwire-node", 1);
    assert_eq!(
        run.count("restored sysctl net.ipv4.conf.eth0"),
        0,
        "{}",
        run.log()
    );
    // Indeed, and in the round in which the other one failed.
    let tables = node.run("nft", "list tables");
    assert!(tables.contains("inet podwire-node"), "{tables}");
    node.run("umount", sysctl);
    machine.await_well();
    let restored = run.count("restored nftables table inet podwire-node");
    assert_eq!(restored, 1, "{}", run.log());
    run.stop();
}

#[test]
fn a_role_whose_changes_come_to_nothing_says_so_before_it_is_ready_and_still_ends() {
    let machine = Machine::new();
    let node = machine.node();
    let sysctl = "/proc/sys/net/ipv4/conf/eth0/forwarding";
    // It takes every value, and never has it.
    let swallow = || drop(node.run("mount", format!("--bind /dev/null {sysctl}")));
    let undone = "something undoes podwire's changes of sysctl net.ipv4.conf.eth0.forwarding";
    swallow();
    let run = machine.launch_run("");
    run.await_state(&format!("STATUS={undone}"));
    // All others are there meanwhile.
    node.run("nft", "list table inet podwire-node");
    assert_eq!(run.count(" ready"), 0, "{}", run.log());
    let ended = run.stop();
    assert!(ended.success(), "{ended:?}");

    let run = machine.launch_run("");
    run.await_state(&format!("STATUS={undone}"));
    node.run("umount", sysctl);
    run.await_state("in sync: all");
    run.stop();
}

#[test]
fn the_record_of_what_was_done_comes_back_when_somebody_removes_it() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let run = machine.start_run("");
    let node = machine.node();
    let journal = || node.run("cat", "/run/podwire/node/journal");
    let written = journal();
    node.remove_under("/run/podwire");
    run.await_log("the role's record was removed", 1);
    assert_eq!(journal(), written);
    node.run("nft", "flush ruleset");
    run.await_log("restored nftables table inet podwire-node", 1);
    machine.await_well();
    // Nobody else changes the machine meanwhile.
    let refused = machine.podwire_node("cleanup", "");
    assert!(
        refused.stderr.contains("another `podwire node`"),
        "{refused:?}"
    );
    run.stop();
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn the_first_line_of_the_log_names_each_server_with_its_setting_and_where_that_comes_from() {
    let machine = Machine::new();
    let mut command = Command::new(agent_binary());
    command.args(machine.arguments("run", "--k8s-apiserver http://127.0.0.1:1"));
    command.env("PODWIRE_OVSDB", "unix:/run/openvswitch/db.sock");
    let run = NodeRun::launch_by(machine.node(), command);
    run.await_log("dropped all other privileges", 1);
    let log = run.log();
    let first = log.lines().next().unwrap_or_default();
    let expected = "--mode ovn, --ovsdb unix:/run/openvswitch/db.sock ($PODWIRE_OVSDB), \
                    --ovn-remote tcp:192.0.2.9:6642, --k8s-apiserver http://127.0.0.1:1";
    assert!(first.contains(expected), "{first}");
    run.stop();
}

#[test]
fn tunnels_stay_at_the_uplink_while_it_has_a_default_route_or_nobody_has() {
    let machine = Machine::new();
    let node = machine.node();
    let ip = |line: &str| drop(node.run("ip", line));
    let encap = || {
        let rows = node.ovsdb_rows("Open_vSwitch");
        rows[0]["external_ids"]["ovn-encap-ip"].clone()
    };
    ip("route add default via 192.0.2.1 onlink dev eth0 metric 100");
    ip("route del default via 192.0.2.1 metric 0");
    let run = machine.start_run("");
    ip("link add vpn type veth peer name vpn-far");
    ip("link set vpn up");
    ip("address add 198.51.100.7/24 dev vpn");
    ip("route add default via 198.51.100.1 onlink dev vpn metric 50");
    run.await_log("the default route is by vpn: eth0 stays the uplink", 1);
    assert_eq!(encap(), json!("192.0.2.11"));
    machine.await_well();

    // Without any, everything else is kept.
    ip("route del default metric 50");
    ip("route del default metric 100");
    node.run("nft", "flush ruleset");
    run.await_log("restored nftables table inet podwire-node", 1);
    assert_eq!(encap(), json!("192.0.2.11"));

    ip("route add default via 198.51.100.1 onlink dev vpn");
    run.await_log("the uplink is vpn now, and no longer eth0", 1);
    run.await_log("external_ids:ovn-encap-ip = 198.51.100.7", 1);
    run.stop();
}
