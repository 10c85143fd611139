//! What one service contains does not hold up another, and what a machine lacks does not either.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use podwire_tests::apiserver::Request;
use podwire_tests::machine::overwrite_rule;
use podwire_tests::{agent_binary, traffic};
use serde_json::{Value, json};

use crate::host::{Host, machine, udp};
use crate::{endpoints, service};

const OWN: &[(&str, &str)] = &[("172.31.0.2", "node-a")];

#[test]
fn source_ranges_that_overlap_restrict_their_service_and_hold_up_no_other() {
    let ranges = |ranges: &[&str]| json!({"loadBalancerSourceRanges": ranges});
    let some = [
        "172.0.0.0/8",
        "172.31.0.77/24",
        "172.31.0.0/25",
        "fd00::/8",
        "fd00:31::/64",
    ];
    let all = ["172.31.0.0/24", "0.0.0.0/0", "198.51.100.0/24", "::/0"];
    let machine = machine();
    let objects = [
        service("guarded", 10, true, ranges(&some)),
        endpoints("guarded", OWN),
        service("other", 11, true, json!({})),
        endpoints("other", OWN),
    ];
    let host = Host::start(&machine, &objects);
    let central = host.central.machine();
    central.run("ip", "address add 198.51.100.1/32 dev underlay");
    let server = udp(host.place(), "172.31.0.2:8080");
    let clients = ["198.51.100.1:0", "172.31.0.1:0"].map(|from| udp(host.outside(), from));
    let mut bytes = [0; 16];
    let mut received = || {
        let length = server.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    for client in &clients {
        client.send_to(b"other", "203.0.113.111:80").unwrap();
        assert_eq!(received(), "other");
    }
    for (client, word) in clients.iter().zip(["denied", "allowed"]) {
        client.send_to(word.as_bytes(), "203.0.113.110:80").unwrap();
    }
    assert_eq!(received(), "allowed");
    host.apply_and_wait(service("guarded", 10, true, ranges(&all)));
    for client in &clients {
        client.send_to(b"both", "203.0.113.110:80").unwrap();
        assert_eq!(received(), "both");
    }
    assert_eq!(host.run.count("nft refuse"), 0, "{}", host.run.log());
    host.end();
}

#[test]
fn a_service_that_nft_refuses_is_left_out_named_counted_and_reported() {
    let machine = machine();
    let mut objects = Vec::new();
    for n in 10..30 {
        let name = format!("web-{n}");
        objects.push(service(&name, n, true, json!({})));
        objects.push(endpoints(&name, OWN));
    }
    let (central, node) = &machine;
    let command = Command::new(agent_binary());
    let host = Host::start_by((central, node), &objects, command, "203.0.113.17 ");
    let listening = "172.31.0.2:8080".parse().unwrap();
    let reaches = |n: u16| {
        let by = Some(format!("172.31.0.2:{}", 30_000 + n).parse().unwrap());
        traffic::tcp_echo_by(host.outside(), host.place(), listening, by, 1000)
    };
    reaches(10).unwrap();
    reaches(29).unwrap();
    assert!(
        !node
            .run("nft", "list table inet podwire-services")
            .contains("10.96.0.17")
    );

    // Who looks is told, also by the exit code.
    let show = |format: &str| {
        let mut arguments = node.host_arguments("show", Some(&host.server));
        arguments.extend(["-o".to_owned(), format.to_owned()]);
        node.podwire(arguments)
    };
    let words = ["service default/web-17 is left out", "File exists"];
    show("text").assert_says(Some(1), &words);
    let said: Value = serde_json::from_str(&show("json").stdout).unwrap();
    assert_eq!(said["well"], false);
    assert_eq!(said["run"]["well"], false);
    let page = metrics(&host);
    assert!(page.contains("podwire_node_services_refused 1\n"), "{page}");
    assert!(page.contains("podwire_node_well 1\n"), "{page}");
    let events = host
        .server
        .await_events("an Event", |events| !events.is_empty());
    assert_eq!(events[0]["involvedObject"]["name"], "web-17");
    assert_eq!(events[0]["involvedObject"]["uid"], "uid-of-web-17");
    let message = events[0]["message"].as_str().unwrap();
    assert!(
        message.contains("node-a") && message.contains("File exists"),
        "{message}"
    );

    // Others' changes are followed, without another search.
    host.scripts();
    host.apply_and_wait(endpoints("web-11", &[("172.31.0.1", "node-b")]));
    assert_eq!(host.run.count("nft refuses a service"), 1);
    // It is in as soon as it is one that nft takes.
    host.apply_and_wait(service("web-17", 17, true, json!({"externalIPs": []})));
    reaches(17).unwrap();
    assert_eq!(show("text").status.code(), Some(0));
    assert!(metrics(&host).contains("podwire_node_services_refused 0\n"));
    assert_eq!(host.server.events().len(), 1);
    host.end();
}

#[test]
fn a_service_that_can_t_be_read_holds_up_no_other() {
    let machine = machine();
    let unreadable = |name: &str, n: u16| {
        let mut service = service(name, n, true, json!({}));
        service["spec"]["ports"] = "all of them".into();
        service
    };
    let mut odd = service("odd", 12, true, json!({}));
    odd["status"]["conditions"] = json!([{ "type": "A", "lastTransitionTime": null }]);
    let objects = [unreadable("strange", 10), odd, endpoints("odd", OWN)];
    let host = Host::start(&machine, &objects);
    let listening = "172.31.0.2:8080".parse().unwrap();
    let reaches = |n: u16| {
        let by = Some(format!("172.31.0.2:{}", 30_000 + n).parse().unwrap());
        traffic::tcp_echo_by(host.outside(), host.place(), listening, by, 1000)
    };
    reaches(12).unwrap();
    host.server.apply(unreadable("odd", 12));
    host.apply_and_wait(service("good", 13, true, json!({})));
    host.apply_and_wait(endpoints("good", OWN));
    reaches(13).unwrap();
    reaches(12).unwrap();
    let page = metrics(&host);
    assert!(
        page.contains("podwire_node_unreadable_objects 2\n"),
        "{page}"
    );
    let events = host
        .server
        .await_events("Events", |events| events.len() == 2);
    assert_eq!(events[0]["involvedObject"]["name"], "strange");
    assert_eq!(events[0]["reason"], "Unreadable");
    host.end();
}

/// The server takes what the role writes, and does not answer.
#[test]
fn an_api_server_that_does_not_answer_delays_no_restore_and_no_end() {
    let machine = machine();
    let host = Host::start(&machine, &[]);
    let cidrs = |node: &Value| node["metadata"]["annotations"]["k8s.ovn.org/host-cidrs"].clone();
    let node = ("Node", "", "node-a");
    host.server
        .await_object(node, |node| !cidrs(node).is_null());
    let patches = |requests: &[Request]| {
        let patches = requests.iter().filter(|it| it.method == "PATCH");
        patches.count()
    };
    let before = patches(&host.server.requests());
    host.server.hold(true);
    host.node.run("ip", "address add 172.31.0.99/32 dev eth0");
    host.server
        .await_requests("a write", |requests| patches(requests) > before);
    let restored = host.run.count("restored address");
    host.node.run("ip", "address flush dev ovn-k8s-mp0");
    host.run.await_log("restored address", restored + 1);
    host.end();
}

fn metrics(host: &Host<'_>) -> String {
    let connect = || TcpStream::connect("127.0.0.1:9477");
    let mut stream = host.place().run(connect).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_service_s_rule_that_is_another_under_its_old_comment_is_put_back() {
    let machine = machine();
    let host = Host::start(
        &machine,
        &[service("web", 10, true, json!({})), endpoints("web", OWN)],
    );
    let list = || host.node.run("nft", "list table inet podwire-services");
    let before = list();
    overwrite_rule(host.node, "podwire-services");
    host.run
        .await_log("restored nftables table inet podwire-services", 1);
    assert_eq!(list(), before);
    host.end();
}

#[test]
fn a_table_that_is_changed_again_and_again_is_left_for_a_while() {
    let machine = machine();
    let objects = [service("web", 10, true, json!({})), endpoints("web", OWN)];
    let host = Host::start(&machine, &objects);
    for number in 1..=11 {
        overwrite_rule(host.node, "podwire-services");
        let restored = "restored nftables table inet podwire-services";
        host.run.await_log(restored, number);
    }
    let paused = "nftables table inet podwire-services was restored 10 times";
    host.run.await_log(paused, 1);
    host.end();
}

/// As in an image from scratch: neither /etc/protocols nor /etc/services, and a pid namespace of
/// its own, so that the kernel names the role's own changes by process ids that the role does not
/// know.
#[test]
fn without_files_to_name_protocols_by_the_table_is_written_once() {
    let machine = machine();
    let objects = [
        service("web", 10, true, json!({"sessionAffinity": "ClientIP"})),
        endpoints("web", OWN),
        service(
            "v6",
            11,
            false,
            json!({"loadBalancerSourceRanges": ["fd00::/8"]}),
        ),
        endpoints("v6", &[("fd00:31::2", "node-a")]),
    ];
    let (central, node) = &machine;
    let mut command = Command::new("unshare");
    let image = "mount --bind /dev/null /etc/protocols && mount --bind /dev/null /etc/services && \
                 exec \"$0\" \"$@\"";
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--mount"]);
    command.args(["sh", "-c", image]).arg(agent_binary());
    let host = Host::start_by((central, node), &objects, command, "");
    // Each time the role has looked at everything again.
    for number in 1..4 {
        node.run("ip", "address del 10.128.1.2/24 dev ovn-k8s-mp0");
        host.run.await_log("restored address 10.128.1.2/24", number);
    }
    let log = host.run.log();
    assert_eq!(host.run.count("services follow the cluster"), 1, "{log}");
    assert_eq!(host.run.count("restored nftables"), 0, "{log}");

    // Its own changes have it list nothing: of all but the last, it has been notified by the end.
    host.lists();
    for address in ["fd00:31::1", "fd00:31::2", "fd00:31::1", "fd00:31::2"] {
        host.apply_and_wait(endpoints("v6", &[(address, "node-a")]));
    }
    assert_eq!(host.lists(), "");
    overwrite_rule(node, "podwire-services");
    host.run
        .await_log("restored nftables table inet podwire-services", 1);
    assert!(host.lists().contains("list table inet podwire-services"));
    host.end_by_kill();
}
