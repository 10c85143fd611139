//! OVN's databases on three members, with relays between them and the nodes: members and relays
//! that are killed while pods come cost no pod.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use podwire_tests::apiserver::{ApiServer, node, pod};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{Central, Clustered, MEMBERS, Members, OvnNode, RELAYS};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["node-a", "node-b"];
/// Pods that must come, at least, between one kill and the next.
const BETWEEN: usize = 20;
/// Pods that come at the same time.
const TOGETHER: usize = 8;
/// How often a wait of a quarter of a minute is repeated: ovn-northd and ovn-controller double the
/// pause between their attempts up to 8 s, and may meet servers that are followers or dead.
const WAITS: usize = 6;

fn name_of(number: usize) -> String {
    format!("pod-{number}")
}

/// The port of a pod in the switch of its node: what an agent's ADD writes.
fn wire(node: &OvnNode, number: usize) {
    let name = name_of(number);
    node.vsctl(format!(
        "--no-wait add-port br-int {name} -- set interface {name} type=internal \
         external_ids:iface-id=default_{name} external_ids:iface-id-ver=uid-of-{name}"
    ));
}

/// What the controller gave a pod.
fn network_of(server: &ApiServer, number: usize) -> String {
    let network = |pod: &Value| {
        let text = pod["metadata"]["annotations"]["k8s.ovn.org/pod-networks"].as_str();
        text.map(str::to_owned)
    };
    let name = name_of(number);
    let pod = server.await_object(("Pod", "default", &name), |pod| network(pod).is_some());
    network(&pod).unwrap()
}

/// Pods that come until told to end, on both nodes in turn.
struct Load<'n> {
    server: &'n ApiServer,
    nodes: [&'n OvnNode; 2],
    ends: AtomicBool,
    made: AtomicUsize,
}

impl Load<'_> {
    fn run(&self) {
        while !self.ends.load(Ordering::Relaxed) {
            let number = self.made.load(Ordering::Relaxed);
            if let Some(before) = number.checked_sub(TOGETHER) {
                network_of(self.server, before);
            }
            let node = self.nodes[number % 2];
            let name = name_of(number);
            let uid = format!("uid-of-{name}");
            let object = pod(&node.name, "default", &name, &uid, json!({}));
            self.server.apply(object);
            wire(node, number);
            self.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until so many more have come, and both nodes have installed the last of each.
    fn await_more(&self, members: &Members<'_>, alive: usize) {
        let from = self.made.load(Ordering::Relaxed);
        while self.made.load(Ordering::Relaxed) < from + BETWEEN {
            std::thread::yield_now();
        }
        for number in [from + BETWEEN - 2, from + BETWEEN - 1] {
            let name = format!("default_{}", name_of(number));
            await_up(members, alive, &name);
        }
    }
}

fn await_up(members: &Members<'_>, alive: usize, port: &str) {
    let is_it = json!([["name", "==", port], ["up", "==", true]]);
    let northbound = members.database(Clustered::Northbound, alive);
    let wait = |_| {
        let (table, is_it) = ("Logical_Switch_Port", is_it.clone());
        northbound
            .wait(table, is_it, "!=", &["name"], json!([]))
            .is_ok()
    };
    assert!((0..WAITS).any(wait), "{port} is not up");
}

/// The names that a database has in a table's column.
fn names(members: &Members<'_>, database: Clustered, table: &str, column: &str) -> Vec<String> {
    let rows = members.database(database, 0).rows(table).unwrap();
    let names = rows.iter().filter_map(|row| row[column].as_str());
    let mut pods: Vec<_> = names
        .filter(|name| name.starts_with("default_pod-"))
        .map(str::to_owned)
        .collect();
    pods.sort();
    pods
}

#[test]
fn members_and_relays_that_are_killed_while_pods_come_cost_no_pod() {
    let central = Central::without_databases();
    let members = Members::start(&central);
    let server = ApiServer::start_in(central.machine().place());
    let remotes = [members.remotes_of_nodes(), members.remotes_by_relays()];
    let nodes = [0, 1].map(|place| {
        let (name, number) = (NODES[place], u8::try_from(place + 1).unwrap());
        let it = central.node_without_controller(name, number);
        server.apply(node(name, &it.tunnel_address()));
        it.make_bridge();
        it.set_remote(&remotes[place]);
        it.start_controller();
        it
    });
    let flags = format!(
        "--nb-db {} --sb-db {} --cluster-subnets 10.244.0.0/16/20",
        Clustered::Northbound.remotes(),
        Clustered::Southbound.remotes()
    );
    let controller = Controller::start(&central, &server, "one", &flags);
    controller.await_log("all rows are in sync");

    let load = Load {
        server: &server,
        nodes: nodes.each_ref(),
        ends: AtomicBool::new(false),
        made: AtomicUsize::new(0),
    };
    std::thread::scope(|scope| {
        // It ends also when an assertion fails here.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&load.ends);
        scope.spawn(|| load.run());
        load.await_more(&members, 0);
        for (database, what) in [
            (Clustered::Northbound, "the northbound leader"),
            (Clustered::Southbound, "the southbound leader"),
        ] {
            let leader = members.leader(database);
            eprintln!("{what}, member {leader}, is killed");
            members.kill(leader);
            load.await_more(&members, (leader + 1) % MEMBERS);
            members.revive(leader);
        }
        let leaders = [Clustered::Northbound, Clustered::Southbound].map(|it| members.leader(it));
        let follower = (0..MEMBERS).find(|it| !leaders.contains(it)).unwrap();
        eprintln!("a follower, member {follower}, is killed");
        members.kill(follower);
        load.await_more(&members, leaders[0]);
        members.revive(follower);
        for relay in 0..RELAYS {
            eprintln!("relay {relay} is killed");
            members.kill_relay(relay);
            load.await_more(&members, 0);
            members.revive_relay(relay);
        }
    });

    // Each pod has one port in both databases, an address of its own, and its flows.
    let made = load.made.load(Ordering::Relaxed);
    for number in 0..made {
        await_up(&members, 0, &format!("default_{}", name_of(number)));
    }
    let mut wanted: Vec<_> = (0..made)
        .map(|it| format!("default_{}", name_of(it)))
        .collect();
    wanted.sort();
    let rows = names(
        &members,
        Clustered::Northbound,
        "Logical_Switch_Port",
        "name",
    );
    assert_eq!(rows, wanted);
    let bound = names(
        &members,
        Clustered::Southbound,
        "Port_Binding",
        "logical_port",
    );
    assert_eq!(bound, wanted);
    let annotated = (0..made).map(|number| network_of(&server, number));
    assert_eq!(annotated.collect::<BTreeSet<_>>().len(), made);
    assert!(controller.stop().success());
}
