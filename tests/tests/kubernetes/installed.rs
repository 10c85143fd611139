//! OVN as deploy/cluster installs it: the containers of the rendered manifests run in the root of
//! the image, on machines with the nodes' addresses.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use podwire_tests::TestNode;
use podwire_tests::ovn::{Central, Keys, OvnNode};
use podwire_tests::process::finish;
use serde_json::Value;

use super::image::HOST;
use super::pods::{Host, PodOn, Running};
use super::render::{manifests, parsed, whole};

const NORTHBOUND: &str = "podwire-ovn-northbound";
const SOUTHBOUND: &str = "podwire-ovn-southbound";
const CONTROLLER: &str = "podwire-ovn-controller";
const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// The image's root, as deploy/image/build makes it.
fn image() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let rootfs = manifests().join("../image/rootfs");
    let mut command = Command::new(rootfs);
    command.arg(root.path()).arg("ovn");
    let run = finish(command, b"", Duration::from_secs(60)).unwrap();
    run.success("deploy/image/rootfs");
    root
}

/// What [`whole`] renders, with the keys' Secrets, for databases on these machines.
fn objects(overlay: &str, keys: &Keys, members: &[String]) -> Vec<Value> {
    let deploy = manifests().join("..");
    let mut objects = whole(overlay);
    let is_settings = |it: &&mut Value| it["metadata"]["name"] == "podwire-ovn";
    let settings = objects.iter_mut().find(is_settings).unwrap();
    // These databases are small.
    settings["data"]["OVN_ELECTION_TIMER"] = "1000".into();
    for (number, member) in members.iter().enumerate() {
        settings["data"][format!("OVN_MEMBER_{number}")] = member.as_str().into();
    }
    let mut secrets = Command::new(deploy.join("ovn/secrets"));
    secrets.arg(keys.directory());
    let secrets = finish(secrets, b"", Duration::from_secs(60)).unwrap();
    let secrets = secrets.success("deploy/ovn/secrets");
    objects.extend(parsed(
        secrets.trim_start_matches("---\n"),
        Path::new("secrets"),
    ));
    objects
}

fn host<'h>(node: &'h OvnNode, image: &'h tempfile::TempDir) -> Host<'h> {
    Host {
        node,
        name: &node.name,
        address: node.tunnel_address(),
        image: image.path(),
    }
}

/// A pod's containers, each healthy by its probes.
fn start<'h>(pod: &PodOn<'h>) -> Vec<Running<'h>> {
    pod.init();
    serve(pod)
}

/// The same, without its init containers.
fn serve<'h>(pod: &PodOn<'h>) -> Vec<Running<'h>> {
    let containers = pod.containers();
    let running: Vec<_> = containers.into_iter().map(|it| pod.start(it)).collect();
    running.iter().for_each(Running::await_healthy);
    running
}

/// What a member's server says of its cluster.
fn status(northbound: &Running<'_>) -> String {
    let socket = "/run/ovn/ovnnb_db.ctl";
    northbound.run(&format!(
        "ovs-appctl --timeout=10 -t {socket} cluster/status OVN_Northbound"
    ))
}

/// The member that leads a database, by what they all say.
fn leader(members: &[Vec<Running<'_>>], control: &str, database: &str) -> usize {
    let command =
        format!("ovs-appctl --timeout=10 -t /run/ovn/{control} cluster/status {database}");
    loop {
        let leads = |it: &Vec<Running<'_>>| it[0].run(&command).contains("Role: leader");
        if let Some(leader) = members.iter().position(leads) {
            return leader;
        }
    }
}

/// Has Open vSwitch know the southbound database and the key's place, as podwire-node writes them.
fn introduce(node: &OvnNode, remotes: &str) {
    let place = "/etc/openvswitch/podwire";
    node.vsctl(format!(
        "set-ssl {place}/tls.key {place}/tls.crt {place}/ca.crt"
    ));
    node.make_bridge();
    node.set_remote(remotes);
}

#[test]
fn one_member_of_each_database_serves_ovn_northd_a_chassis_and_the_controllers() {
    let central = Central::without_databases();
    let node = central.node_without_controller("node-a", 1);
    let address = node.tunnel_address();
    let keys = Keys::make_for(&address, &["node-a"]);
    let objects = objects("ovn-one+ipv4", &keys, std::slice::from_ref(&address));
    let image = image();
    let host = host(&node, &image);
    let [northbound, southbound] =
        [NORTHBOUND, SOUTHBOUND].map(|it| start(&PodOn::new(&host, &objects, it)));
    introduce(&node, &format!("ssl:{address}:6642"));
    let pod = PodOn::new(&host, &objects, CONTROLLER);
    let mut chassis = start(&pod);
    southbound[0].run("ovn-sbctl --timeout=60 wait-until chassis node-a");
    northbound[0].run("ovn-nbctl --timeout=60 --wait=hv ls-add first");

    // A rollout of ovn-controller: the chassis stays.
    let before = southbound[0].run("ovn-sbctl get chassis node-a _uuid");
    chassis.remove(0).stop();
    let _next = start(&pod);
    northbound[0].run("ovn-nbctl --timeout=60 --wait=hv ls-add second");
    let after = southbound[0].run("ovn-sbctl get chassis node-a _uuid");
    assert_eq!(before, after);

    // The controllers' way is nobody else's, and a chassis writes what is its own.
    let sbctl = |place: &str, port: u16, line: &str| {
        let [key, certificate, ca] = keys.of(place);
        let mut command = Command::new("ovn-sbctl");
        command
            .args(["--timeout=10", "--no-leader-only"])
            .arg(format!("--db=ssl:{address}:{port}"))
            .args(["-p", &key, "-c", &certificate, "-C", &ca])
            .args(line.split(' '));
        let run = || finish(command, b"", Duration::from_secs(30));
        central.machine().place().run(run).unwrap()
    };
    let list = "--bare --columns=name list chassis";
    for (place, port) in [("controller", 16642), ("chassis/node-a", 6642)] {
        assert_eq!(sbctl(place, port, list).success(place).trim(), "node-a");
    }
    for (place, port) in [("controller", 6642), ("chassis/node-a", 16642)] {
        assert!(!sbctl(place, port, list).status.success(), "{place}");
    }
    let other = sbctl("chassis/node-a", 6642, "create chassis name=node-b");
    assert!(other.stderr.contains("RBAC rules"), "{}", other.stderr);
}

/// Members of both databases on three nodes, and an ovn-controller on each: all by TLS, from
/// nothing.
#[test]
fn three_members_make_a_cluster_outlive_each_of_them_and_take_back_one_without_its_disk() {
    let central = Central::without_databases();
    let nodes = [1, 2, 3]
        .map(|number: u8| central.node_without_controller(NAMES[usize::from(number) - 1], number));
    let addresses: Vec<_> = nodes.iter().map(|it| it.tunnel_address()).collect();
    let keys = Keys::make_for(&addresses.join(","), &NAMES);
    let objects = objects("ovn", &keys, &addresses);
    let image = image();
    let hosts = nodes.each_ref().map(|node| host(node, &image));
    let pods = |workload| {
        hosts
            .each_ref()
            .map(|it| PodOn::new(it, &objects, workload))
    };
    let (northbound, southbound) = (pods(NORTHBOUND), pods(SOUTHBOUND));

    // Nobody makes a cluster as long as one member does not say that it has none.
    let first = northbound[0].start("prepare");
    let second = northbound[1].start("prepare");
    let third = &addresses[2];
    first.await_log(&format!("{}: no. {third}: unknown.", addresses[1]));
    let third = northbound[2].start("prepare");
    first.succeed();
    let mut nb = vec![serve(&northbound[0])];
    for (place, prepared) in [second, third].iter().enumerate() {
        prepared.succeed();
        nb.push(serve(&northbound[1 + place]));
    }
    let (leading, mut sb) = first_start(&southbound);
    sb.insert(0, leading);

    let remotes: Vec<_> = addresses
        .iter()
        .map(|it| format!("ssl:{it}:6642"))
        .collect();
    let _chassis = [0, 1, 2].map(|place| {
        introduce(&nodes[place], &remotes.join(","));
        let chassis = start(&PodOn::new(&hosts[place], &objects, CONTROLLER));
        let name = NAMES[place];
        sb[place][0].run(&format!(
            "ovn-sbctl --no-leader-only --timeout=60 wait-until chassis {name}"
        ));
        chassis
    });
    // Waits until ovn-northd and all chassis have it.
    let make = |member: &Running<'_>, name: &str| {
        member.run(&format!(
            "ovn-nbctl --no-leader-only --timeout=80 --wait=hv ls-add {name}"
        ));
    };
    make(&nb[1][0], "first");

    // Each leader is killed with its pod, and comes back with its disk.
    let lost = leader(&nb, "ovnnb_db.ctl", "OVN_Northbound");
    nb.remove(lost).into_iter().for_each(Running::kill);
    make(&nb[0][0], "without-a-northbound-member");
    nb.insert(lost, start(&northbound[lost]));
    let lost = leader(&sb, "ovnsb_db.ctl", "OVN_Southbound");
    sb.remove(lost).into_iter().for_each(Running::kill);
    make(&nb[0][0], "without-a-southbound-member");
    sb.insert(lost, start(&southbound[lost]));

    // The first member, which once made the cluster, loses its disk and joins again.
    let before = status(&nb[1][0]);
    nb.remove(0).into_iter().for_each(Running::kill);
    nodes[0].run("rm", ["-r", "/var/lib/podwire/ovn"]);
    let emptied = PodOn::new(&hosts[0], &objects, NORTHBOUND);
    nb.insert(0, start(&emptied));
    nb[0][0].await_log("which this member was before, is no member any more");
    make(&nb[0][0], "with-a-new-disk");
    let switches =
        nb[0][0].run("ovn-nbctl --no-leader-only --bare --columns=name list logical_switch");
    assert_eq!(switches.split_whitespace().count(), 4, "{switches}");
    let after = status(&nb[0][0]);
    let cluster = |text: &str| {
        text.lines()
            .find(|it| it.starts_with("Cluster ID"))
            .map(str::to_owned)
    };
    assert_eq!(cluster(&before), cluster(&after));
    let servers = after.lines().filter(|it| it.contains(" at ssl:")).count();
    assert_eq!(servers, 3, "{after}");
}

#[test]
fn a_member_on_a_node_that_is_none_says_so_and_leaves_nothing() {
    let central = Central::without_databases();
    let node = central.node_without_controller("node-a", 1);
    let keys = Keys::make_for("192.0.2.7", &[]);
    let objects = objects("ovn-one", &keys, &["192.0.2.7".to_owned()]);
    let image = image();
    let host = host(&node, &image);
    let told = PodOn::new(&host, &objects, NORTHBOUND)
        .start("prepare")
        .fail();
    let address = node.tunnel_address();
    let text = format!(
        "this node's address, {address}, is none of OVN_MEMBER_0 to OVN_MEMBER_2: 192.0.2.7"
    );
    assert!(told.contains(&text), "{told}");
    assert_eq!(node.run("ls", "/var/lib/podwire/ovn"), "");
    // Nor has it a key as a chassis.
    let told = PodOn::new(&host, &objects, CONTROLLER).start("keys").fail();
    assert!(told.contains("node node-a has no key"), "{told}");
    // One that somebody put there serves.
    let own = node.path(&format!("{HOST}/etc/openvswitch/podwire"));
    fs::create_dir(&own).unwrap();
    fs::write(own.join("tls.key"), "by hand").unwrap();
    start_keys(&host, &objects);
    assert_eq!(fs::read(own.join("tls.key")).unwrap(), b"by hand");
}

/// Runs the init container with the node's key.
#[track_caller]
fn start_keys(host: &Host<'_>, objects: &[Value]) {
    PodOn::new(host, objects, CONTROLLER)
        .start("keys")
        .succeed();
}

/// Creates a database's file by this machine's schema as another release might have it.
fn create_other(node: &TestNode, version: &str, schema: &str, file: &str) {
    let text = fs::read_to_string(schema).unwrap();
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["version"] = version.into();
    fs::write(node.path("/run/other"), other.to_string()).unwrap();
    let directory = Path::new(file).parent().unwrap();
    fs::create_dir_all(node.path(directory.to_str().unwrap())).unwrap();
    node.run("ovsdb-tool", format!("create {file} /run/other"));
}

#[test]
fn a_database_of_an_older_ovn_gets_the_schema_of_the_image_and_one_of_a_newer_keeps_its() {
    let node = TestNode::new();
    node.run("ip", "link set lo up");
    let address = "192.0.2.7".to_owned();
    let keys = Keys::make_for(&address, &[]);
    let objects = objects("ovn-one", &keys, std::slice::from_ref(&address));
    let image = image();
    let host = Host {
        node: &node,
        name: "node-a",
        address,
        image: image.path(),
    };
    let (schema, file) = (
        "/usr/share/ovn/ovn-nb.ovsschema",
        "/var/lib/podwire/ovn/ovnnb_db.db",
    );
    let own = node.run("ovsdb-tool", format!("schema-version {schema}"));
    let own = own.trim();
    for (version, after, told) in [
        ("1.0.0", own, "has the schema of this OVN"),
        ("99.0.0", "99.0.0", "has the schema of a newer OVN, 99.0.0"),
    ] {
        create_other(&node, version, schema, file);
        let northbound = start(&PodOn::new(&host, &objects, NORTHBOUND));
        northbound[0].await_log(&format!("OVN_Northbound {told}"));
        let ask = "ovsdb-client get-schema-version unix:/run/ovn/ovnnb_db.sock OVN_Northbound";
        assert_eq!(northbound[0].run(ask), after);
        northbound.into_iter().for_each(Running::kill);
        node.run("rm", file);
    }
}

/// By IPv6, and one of the two databases.
#[test]
fn three_members_make_a_cluster_by_ipv6_and_take_back_one_without_its_disk() {
    let central = Central::without_databases();
    let nodes =
        [1, 2, 3].map(|number: u8| central.bare_node(NAMES[usize::from(number) - 1], number));
    let addresses: Vec<_> = nodes.iter().map(|it| it.underlay_ipv6()).collect();
    let keys = Keys::make_for(&addresses.join(","), &[]);
    let members: Vec<_> = addresses.iter().map(|it| format!("[{it}]")).collect();
    let objects = objects("ovn", &keys, &members);
    let image = image();
    let hosts = nodes.each_ref().map(|node| Host {
        address: node.underlay_ipv6(),
        ..host(node, &image)
    });
    let pods = hosts
        .each_ref()
        .map(|it| PodOn::new(it, &objects, NORTHBOUND));
    let (first, mut others) = first_start(&pods);
    first[0].run("ovn-nbctl --no-leader-only --timeout=60 ls-add kept");
    let place = format!(" at ssl:{}:6643)", members[2]);
    assert!(status(&first[0]).contains(&place), "{}", status(&first[0]));
    others.remove(1).into_iter().for_each(Running::kill);
    nodes[2].run("rm", ["-r", "/var/lib/podwire/ovn"]);
    let again = start(&PodOn::new(&hosts[2], &objects, NORTHBOUND));
    again[0].await_log("which this member was before, is no member any more");
    let servers = status(&again[0]).matches(&place).count();
    assert_eq!(servers, 1, "{}", status(&again[0]));

    // Two lose their disks at the same time, and by hand the third makes a cluster with the first.
    let all = others.into_iter().chain([first, again]);
    all.flatten().for_each(Running::kill);
    let directory = "/var/lib/podwire/ovn";
    let (left, copy) = (
        format!("{directory}/ovnnb_db.db"),
        format!("{directory}/copy"),
    );
    nodes[2].run("ovsdb-tool", format!("cluster-to-standalone {copy} {left}"));
    nodes[2].run("mv", format!("{copy} {left}"));
    let wrong = pods[2].start("prepare");
    nodes[1].run("rm", ["-r", directory]);
    nodes[0].run("rm", ["-r", directory]);
    let pods = hosts
        .each_ref()
        .map(|it| PodOn::new(it, &objects, NORTHBOUND));
    let saved = fs::read(nodes[2].path(&left)).unwrap();
    fs::write(nodes[0].path(&left), saved).unwrap();
    let (first, others) = {
        let prepared = [0, 1].map(|place| pods[place].start("prepare"));
        prepared[0].succeed();
        let first = serve(&pods[0]);
        let told = wrong.fail();
        assert!(
            told.contains("ovnnb_db.db is no member's, but ssl:"),
            "{told}"
        );
        nodes[2].run("rm", &*left);
        prepared[1].succeed();
        (first, [start(&pods[2]), serve(&pods[1])])
    };
    let kept = "ovn-nbctl --no-leader-only --timeout=60 --bare --columns=name list logical_switch";
    for member in others.iter().chain([&first]) {
        assert_eq!(member[0].run(kept), "kept");
    }
}

/// The containers of three members that have never run, or whose first has a database.
fn first_start<'h>(pods: &[PodOn<'h>; 3]) -> (Vec<Running<'h>>, Vec<Vec<Running<'h>>>) {
    let prepared = pods.each_ref().map(|it| it.start("prepare"));
    prepared[0].succeed();
    let first = serve(&pods[0]);
    prepared[1..].iter().for_each(Running::succeed);
    (first, pods[1..].iter().map(serve).collect())
}

#[test]
fn open_vswitch_in_pods_keeps_its_rows_and_takes_the_machines_name_for_its_chassis() {
    let node = TestNode::new();
    // As systemd has it; the fixture's own is private.
    node.run("mount", "--make-rshared /run");
    let objects = whole("plain");
    let image = image();
    let host = Host {
        node: &node,
        name: "node-a",
        address: String::new(),
        image: image.path(),
    };
    let schema = "/usr/share/openvswitch/vswitch.ovsschema";
    create_other(&node, "1.0.0", schema, "/var/lib/openvswitch/conf.db");
    let pod = PodOn::new(&host, &objects, "podwire-openvswitch");
    let running = start(&pod);
    let id = "--bare get open_vswitch . external_ids:system-id";
    assert_eq!(node.vsctl(id).trim(), "node-a");
    node.vsctl("add-br br-kept -- set bridge br-kept datapath_type=netdev");

    // Another pod in its place, on the same machine.
    running.into_iter().for_each(Running::kill);
    let name = node.path(&format!("{HOST}/etc/openvswitch/system-id.conf"));
    fs::write(name, "another\n").unwrap();
    let running = start(&pod);
    assert_eq!(node.vsctl("list-br").trim(), "br-kept");
    assert_eq!(node.vsctl(id).trim(), "node-a");

    // A machine with a name of its own, and no database.
    running.into_iter().for_each(Running::kill);
    node.run("rm", "/var/lib/openvswitch/conf.db");
    let running = start(&pod);
    assert_eq!(node.vsctl("list-br").trim(), "");
    assert_eq!(node.vsctl(id).trim(), "another");

    // Beside the machine's own Open vSwitch it does not start.
    let second = pod.start("database").fail();
    assert!(
        second.contains("ovsdb-server.pid: pidfile check failed"),
        "{second}"
    );
    assert!(
        running[0]
            .run("ovs-appctl --timeout=10 -t ovsdb-server version")
            .contains("3.")
    );
}
