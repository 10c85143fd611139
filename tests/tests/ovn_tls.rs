//! OVN's databases with TLS and access control, as docs/cluster.md sets them up: pods on two nodes
//! talk, nobody writes what is not his own, and everybody takes renewed keys without a restart.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{CHASSIS_REMOTE, COMMANDS, CONTROLLER_REMOTES, Central, Keys, OvnNode};
use podwire_tests::process::{Finished, finish};
use podwire_tests::{Place, traffic};
use serde_json::json;

/// A node whose ovn-controller has joined with its own keys.
fn join(central: &Central, keys: &Keys, name: &str, number: u8) -> OvnNode {
    let node = central.node_without_controller(name, number);
    let [key, certificate, ca] = keys.of(&format!("chassis/{name}"));
    node.vsctl(format!("--no-wait set-ssl {key} {certificate} {ca}"));
    node.make_bridge();
    node.set_remote(CHASSIS_REMOTE);
    node.start_controller();
    central.await_chassis(name);
    central.add_switch(&node);
    node
}

/// Runs ovn-nbctl or ovn-sbctl at a remote, with these files.
fn ctl(place: &Place, tool: &str, remote: &str, files: &[String; 3], command: &str) -> Finished {
    let [key, certificate, ca] = files;
    let mut run = std::process::Command::new(tool);
    run.args(["--timeout=15", "--no-leader-only"])
        .arg(format!("--db={remote}"))
        .args(["-p", key, "-c", certificate, "-C", ca])
        .args(command.split(' '));
    place
        .run(|| finish(run, b"", std::time::Duration::from_secs(30)))
        .unwrap()
}

#[test]
fn pods_talk_and_no_chassis_writes_what_is_another_s() {
    let (central, keys) = Central::secured(&["node-a", "node-b"]);
    let nodes = [
        join(&central, &keys, "node-a", 1),
        join(&central, &keys, "node-b", 2),
    ];
    let (_agents, [(web, _), (db, db_port)]) = central.pod_on_each(&nodes);
    let address: IpAddr = db_port.ipv4().parse().unwrap();
    traffic::ping_until_answered(web.place(), address).unwrap();
    traffic::tcp_echo(web.place(), db.place(), address, 1 << 16).unwrap();
    // The tools ask the southbound database with the keys of Open vSwitch.
    let traced = nodes[0].podwire(format!("trace web {address}"));
    traced.assert_says(Some(0), &["OVN delivers it to logical port tests_db"]);

    let own = keys.of("chassis/node-a");
    let by_a = |command: &str| ctl(nodes[0].place(), "ovn-sbctl", CHASSIS_REMOTE, &own, command);
    let encap = |name: &str| {
        let found = format!("--bare --columns=_uuid find encap chassis_name={name}");
        central.sbctl(found).trim().to_owned()
    };
    let (own_encap, other_encap) = (encap("node-a"), encap("node-b"));
    for command in [
        "set chassis node-b external_ids:stolen=true",
        "chassis-del node-b",
        &*format!("set encap {other_encap} ip=172.31.0.2"),
        &*format!("set encap {other_encap} options:dst_port=1"),
        "destroy chassis_private node-b",
        "set sb_global . options:stolen=true",
        "--all destroy logical_flow",
        "set-connection ptcp:6642",
    ] {
        let said = by_a(command).stderr.replace('\\', "");
        let expected = r#"RBAC rules for client "node-a" role "ovn-controller" prohibit"#;
        assert!(said.contains(expected), "{command}: {said}");
    }
    for command in [
        "set chassis node-a external_ids:own=true",
        &*format!("set encap {own_encap} options:dst_port=6081"),
    ] {
        by_a(command).success(command);
    }
    traffic::ping(web.place(), address, 3).unwrap();
    for (pod, node) in [(&web, &nodes[0]), (&db, &nodes[1])] {
        pod.del().success();
        node.leftovers().assert_none();
    }
}

#[test]
fn each_database_refuses_everybody_but_those_of_its_ca() {
    let (central, keys) = Central::secured(&["node-a"]);
    let strangers = Keys::make(&["node-a"]);
    let place = central.machine().place();
    let [northbound, southbound] = CONTROLLER_REMOTES;
    let (nb, sb) = ("ovn-nbctl", "ovn-sbctl");
    // The servers' own CAs, so that it is the server that refuses.
    let with_ca_of = |files: [String; 3], place: &str| {
        let [key, certificate, _] = files;
        let [_, _, ca] = keys.of(place);
        [key, certificate, ca]
    };
    let chassis = || keys.of("chassis/node-a");
    for (tool, remote, files) in [
        (nb, northbound, with_ca_of(chassis(), "controller")),
        (sb, southbound, with_ca_of(chassis(), "controller")),
        (
            sb,
            CHASSIS_REMOTE,
            with_ca_of(keys.of("controller"), "chassis/node-a"),
        ),
        (
            nb,
            northbound,
            with_ca_of(strangers.of("controller"), "controller"),
        ),
        (
            sb,
            CHASSIS_REMOTE,
            with_ca_of(strangers.of("chassis/node-a"), "chassis/node-a"),
        ),
    ] {
        let refused = ctl(place, tool, remote, &files, "show");
        assert!(!refused.status.success(), "{remote} {files:?}: {refused:?}");
    }
    for (tool, remote, files) in [
        (nb, northbound, keys.of("controller")),
        (sb, southbound, keys.of("controller")),
        (sb, CHASSIS_REMOTE, chassis()),
    ] {
        ctl(place, tool, remote, &files, "show").success(remote);
    }
    for remote in [northbound, southbound, CHASSIS_REMOTE] {
        let address = remote.trim_start_matches("ssl:");
        let mut plain = std::process::Command::new("openssl");
        plain.args(["s_client", "-tls1_2", "-connect", address]);
        let refused = place
            .run(|| finish(plain, b"", std::time::Duration::from_secs(30)))
            .unwrap();
        assert!(
            refused.stderr.contains("handshake failure"),
            "{remote}: {refused:?}"
        );
    }
}

/// As a chassis that pretends to be the database would be refused by the others.
#[test]
fn a_chassis_certificate_is_none_of_a_server() {
    let (central, keys) = Central::secured(&["node-a", "node-b"]);
    let [key, certificate, ca] = keys.of("chassis/node-a");
    central.sbctl(format!("set-ssl {key} {certificate} {ca}"));
    let files = keys.of("chassis/node-b");
    let refused = ctl(
        central.machine().place(),
        "ovn-sbctl",
        CHASSIS_REMOTE,
        &files,
        "show",
    );
    assert!(
        refused.stderr.contains("certificate verify failed"),
        "{refused:?}"
    );
}

#[test]
fn everybody_takes_renewed_keys_without_a_restart_and_pods_lose_nothing() {
    let (central, keys) = Central::secured(&["node-a", "node-b"]);
    let nodes = [
        join(&central, &keys, "node-a", 1),
        join(&central, &keys, "node-b", 2),
    ];
    let (_agents, [(web, _), (_db, db_port)]) = central.pod_on_each(&nodes);
    let address: IpAddr = db_port.ipv4().parse().unwrap();
    traffic::ping_until_answered(web.place(), address).unwrap();
    let old = keys.keep("chassis/node-a");
    let by =
        |files: &[String; 3]| ctl(nodes[0].place(), "ovn-sbctl", CHASSIS_REMOTE, files, "show");
    by(&old).success("with the old keys");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let pinging = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                traffic::ping(web.place(), address, 20).unwrap();
            }
        });
        // New CAs too: none of the old keys is believed by anybody who has taken the new ones.
        keys.replace();
        central.drop_clients();
        for node in &nodes {
            node.await_connected(CHASSIS_REMOTE, 2);
        }
        is_over.store(true, Ordering::Release);
        pinging.join().unwrap();
    });
    assert!(
        !by(&old).status.success(),
        "the old keys are still believed"
    );
    by(&keys.of("chassis/node-a")).success("with the new keys");
    // What OVN is told now still arrives.
    let (cache, _) = central.schedule(&nodes[0], "cache", 13);
    cache.add().success();
}

#[test]
fn a_controller_writes_one_database_and_removes_chassis_from_the_other() {
    let (central, keys) = Central::secured(&["node-a"]);
    let server = ApiServer::start_in(central.machine().place());
    for (name, address) in [("node-a", "172.31.0.2"), ("node-b", "172.31.0.3")] {
        server.apply(apiserver::node(name, address));
        central.sbctl(format!("chassis-add {name} geneve {address}"));
    }
    let [key, certificate, ca] = keys.of("controller");
    let [northbound, southbound] = CONTROLLER_REMOTES;
    let flags = format!(
        "--nb-db {northbound} --sb-db {southbound} --nb-private-key {key} \
         --nb-certificate {certificate} --nb-ca-certificate {ca}"
    );
    let controller = Controller::start(&central, &server, "one", &flags);
    controller.await_log("all rows are in sync");
    server.delete_object("Node", "", "node-b");
    let gone = json!([["name", "==", "node-b"]]);
    let southbound = central.southbound();
    southbound
        .wait("Chassis", gone, "==", &["name"], json!([]))
        .unwrap();
    assert_eq!(southbound.rows("Chassis").unwrap().len(), 1);
}

#[test]
fn the_node_role_sets_its_tunnel_s_port_and_leaves_as_its_own_chassis() {
    let (central, keys) = Central::secured(&["node-a"]);
    let node = central.node_without_controller("node-a", 1);
    node.make_bridge();
    node.set_key("system-id", "node-a");
    let [key, certificate, ca] = keys.of("chassis/node-a");
    let init = format!(
        "node init --mode ovn --node-name node-a --interface {} --node-subnet 10.128.1.0/24 \
         --ovn-remote {CHASSIS_REMOTE} --encap-port 6082 --ovn-private-key {key} \
         --ovn-certificate {certificate} --ovn-ca-cert {ca}",
        node.uplink()
    );
    thread::scope(|scope| {
        let init = scope.spawn(|| node.podwire(init));
        // It waits for the chassis, whose rows it then writes.
        node.start_controller();
        init.join().unwrap().success("podwire node init");
    });
    let found = central.sbctl("--bare --columns=options find encap chassis_name=node-a");
    assert!(found.contains("dst_port=6082"), "{found}");
    let done = node.podwire("node cleanup --cluster");
    let done = done.success("podwire node cleanup");
    assert!(
        done.contains("removed chassis node-a from the southbound"),
        "{done}"
    );
    assert_eq!(central.sbctl("--bare --columns=name list chassis"), "");
}

#[test]
fn the_commands_of_the_documentation_are_those_that_the_tests_run() {
    let page = include_str!("../../docs/cluster.md");
    for command in COMMANDS {
        assert!(page.contains(&format!("# {command}\n")), "{command}");
    }
}
