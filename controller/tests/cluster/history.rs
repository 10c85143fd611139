//! Random histories of a cluster, with crashes in between: in the end the rows are what a fresh
//! controller computes.

use std::collections::BTreeSet;

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::fixture::{Running, await_network, await_row, names};

/// One change of the cluster.
#[derive(Clone, Debug)]
enum Step {
    Node(u8),
    NoNode(u8),
    Pod(u8, u8),
    NoPod(u8),
    PodDone(u8, u8),
    Service(u8),
    NoService(u8),
    Endpoints(u8, Vec<u8>),
    /// The controller dies wherever it is, and another starts.
    Crash,
    /// Somebody removes a port.
    PortRemoved(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (nodes, pods, services) = (0..3_u8, 0..8_u8, 0..3_u8);
    prop_oneof![
        3 => nodes.clone().prop_map(Step::Node),
        1 => nodes.clone().prop_map(Step::NoNode),
        6 => (pods.clone(), nodes.clone()).prop_map(|(pod, node)| Step::Pod(pod, node)),
        3 => pods.clone().prop_map(Step::NoPod),
        1 => (pods.clone(), nodes).prop_map(|(pod, node)| Step::PodDone(pod, node)),
        2 => services.clone().prop_map(Step::Service),
        1 => services.clone().prop_map(Step::NoService),
        2 => (services, proptest::collection::vec(3..9_u8, 0..4))
            .prop_map(|(service, ends)| Step::Endpoints(service, ends)),
        1 => Just(Step::Crash),
        1 => pods.prop_map(Step::PortRemoved),
    ]
}

struct World {
    central: Central,
    server: ApiServer,
    controller: Running,
    /// Sets pods of one name apart.
    uids: u32,
}

impl World {
    fn take(&mut self, step: Step) {
        let server = &self.server;
        match step {
            Step::Node(number) => {
                // An annotation of a node that is there stays, as with a real change.
                if server.object("Node", "", &format!("n{number}")).is_none() {
                    server.apply(node(&format!("n{number}"), &format!("192.0.2.{number}")));
                }
            }
            Step::NoNode(number) => server.delete_object("Node", "", &format!("n{number}")),
            Step::Pod(number, node) => {
                let name = format!("p{number}");
                server.delete("default", &name);
                self.uids += 1;
                let uid = format!("uid-{}", self.uids);
                server.apply(pod(&format!("n{node}"), "default", &name, &uid, json!({})));
            }
            Step::NoPod(number) => server.delete("default", &format!("p{number}")),
            Step::PodDone(number, node) => {
                let name = format!("p{number}");
                server.delete("default", &name);
                let mut pod = pod(&format!("n{node}"), "default", &name, "done", json!({}));
                pod["status"]["phase"] = "Failed".into();
                server.apply(pod);
            }
            Step::Service(number) => {
                let address = format!("10.96.0.{number}");
                server.apply(service("default", &format!("s{number}"), &address, 80));
            }
            Step::NoService(number) => {
                server.delete_object("Service", "default", &format!("s{number}"));
            }
            Step::Endpoints(number, ends) => {
                let ends: Vec<_> = ends.iter().map(|it| format!("10.244.0.{it}")).collect();
                let ends: Vec<_> = ends.iter().map(String::as_str).collect();
                server.apply(endpoints("default", &format!("s{number}"), &ends, 80));
            }
            Step::Crash => {
                let next = Running::start(&self.central, &self.server, &[]);
                std::mem::replace(&mut self.controller, next).kill();
            }
            Step::PortRemoved(number) => {
                let port = format!("default_p{number}");
                self.central
                    .nbctl(&["--if-exists", "lsp-del", &port])
                    .unwrap();
            }
        }
    }

    /// Waits until everything that was told so far is done: each kind's last change is.
    async fn settle(&mut self) {
        let server = &self.server;
        server.apply(node("last", "192.0.2.99"));
        server.apply(pod("last", "default", "last", "uid-of-last", json!({})));
        await_network(server, "default", "last");
        server.apply(service("default", "last", "10.96.0.99", 80));
        let row = "Service_default/last_TCP_cluster";
        await_row(&self.central, "Load_Balancer", row, true);
        server.apply(endpoints("default", "last", &["10.244.0.99"], 80));
        let vips = json!(["map", [["10.96.0.99:80", "10.244.0.99:80"]]]);
        let northbound = self.central.northbound();
        let condition = json!([["name", "==", row], ["vips", "==", vips]]);
        northbound
            .wait("Load_Balancer", condition, "!=", &["name"], json!([]))
            .unwrap();
        self.controller.idle().await;
    }

    /// Each pod on a node has its port there, with an address that is nobody else's.
    fn check(&self) {
        let mut addresses = BTreeSet::new();
        let mut ports = Vec::new();
        for number in 0..8 {
            let name = format!("p{number}");
            let Some(pod) = self.server.object("Pod", "default", &name) else {
                continue;
            };
            let node = pod["spec"]["nodeName"].as_str().unwrap();
            let is_there = self.server.object("Node", "", node).is_some();
            if pod["status"]["phase"] == "Failed" || !is_there {
                continue;
            }
            let entry = crate::fixture::annotation(&pod, "k8s.ovn.org/pod-networks").unwrap();
            let address = entry["default"]["ip_address"].as_str().unwrap().to_owned();
            assert!(addresses.insert(address), "{entry}");
            ports.push(format!("default_p{number}"));
        }
        let made: Vec<_> = names(&self.central, "Logical_Switch_Port")
            .into_iter()
            .filter(|name| name.starts_with("default_p"))
            .collect();
        assert_eq!(made, ports);
    }
}

#[test]
fn any_history_ends_in_what_a_fresh_controller_computes() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let config = Config {
        cases: 6,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    };
    let histories = proptest::collection::vec(step(), 10..60);
    let outcome = TestRunner::new(config).run(&histories, |history| {
        runtime.block_on(async {
            let (central, server) = (Central::start().unwrap(), ApiServer::start().unwrap());
            let controller = Running::start(&central, &server, &[]);
            let mut world = World {
                central,
                server,
                controller,
                uids: 0,
            };
            for step in history {
                world.take(step);
            }
            world.settle().await;
            world.check();
            let World {
                central,
                server,
                controller,
                ..
            } = world;
            controller.stop().await.unwrap();
            let mut fresh = Running::start(&central, &server, &[]);
            let compared = fresh.idle().await;
            assert_eq!((compared.operations, compared.writes), (0, 0));
            fresh.stop().await.unwrap();
        });
        Ok(())
    });
    outcome.unwrap();
}
