//! What happens to leaders and databases: killed in a transaction, moved, restored from a backup;
//! and rows of ovn-kubernetes, taken over.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use podwire_controller::run::RunError;
use podwire_ovs::client::{Client, ClientConfig, Remote};
use podwire_ovs::nb::{self, Table};
use podwire_ovs::transact::{Columns, Transaction};
use podwire_tests::apiserver::{ApiServer, Hostile, Request, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cutting::{Cut, listen};
use crate::fixture::{Running, annotation, await_network, await_row, names, northbound, soon};

/// Compares with what a fresh controller computes: nothing is left to do.
async fn assert_nothing_to_do(central: &Central, server: &ApiServer) {
    let mut fresh = Running::start(central, server, &["--identity", "me"]);
    fresh.idle().await;
    fresh.stop().await.unwrap();
    let mut fresh = Running::start(central, server, &["--identity", "me"]);
    let compared = fresh.idle().await;
    assert_eq!((compared.operations, compared.writes), (0, 0));
    fresh.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_in_any_of_a_hundred_transactions_leaves_what_the_next_one_completes() {
    let (central, server) = (Central::start(), ApiServer::start());
    let directory = tempfile::tempdir().unwrap();
    let mut random = 1_u32;
    let mut next = move |most: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % most
    };
    for round in 0..100 {
        let path = directory.path().join(format!("{round}.sock"));
        // The first is the term's begin.
        let cut = Cut {
            transaction: 1 + next(4) as usize,
            is_sent: next(2) == 0,
        };
        let is_cut = listen(&path, &northbound(&central), cut);
        let remote = format!("unix:{}", path.display());
        let leader = Running::start(&central, &server, &["--identity", "me", "--nb-db", &remote]);
        let change = async {
            loop {
                let (number, on) = (next(12), next(3));
                let name = format!("p{number}");
                match next(8) {
                    0 => server.delete_object("Node", "", &format!("n{on}")),
                    1 => server.delete("default", &name),
                    2 => server.apply(service("default", &name, &format!("10.96.0.{number}"), 80)),
                    3 => server.delete_object("Service", "default", &name),
                    4 => server.apply(endpoints("default", &name, &["10.244.0.3"], 80)),
                    _ => {
                        if server.object("Node", "", &format!("n{on}")).is_none() {
                            server.apply(node(&format!("n{on}"), &format!("192.0.2.{on}")));
                        }
                        server.delete("default", &name);
                        let uid = format!("uid-{round}-{number}");
                        server.apply(pod(&format!("n{on}"), "default", &name, &uid, json!({})));
                    }
                }
                // Each change is to be a transaction of its own, mostly.
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            is_cut = is_cut => is_cut.unwrap(),
            () = change => {}
        }
        leader.kill();
    }
    assert_nothing_to_do(&central, &server).await;
    let mut addresses = std::collections::BTreeSet::new();
    for number in 0..12 {
        let Some(pod) = server.object("Pod", "default", &format!("p{number}")) else {
            continue;
        };
        if server
            .object("Node", "", pod["spec"]["nodeName"].as_str().unwrap())
            .is_some()
        {
            let entry = annotation(&pod, "k8s.ovn.org/pod-networks").unwrap();
            let address = entry["default"]["ip_address"].as_str().unwrap().to_owned();
            assert!(addresses.insert(address), "{entry}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_northbound_database_restored_from_a_backup_is_brought_up_to_date() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(pod("node-a", "default", "old", "uid-of-old", json!({})));
    let mut first = Running::start(&central, &server, &["--identity", "me"]);
    first.idle().await;
    let backup = tempfile::NamedTempFile::new().unwrap();
    let client = |verb: &str, input: Stdio, output: Stdio| {
        let remote = central.local_northbound();
        let arguments = [verb, &remote, nb::DATABASE];
        let status = Command::new("ovsdb-client")
            .args(arguments)
            .stdin(input)
            .stdout(output)
            .status();
        assert!(status.unwrap().success(), "{verb}");
    };
    client("backup", Stdio::null(), backup.reopen().unwrap().into());

    // Within one term.
    server.delete("default", "old");
    server.apply(pod("node-a", "default", "new", "uid-of-new", json!({})));
    await_row(&central, "Logical_Switch_Port", "default_new", true);
    await_row(&central, "Logical_Switch_Port", "default_old", false);
    client("restore", backup.reopen().unwrap().into(), Stdio::null());
    await_row(&central, "Logical_Switch_Port", "default_new", true);
    await_row(&central, "Logical_Switch_Port", "default_old", false);
    first.stop().await.unwrap();

    // One of an earlier term: the leader has no part in it, and the next makes it right.
    let mut second = Running::start(&central, &server, &["--identity", "me"]);
    second.idle().await;
    client("restore", backup.reopen().unwrap().into(), Stdio::null());
    let ended = second.end().await;
    assert!(matches!(ended, Err(RunError::Deposed(_))), "{ended:?}");
    assert_nothing_to_do(&central, &server).await;
    await_row(&central, "Logical_Switch_Port", "default_new", true);
    await_row(&central, "Logical_Switch_Port", "default_old", false);
}

/// Three servers that keep the northbound database together.
struct Raft {
    directory: TempDir,
    members: Vec<Child>,
}

impl Raft {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let free = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<_> = (0..3).map(free).collect();
        let addresses: Vec<_> = listeners
            .iter()
            .map(|it| format!("tcp:127.0.0.1:{}", it.local_addr().unwrap().port()))
            .collect();
        drop(listeners);
        let mut raft = Self {
            directory,
            members: Vec::new(),
        };
        for (number, address) in addresses.iter().enumerate() {
            let file = raft.path(number, "db");
            let mut tool = Command::new("ovsdb-tool");
            match number {
                0 => tool
                    .arg("create-cluster")
                    .arg(&file)
                    .args(["/usr/share/ovn/ovn-nb.ovsschema", address]),
                _ => {
                    tool.arg("join-cluster")
                        .arg(&file)
                        .args([nb::DATABASE, address, &addresses[0]])
                }
            };
            assert!(tool.status().unwrap().success());
            let member = Command::new("ovsdb-server")
                .arg(&file)
                .arg(format!(
                    "--remote=punix:{}",
                    raft.path(number, "sock").display()
                ))
                .arg(format!("--unixctl={}", raft.path(number, "ctl").display()))
                .args(["--no-chdir", "-vconsole:off", "-vsyslog:off"])
                .env("OVS_RUNDIR", raft.directory.path())
                .stdin(Stdio::null())
                .spawn();
            raft.members.push(member.unwrap());
            raft.client(&[number], false).synced(soon()).await.unwrap();
        }
        let mut global = Transaction::new();
        global.insert("NB_Global", Columns::new());
        let client = raft.client(&[0, 1, 2], true);
        client.transact(&global, soon()).await.unwrap();
        raft
    }

    fn path(&self, number: usize, kind: &str) -> PathBuf {
        self.directory.path().join(format!("{number}.{kind}"))
    }

    fn client(&self, members: &[usize], leader_only: bool) -> Client {
        let remotes: Vec<_> = members
            .iter()
            .map(|number| Remote::Unix(self.path(*number, "sock")))
            .collect();
        Client::start(ClientConfig {
            leader_only,
            ..ClientConfig::new(remotes, nb::DATABASE, nb::tables())
        })
    }

    fn remote(&self) -> String {
        let members =
            [0, 1, 2].map(|number| format!("unix:{}", self.path(number, "sock").display()));
        members.join(",")
    }

    /// Ends one, which has others elect a leader when it was that.
    fn end(&mut self, number: usize) {
        let _ = self.members[number].kill();
        let _ = self.members[number].wait();
    }
}

impl Drop for Raft {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            self.end(number);
        }
    }
}

async fn await_port(client: &Client, name: &str) {
    client
        .wait(name, soon(), |db| {
            db.nb_named(Table::LogicalSwitchPort, name).next().map(drop)
        })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_follows_the_leader_of_a_clustered_database() {
    let (central, server) = (Central::start(), ApiServer::start());
    let mut raft = Raft::start().await;
    server.apply(node("node-a", "192.0.2.1"));
    let mut controller = Running::start(&central, &server, &["--nb-db", &raft.remote()]);
    controller.idle().await;
    raft.end(0);
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    await_network(&server, "default", "web");
    let others = raft.client(&[1, 2], true);
    await_port(&others, "default_web").await;
    controller.stop().await.unwrap();
}

fn nbctl(central: &Central, commands: &str) {
    for command in commands.lines().map(str::trim).filter(|it| !it.is_empty()) {
        // Words are set apart by two blanks: matches have single ones.
        let words: Vec<_> = command.split("  ").collect();
        central.nbctl(&words);
    }
}

/// As ovn-kubernetes of May 2022 writes them for one node in shared gateway mode, with one pod.
const OF_2022: &str = r#"
    lr-add  ovn_cluster_router
    set  Logical_Router  ovn_cluster_router  external_ids:k8s-cluster-router=yes  options:always_learn_from_arp_request=false  options:mcast_relay=true
    ls-add  join
    lrp-add  ovn_cluster_router  rtoj-ovn_cluster_router  0a:58:64:40:00:01  100.64.0.1/16
    lsp-add  join  jtor-ovn_cluster_router
    lsp-set-type  jtor-ovn_cluster_router  router
    lsp-set-options  jtor-ovn_cluster_router  router-port=rtoj-ovn_cluster_router
    lsp-set-addresses  jtor-ovn_cluster_router  router
    create  Load_Balancer_Group  name=clusterLBGroup
    ls-add  node-a
    set  Logical_Switch  node-a  other_config:subnet=10.244.5.0/24  other_config:exclude_ips=10.244.5.2
    lrp-add  ovn_cluster_router  rtos-node-a  0a:58:0a:f4:05:01  10.244.5.1/24
    lrp-set-gateway-chassis  rtos-node-a  node-a  1
    lsp-add  node-a  stor-node-a
    lsp-set-type  stor-node-a  router
    lsp-set-options  stor-node-a  router-port=rtos-node-a
    lsp-set-addresses  stor-node-a  router
    lsp-add  node-a  k8s-node-a
    lsp-set-addresses  k8s-node-a  ba:d0:00:00:00:02 10.244.5.2
    lsp-add  node-a  default_web
    lsp-set-addresses  default_web  0a:58:0a:f4:05:09 10.244.5.9
    lsp-set-port-security  default_web  0a:58:0a:f4:05:09 10.244.5.9
    lsp-set-options  default_web  requested-chassis=node-a  iface-id-ver=uid-of-web
    set  Logical_Switch_Port  default_web  external_ids:namespace=default  external_ids:pod=true
    lr-add  GR_node-a
    set  Logical_Router  GR_node-a  options:chassis=node-a
    lrp-add  GR_node-a  rtoj-GR_node-a  0a:58:64:40:00:02  100.64.0.2/16
    lsp-add  join  jtor-GR_node-a
    lr-route-add  ovn_cluster_router  100.64.0.2/32  100.64.0.2
    lb-add  Service_default/front_TCP_cluster  10.96.0.10:80  10.244.5.9:8080  tcp
    set  Load_Balancer  Service_default/front_TCP_cluster  external_ids:k8s.ovn.org/kind=Service  external_ids:k8s.ovn.org/owner=default/front  options:reject=true  options:event=false
    ls-lb-add  node-a  Service_default/front_TCP_cluster
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_ovn_kubernetes_are_taken_over_where_they_are_and_pods_keep_theirs() {
    let (central, server) = (Central::start(), ApiServer::start());
    nbctl(&central, OF_2022);
    let mut host = node("node-a", "192.0.2.1");
    host["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] =
        r#"{"default":"10.244.5.0/24"}"#.into();
    host["metadata"]["annotations"]["k8s.ovn.org/node-mgmt-port-mac-address"] =
        "ba:d0:00:00:00:02".into();
    host["status"]["conditions"] = json!([{ "type": "NetworkUnavailable", "status": "False" }]);
    server.apply(host);
    let annotation = json!({ "default": {
        "ip_addresses": ["10.244.5.9/24"], "mac_address": "0a:58:0a:f4:05:09",
        "gateway_ips": ["10.244.5.1"], "ip_address": "10.244.5.9/24", "gateway_ip": "10.244.5.1",
    } });
    let annotations = json!({ "k8s.ovn.org/pod-networks": annotation.to_string() });
    server.apply(pod("node-a", "default", "web", "uid-of-web", annotations));
    server.apply(service("default", "front", "10.96.0.10", 80));
    server.apply(endpoints("default", "front", &["10.244.5.9"], 8080));
    let uuids = || {
        let tables = [
            "Logical_Switch",
            "Logical_Switch_Port",
            "Logical_Router",
            "Logical_Router_Port",
            "Load_Balancer",
        ];
        let rows = tables.map(|table| central.northbound().rows(table).unwrap());
        let mut rows: Vec<_> = rows
            .into_iter()
            .flatten()
            .map(|row| (row["name"].to_string(), row["_uuid"].to_string()))
            .collect();
        rows.sort();
        rows
    };
    let before = uuids();
    // Without leave nothing is touched.
    let mut controller = Running::start(&central, &server, &["--identity", "me"]);
    controller.idle().await;
    controller.stop().await.unwrap();
    assert_eq!(names(&central, "Logical_Switch_Port"), [""; 0]);

    let mut controller = Running::start(&central, &server, &["--identity", "me", "--adopt"]);
    let adopted = controller.idle().await;
    assert_eq!(adopted.writes, 0, "{adopted:?}");
    controller.stop().await.unwrap();
    // What ovn-kubernetes does not have is podwire's own.
    let mut after = uuids();
    after.retain(|(name, _)| !name.contains("podwire"));
    assert_eq!(after, before);
    let ports = central.northbound().rows("Logical_Switch_Port").unwrap();
    let of = |name: &str| {
        ports
            .iter()
            .find(|row| row["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(
        of("default_web")["addresses"],
        "0a:58:0a:f4:05:09 10.244.5.9"
    );
    // The node's interface has this MAC address, and keeps it.
    assert_eq!(
        of("k8s-node-a")["addresses"],
        "ba:d0:00:00:00:02 10.244.5.2"
    );
    assert_eq!(
        names(&central, "Logical_Switch_Port"),
        [
            "default_web",
            "k8s-node-a",
            "podwire-door-node-a",
            "stor-node-a"
        ]
    );
    // The balancer is the group's now, as every other.
    let switch = central.northbound().rows("Logical_Switch").unwrap();
    let switch = switch.iter().find(|row| row["name"] == "node-a").unwrap();
    assert_eq!(switch["load_balancer"], Value::Array(Vec::new()));
    central.nbctl("--wait=sb sync");
    assert_nothing_to_do(&central, &server).await;
}

/// Lists of what is read first.
fn lists_of_locks(requests: &[Request]) -> usize {
    let is_list = |it: &&Request| !it.is_watch() && it.path.ends_with("/configmaps");
    requests.iter().filter(is_list).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_the_api_server_without_end_is_given_up() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("n1", "192.0.2.11"));
    server.apply(pod("n1", "default", "web", "uid", json!({})));
    server.misbehave(Some(Hostile::EndlessList));
    let mut running = Running::start(&central, &server, &["--identity", "me"]);
    // Once more with fewer objects on a page, and again after a pause.
    tokio::task::block_in_place(|| {
        server.await_requests("three lists of locks", |all| lists_of_locks(all) >= 3);
    });
    server.misbehave(None);
    assert_eq!(running.idle().await.pods, 1);
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_too_large_for_one_page_of_a_list_are_on_smaller_ones() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("n1", "192.0.2.11"));
    server.apply(pod("n1", "default", "web", "uid", json!({})));
    let note = "x".repeat(1 << 20);
    for number in 0..33 {
        let name = format!("p{number}");
        let mut large = pod("n1", "default", &name, &name, json!({ "note": note }));
        // Nothing is written of it: what is looked at is how it is listed.
        large["spec"]["hostNetwork"] = true.into();
        server.apply(large);
    }
    let mut running = Running::start(&central, &server, &["--identity", "me"]);
    assert_eq!(running.idle().await.pods, 1);
    let pages = server.requests();
    let pages = pages
        .iter()
        .filter(|it| !it.is_watch() && it.path.ends_with("/pods"));
    assert!(pages.count() > 2);
    running.stop().await.unwrap();
}
