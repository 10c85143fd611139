//! Rows of an older version, which had an ACL for each clause of a rule. The database's log says
//! what each transaction made of them.

use std::collections::{BTreeMap, BTreeSet};

use podwire_controller::cluster::policy::Direction;
use podwire_controller::want::policy::isolated_group;
use podwire_tests::apiserver::pod;
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_network, populated};
use crate::members::ports_in;
use crate::policies::policy;
use crate::primary;
use crate::user_networks::{OF_NAMESPACE, is_made, of_namespace};

/// The ACLs with clauses, each as (group, match), without what is before them.
fn with_clauses(acl: &Value) -> Option<(String, Vec<String>)> {
    let (group, rest) = acl["match"].as_str()?.split_once(" && ((")?;
    let clauses = rest.strip_suffix("))")?.split(") || (");
    Some((group.to_owned(), clauses.map(str::to_owned).collect()))
}

/// Replaces each ACL that has clauses by one for each of them.
fn make_older(central: &Central) {
    let northbound = central.northbound();
    let select = |table: &str| json!({ "op": "select", "table": table, "where": [] });
    let found = northbound
        .transact(&[select("ACL"), select("Port_Group")])
        .unwrap();
    let of = |at: usize| found[at]["rows"].as_array().unwrap().clone();
    let (acls, groups) = (of(0), of(1));
    let mut operations = Vec::new();
    for acl in &acls {
        let Some((group, clauses)) = with_clauses(acl) else {
            continue;
        };
        let uuid = &acl["_uuid"];
        let holder = groups
            .iter()
            .find(|it| it["acls"].to_string().contains(&uuid.to_string()));
        let holder = json!([["_uuid", "==", holder.unwrap()["_uuid"]]]);
        let mut made = Vec::new();
        for clause in clauses {
            let named = format!("acl{}", operations.len());
            let mut row = acl.as_object().unwrap().clone();
            row.retain(|column, _| !column.starts_with('_'));
            row.insert("match".to_owned(), format!("{group} && {clause}").into());
            operations.push(json!({ "op": "insert", "table": "ACL", "uuid-name": named,
                "row": row }));
            made.push(json!(["named-uuid", named]));
        }
        let changes = json!([["acls", "delete", uuid], ["acls", "insert", ["set", made]]]);
        operations.push(
            json!({ "op": "mutate", "table": "Port_Group", "where": holder,
            "mutations": changes }),
        );
    }
    northbound.transact(&operations).unwrap();
}

/// Tables as they were after a number of the log's records.
#[derive(Default)]
pub(crate) struct Replay {
    ports: BTreeMap<String, BTreeSet<String>>,
    acls: BTreeMap<String, BTreeSet<String>>,
    of_acl: BTreeMap<String, (String, String)>,
}

impl Replay {
    pub(crate) fn apply(&mut self, record: &Value) {
        for (uuid, row) in record["ACL"].as_object().into_iter().flatten() {
            let text = |column: &str| row[column].as_str().map(str::to_owned);
            match row.is_null() {
                true => drop(self.of_acl.remove(uuid)),
                false => {
                    let content = self.of_acl.entry(uuid.clone()).or_default();
                    content.0 = text("action").unwrap_or_else(|| content.0.clone());
                    content.1 = text("match").unwrap_or_else(|| content.1.clone());
                }
            }
        }
        for (uuid, row) in record["Port_Group"].as_object().into_iter().flatten() {
            if row.is_null() {
                self.ports.remove(uuid);
                self.acls.remove(uuid);
                continue;
            }
            // What a set has after a record is the symmetric difference.
            for (all, column) in [(&mut self.ports, "ports"), (&mut self.acls, "acls")] {
                let is = all.entry(uuid.clone()).or_default();
                *is = is
                    .symmetric_difference(&uuids(&row[column]))
                    .cloned()
                    .collect();
            }
        }
    }

    /// What the ACLs of a port's groups do.
    pub(crate) fn acls_of(&self, port: &str) -> Vec<&(String, String)> {
        let own = self.ports.iter().filter(|(_, ports)| ports.contains(port));
        let acls = own.filter_map(|(group, _)| self.acls.get(group)).flatten();
        acls.filter_map(|acl| self.of_acl.get(acl)).collect()
    }
}

pub(crate) fn uuids(value: &Value) -> BTreeSet<String> {
    let text = value.to_string();
    let words = text
        .split('"')
        .filter(|word| word.len() == 36 && word.contains('-'));
    words.map(str::to_owned).collect()
}

/// The records of the northbound database's log.
pub(crate) fn records(central: &Central) -> Vec<Value> {
    let log = std::fs::read_to_string(central.machine().path("/run/ovn/ovnnb_db.db")).unwrap();
    let records = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    records
        .filter(|record| record.get("tables").is_none())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_opens_or_closes_pods_when_an_older_version_s_rows_are_replaced() {
    let (central, server, mut controller) = populated().await;
    let ports = json!([{ "port": 80 }, { "port": 53, "protocol": "UDP" }]);
    let rule = json!({ "from": [{ "podSelector": {} }], "ports": ports });
    let spec = json!({
        "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [rule],
    });
    server.apply(policy("default", "some", spec));
    let isolated = BTreeSet::from(["default_db", "default_web"].map(str::to_owned));
    let is_isolated = || {
        let mut both = Direction::BOTH.into_iter();
        both.all(|it| ports_in(&central, &isolated_group("default", it)) == isolated)
    };
    let done = controller.until(|progress| progress.is_idle && is_isolated());
    done.await;
    controller.stop().await.unwrap();
    let matches = || -> Vec<String> {
        let acls = central.northbound().rows("ACL").unwrap();
        let mut all: Vec<String> = acls.iter().map(|acl| acl["match"].to_string()).collect();
        all.sort();
        all
    };
    let before = matches();
    make_older(&central);
    assert!(matches().len() > before.len() + 5, "{:?}", matches());
    let older = records(&central).len();

    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    assert_eq!(matches(), before);
    let ports = central.northbound().rows("Logical_Switch_Port").unwrap();
    let ports = ports
        .iter()
        .filter(|row| isolated.contains(row["name"].as_str().unwrap()));
    let ports: Vec<String> = ports.flat_map(|row| uuids(&row["_uuid"])).collect();
    assert_eq!(ports.len(), isolated.len());
    let mut replay = Replay::default();
    let all = records(&central);
    assert!(all.len() > older, "nothing was changed");
    for (number, record) in all.iter().enumerate() {
        replay.apply(record);
        for port in ports.iter().filter(|_| number + 1 >= older) {
            let acls = replay.acls_of(port);
            for (end, action, part) in [
                ("outport", "drop", ""),
                ("inport", "drop", ""),
                ("outport", "allow", "arp"),
                ("inport", "allow", "arp"),
                ("outport", "allow", "169.254.169.5"),
                ("outport", "allow", "inport == @"),
                ("outport", "allow", "tcp.dst == 80"),
                ("outport", "allow", "udp.dst == 53"),
            ] {
                let mut own = acls.iter().filter(|(_, text)| text.starts_with(end));
                let has = own.any(|(is, text)| is.starts_with(action) && text.contains(part));
                assert!(has, "{end} {action} {part}: record {number}, {record}");
            }
        }
    }
}

/// Gives the group of a primary network's locked ports the name that an older version gave it.
fn rename_lock(central: &Central) {
    let northbound = central.northbound();
    let rows = |table: &str| northbound.rows(table).unwrap();
    let is_lock = |name: &str| name.starts_with("udn_");
    let groups = rows("Port_Group");
    let locking = groups
        .iter()
        .filter(|row| row["external_ids"]["k8s.ovn.org/owner-type"] == "PrimaryNetwork");
    let name = locking.filter_map(|row| row["name"].as_str());
    let name = name.filter(|it| is_lock(it)).collect::<Vec<_>>();
    let [name] = name[..] else {
        panic!("{name:?}");
    };
    let older = "a4711";
    let mut operations = vec![json!({
        "op": "update", "table": "Port_Group", "where": [["name", "==", name]],
        "row": { "name": older },
    })];
    for acl in rows("ACL") {
        let text = acl["match"].as_str().unwrap().replace(name, older);
        operations.push(json!({
            "op": "update", "table": "ACL", "where": [["_uuid", "==", ["uuid", acl["_uuid"]]]],
            "row": { "match": text },
        }));
    }
    northbound.transact(&operations).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_unlocks_pods_when_a_primary_network_s_group_has_an_older_name() {
    let (central, server, mut controller) = populated().await;
    server.apply(primary::labelled("shop"));
    server.apply(of_namespace("blue", &primary::primary("10.1.0.0/24")));
    is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    for name in ["one", "two"] {
        server.apply(pod(
            "node-a",
            "shop",
            name,
            &format!("uid-of-{name}"),
            json!({}),
        ));
        await_network(&server, "shop", name);
    }
    controller.idle().await;
    controller.stop().await.unwrap();
    rename_lock(&central);
    let older = records(&central).len();
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let ports = central.northbound().rows("Logical_Switch_Port").unwrap();
    let locked = ["shop_one", "shop_two"].map(|name| {
        let row = ports.iter().find(|row| row["name"] == name).unwrap();
        uuids(&row["_uuid"]).pop_first().unwrap()
    });
    let mut replay = Replay::default();
    let all = records(&central);
    assert!(all.len() > older, "nothing was changed");
    for (number, record) in all.iter().enumerate() {
        replay.apply(record);
        for port in locked.iter().filter(|_| number + 1 >= older) {
            let acls = replay.acls_of(port);
            for end in ["outport", "inport"] {
                let mut own = acls.iter().filter(|(_, text)| text.starts_with(end));
                let has = own.any(|(action, _)| action == "drop");
                assert!(has, "{end}: record {number}, {record}");
            }
        }
    }
    // What is adapted needs nothing more.
    for flags in [&[][..], &["--adopt"]] {
        let mut next = Running::start(&central, &server, flags);
        let done = next.idle().await;
        assert_eq!((done.operations, done.writes), (0, 0), "{flags:?}");
        next.stop().await.unwrap();
    }
}
