//! A later OVN and Open vSwitch under podwire's parts, which stay, in the order of
//! docs/whole-network.md.

use std::collections::BTreeMap;

use podwire_tests::Row;
use podwire_tests::ovn::Central;
use serde_json::json;

use super::Programs;
use super::paths::{Cluster, TABLES, changes, on_nodes};

/// The programs of $PODWIRE_UPGRADE/later-ovn, and the schemas beside them.
const LATER: &str = "later-ovn";

/// Rows of the northbound database by table and uuid.
type Rows = BTreeMap<(&'static str, String), Row>;

fn rows(central: &Central) -> Rows {
    let northbound = central.northbound();
    let mut all = Rows::new();
    for table in TABLES {
        for row in northbound.rows(table).unwrap() {
            let uuid = row["_uuid"].as_str().unwrap().to_owned();
            all.insert((table, uuid), row);
        }
    }
    all
}

/// Rows that are new or gone, and columns that were there and have another value.
fn changed(before: &Rows, after: &Rows) -> Vec<String> {
    let mut all = Vec::new();
    for (place, row) in after
        .iter()
        .filter(|(place, _)| !before.contains_key(place))
    {
        all.push(format!("+ {place:?}: {row:?}"));
    }
    for (place, row) in before {
        let Some(now) = after.get(place) else {
            all.push(format!("- {place:?}: {row:?}"));
            continue;
        };
        let columns = row.iter().filter(|(name, _)| *name != "_version");
        let other = columns.filter(|(name, value)| now.get(*name) != Some(value));
        all.extend(
            other.map(|(name, value)| {
                format!("{place:?}: {name} was {value}, is {:?}", now.get(name))
            }),
        );
    }
    all
}

#[test]
fn pods_keep_talking_while_ovn_and_open_vswitch_become_later_ones() {
    let Some(programs) = Programs::find() else {
        return;
    };
    let later = programs.of(LATER);
    if !later.exists() {
        eprintln!("not run: no later OVN");
        return;
    }
    programs.replace("later", &["podwire", "podwire-cni", "podwire-controller"]);
    let of_ovn = [
        "ovn-controller",
        "ovn-northd",
        "ovsdb-server",
        "ovs-vswitchd",
    ];
    programs.replace("this-ovn", &of_ovn);
    let cluster = Cluster::start();
    let Cluster { central, nodes, .. } = &cluster;
    let controllers = cluster.start_controllers();
    let runs = cluster.join();
    let agents = nodes.each_ref().map(|it| cluster.start_agent(it));
    let pods = cluster.wire(&runs);
    let traffic = cluster.start_traffic(&pods);
    traffic.proves("the start");
    let before = (rows(central), on_nodes(nodes));

    // An ovn-controller from 24.09 on writes the limit of each pod's connections to Open vSwitch's
    // database. Where there is no column for it, nothing else is written either, and no new pod is
    // ready; so the node role says that it lacks it, and there is no limit.
    let limited = || {
        let switches = central.northbound().rows("Logical_Switch").unwrap();
        let of_nodes = nodes.iter().filter(|node| {
            let mut own = switches.iter().filter(|row| row["name"] == *node.name);
            own.any(|row| row["other_config"].to_string().contains("ct-zone-limit"))
        });
        of_nodes.count()
    };
    assert_eq!(limited(), 0);
    // 1. ovn-controller. One of another version has other flows, and replaces all.
    programs.replace(LATER, &["ovn-controller"]);
    for node in nodes {
        node.hand_over_controller();
        node.start_controller();
        central.sync();
        traffic.comes_back(&format!("ovn-controller on {}", node.name));
    }
    // 2. The databases, then ovn-northd.
    programs.replace(LATER, &["ovsdb-server"]);
    central.restart_databases();
    central.sync();
    traffic.proves("the databases' servers");
    central.convert_databases(&later);
    central.sync();
    traffic.proves("the databases' schemas");
    programs.replace(LATER, &["ovn-northd"]);
    central.end_northd();
    central.start_northd();
    central.sync();
    traffic.comes_back("ovn-northd");
    // As podwire-controller writes them where there are tiers.
    let has_tier = json!([["tier", "==", 2]]);
    let northbound = central.northbound();
    northbound
        .wait("ACL", has_tier, "!=", &["tier"], json!([]))
        .unwrap();
    central.sync();
    traffic.proves("podwire-controller's rows");
    println!("rows: {:#?}", changed(&before.0, &rows(central)));
    // ovn-controller makes its tunnels anew, under keys of another form.
    let of_tunnels = |it: &String| it.contains(",ovn-node-") || it.contains(": Bridge: ");
    let others = changes(&before.1, &on_nodes(nodes)).into_iter();
    let others: Vec<String> = others.filter(|it| !of_tunnels(it)).collect();
    assert_eq!(others, Vec::<String>::new());
    for run in &runs {
        assert_eq!(run.count("restored "), 0, "{}", run.log());
    }

    // 3. podwire's parts are the same, and work with it.
    for node in nodes {
        node.podwire("check").success("podwire check");
        let doctor = node.podwire("doctor");
        let is_well = "ovn-controller is connected";
        assert!(doctor.stdout.contains(is_well), "{doctor:?}");
    }
    let late = cluster.wire_late(&pods);
    traffic.comes_back("a pod by the later OVN");

    // 4. Open vSwitch, node by node. The script that starts it converts its database.
    programs.replace(LATER, &["ovs-vswitchd"]);
    let schema = later.join("vswitch.ovsschema");
    let convert = format!("convert unix:/run/openvswitch/db.sock {}", schema.display());
    for node in nodes {
        node.kill_ovsdb_server();
        node.start_ovsdb_server();
        node.run("ovsdb-client", &*convert);
        node.kill_vswitchd();
        node.start_vswitchd();
    }
    traffic.comes_back("Open vSwitch");
    let limit = json!([[
        "other_config",
        "includes",
        ["map", [["ct-zone-limit", "131072"]]]
    ]]);
    for node in nodes {
        let mut of_node = limit.clone();
        of_node
            .as_array_mut()
            .unwrap()
            .push(json!(["name", "==", node.name]));
        northbound
            .wait("Logical_Switch", of_node, "!=", &["name"], json!([]))
            .unwrap();
    }
    central.sync();
    traffic.proves("the limit of connections");
    drop(traffic);
    for controller in controllers {
        assert!(controller.stop().success());
    }
    cluster.take_down(pods.into_iter().chain([late]), runs, agents);
}
