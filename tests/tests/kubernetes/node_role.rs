//! The manifests of the node role, and their container as a process of a machine.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use podwire_tests::NodeRun;
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::machine::Machine;
use podwire_tests::ovn::Keys;
use serde_json::json;

use super::image::{HOST, Image};
use super::render::{manifests, render};
use super::{asked_for, rules};

#[test]
fn the_node_role_works_from_its_manifest_and_uses_all_its_rights_and_no_other() {
    let machine = Machine::new();
    let node = machine.node();
    // As docs/cluster.md puts them there.
    let keys = Keys::make(&["node-a"]);
    let directory = format!("{HOST}/etc/openvswitch/podwire");
    node.run("mkdir", format!("-p {directory}"));
    let files = keys.of("chassis/node-a").join(" ");
    node.run("cp", format!("{files} {directory}"));
    let before = machine.snapshot();
    // As systemd has it; the fixture's own is private.
    node.run("mount", "--make-rshared /run");
    let server = ApiServer::start_in(node.place());
    let mut object = apiserver::node("node-a", "192.0.2.11");
    let subnets = json!({"default": ["10.244.1.0/24", "fd00:10:244:1::/64"]});
    object["metadata"]["annotations"] = json!({"k8s.ovn.org/node-subnets": subnets.to_string()});
    server.apply(object);

    let objects = render(&manifests().join("../node"));
    let image = Image::of(node, &objects, "podwire-node", "node-a");
    let mut container = image.pod.containers[0].clone();
    let command = container.command.as_mut().unwrap();
    assert_eq!(command.pop().unwrap(), "--in-cluster");
    // The stand-in has no service accounts.
    command.push(format!("--k8s-apiserver={}", server.url()));
    let mut start = Command::new(image.program("node-role", &container));
    start.envs(image.environment.iter().cloned());
    start.env("PODWIRE_OVN_REMOTE", "ssl:192.0.2.9:6642");
    let run = NodeRun::launch_by(node, start);
    run.await_log("services follow the cluster", 1);
    run.await_log("in sync: all", 1);

    let probe = container.readiness_probe.unwrap().http_get.unwrap();
    let get = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", probe.path.unwrap());
    let answer = node.place().run(|| {
        let mut stream = TcpStream::connect((probe.host.unwrap(), 9477)).unwrap();
        stream.write_all(get.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 200 OK"));

    // Again and again, until there is an Event of it.
    let delete = ["address", "del", "10.244.1.2/24", "dev", "ovn-k8s-mp0"];
    let mut deleted = 0;
    while run.count("not restored for") == 0 {
        node.run("ip", delete);
        deleted += 1;
        // Not the line of an attempt that failed: another follows it.
        run.await_lines("restored", deleted, |line| {
            line.contains("restored") && line.contains("10.244.1.2/24")
        });
    }
    server.await_events("an Event", |events| !events.is_empty());
    let asked: BTreeSet<_> = server.requests().iter().map(asked_for).collect();
    assert_eq!(asked, rules(&objects));

    // Its own DaemonSet waits for the role's end, and undoes all of it.
    let cleanup = render(&manifests().join("../node/cleanup"));
    let image = Image::of(node, &cleanup, "", "node-a");
    let container = &image.pod.init_containers.as_ref().unwrap()[0];
    let program = image.program("cleanup", container);
    let wait = ["node", "cleanup", "--wait"];
    assert_eq!(container.command.as_ref().unwrap()[1..], wait);
    let waiting = node.podwire_live(wait);
    waiting.await_line(&["waiting for the end of the `podwire node`"]);
    waiting.terminate();
    assert!(waiting.await_end().success());
    run.stop();
    let cleaned = image.run(&program);
    assert!(cleaned.status.success(), "{cleaned:?}");
    // The mount of DirectoryOrCreate, empty.
    node.run("rmdir", "/run/podwire");
    before.assert_same(&machine.snapshot());
}
