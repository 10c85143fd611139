//! Upgrades under traffic: no packet is lost, and nothing that is in place changes. `make
//! test-upgrade` runs them; without the other programs they do nothing.
//!
//! The programs that the fixtures start are links in $PODWIRE_UPGRADE/now, which is in PATH, too.
//! A package replaces programs as [`Programs::replace`] does: by a rename.

mod later_ovn;
mod paths;

use std::path::PathBuf;

use podwire_tests::NodeRun;

use paths::{Cluster, changes, in_place};

/// The directory with `now`, and beside it a directory of programs for each version.
struct Programs(PathBuf);

impl Programs {
    fn find() -> Option<Self> {
        let found = std::env::var_os("PODWIRE_UPGRADE").map(PathBuf::from);
        if found.is_none() {
            eprintln!("not run: `make test-upgrade` has the other programs");
        }
        found.map(Self)
    }

    fn of(&self, version: &str) -> PathBuf {
        self.0.join(version)
    }

    fn replace(&self, version: &str, programs: &[&str]) {
        for program in programs {
            let (new, link) = (self.0.join("new"), self.0.join("now").join(program));
            let _ = std::fs::remove_file(&new);
            std::os::unix::fs::symlink(self.of(version).join(program), &new).unwrap();
            std::fs::rename(&new, link).unwrap();
        }
    }
}

/// From the programs of an earlier revision to these, in the order of docs/whole-network.md.
#[test]
fn pods_keep_talking_while_every_part_is_replaced_and_nothing_in_place_changes() {
    let Some(programs) = Programs::find() else {
        return;
    };
    programs.replace("earlier", &["podwire", "podwire-cni", "podwire-controller"]);
    let cluster = Cluster::start();
    let Cluster {
        central,
        server,
        nodes,
    } = &cluster;
    let [first, second] = cluster.start_controllers();
    let runs = cluster.join();
    let agents = nodes.each_ref().map(|it| cluster.start_agent(it));
    let pods = cluster.wire(&runs);
    let traffic = cluster.start_traffic(&pods);
    traffic.proves("the start");
    let before = in_place(central, nodes);

    // 1. ovn-controller, as its pod's preStop ends it; the same version here.
    for node in nodes {
        node.hand_over_controller();
        node.start_controller();
    }
    central.sync();
    traffic.proves("ovn-controller");
    // 2. ovn-northd.
    central.end_northd();
    central.start_northd();
    central.sync();
    traffic.proves("ovn-northd");
    let now = in_place(central, nodes);
    assert_eq!(
        changes(&before, &now),
        Vec::<String>::new(),
        "by OVN's restart"
    );

    // 3. podwire-controller: the one that stands by first, as a rollout may, then the leader.
    programs.replace("later", &["podwire-controller"]);
    second.stop();
    let second = cluster.start_controller("two");
    second.await_log("standing by");
    first.stop();
    let told = second.await_log("all rows are in sync");
    println!("podwire-controller: {told}");
    central.sync();
    traffic.proves("podwire-controller");
    let now = in_place(central, nodes);
    assert_eq!(changes(&before, &now), Vec::<String>::new(), "{told}");

    // The node role, and the agent with its plugin, node by node.
    programs.replace("later", &["podwire", "podwire-cni"]);
    let runs: Vec<_> = nodes
        .iter()
        .zip(runs)
        .map(|(node, run)| {
            assert!(run.stop().success());
            let run = NodeRun::start(node, node.joining("run", server));
            assert_eq!(run.count("restored "), 0, "{}", run.log());
            run
        })
        .collect();
    traffic.proves("podwire node run");
    let after = in_place(central, nodes);
    let (rules, others): (Vec<_>, Vec<_>) = changes(&before, &after)
        .into_iter()
        .partition(|it| it.contains(": nft "));
    assert_eq!(others, Vec::<String>::new(), "by the node role");
    println!("of its own nftables: {rules:#?}");
    let before = after;
    let agents: Vec<_> = nodes
        .iter()
        .zip(agents)
        .map(|(node, agent)| {
            assert!(agent.stop().success());
            let agent = cluster.start_agent(node);
            agent.await_log(r#""message":"ready","ports":2"#);
            agent
        })
        .collect();
    traffic.proves("the agent");
    let now = in_place(central, nodes);
    assert_eq!(
        changes(&before, &now),
        Vec::<String>::new(),
        "by the agents"
    );

    // What the former programs made, the new ones find right, and undo; and new pods come.
    for node in nodes {
        node.podwire("check").success("podwire check");
        node.podwire("doctor");
    }
    let late = cluster.wire_late(&pods);
    traffic.proves("a pod by the new programs");

    // 4. Open vSwitch, node by node: nothing is forwarded until it has its flows again, and no more
    // is needed for that.
    for node in nodes {
        node.kill_vswitchd();
        node.start_vswitchd();
    }
    traffic.comes_back("ovs-vswitchd");
    drop(traffic);
    assert!(second.stop().success());
    cluster.take_down(pods.into_iter().chain([late]), runs, agents);
}
