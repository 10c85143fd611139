//! Random histories of a cluster, with crashes in between: in the end the rows are what a fresh
//! controller computes.

use std::collections::BTreeSet;

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::fixture::{Running, annotation, await_network, await_row, names};

const WISHED: &str = "podwire.io/ip-addresses";

/// One change of the cluster.
#[derive(Clone, Debug)]
enum Step {
    Node(u8),
    NoNode(u8),
    /// On a node, maybe with a request for an address: the node of the subnet, and its offset.
    Pod(u8, u8, Option<(u8, u8)>),
    NoPod(u8),
    PodDone(u8, u8),
    /// With endpoints on the client's node alone, or all of them.
    Service(u8, bool),
    NoService(u8),
    /// Each with its node.
    Endpoints(u8, Vec<(u8, u8)>),
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
        5 => (pods.clone(), nodes.clone()).prop_map(|(pod, node)| Step::Pod(pod, node, None)),
        3 => (pods.clone(), nodes.clone(), (0..3_u8, 0..4_u8))
            .prop_map(|(pod, node, request)| Step::Pod(pod, node, Some(request))),
        3 => pods.clone().prop_map(Step::NoPod),
        1 => (pods.clone(), nodes.clone()).prop_map(|(pod, node)| Step::PodDone(pod, node)),
        3 => (services.clone(), any::<bool>())
            .prop_map(|(service, is_local)| Step::Service(service, is_local)),
        1 => services.clone().prop_map(Step::NoService),
        2 => (services, proptest::collection::vec((3..9_u8, nodes), 0..4))
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
            Step::Pod(number, node, request) => {
                let name = format!("p{number}");
                server.delete("default", &name);
                self.uids += 1;
                let uid = format!("uid-{}", self.uids);
                let request = match request {
                    Some((subnet, place)) => {
                        json!({ WISHED: format!("10.244.{subnet}.{}", 200 + place) })
                    }
                    None => json!({}),
                };
                server.apply(pod(&format!("n{node}"), "default", &name, &uid, request));
            }
            Step::NoPod(number) => server.delete("default", &format!("p{number}")),
            Step::PodDone(number, node) => {
                let name = format!("p{number}");
                server.delete("default", &name);
                let mut pod = pod(&format!("n{node}"), "default", &name, "done", json!({}));
                pod["status"]["phase"] = "Failed".into();
                server.apply(pod);
            }
            Step::Service(number, is_local) => {
                let address = format!("10.96.0.{number}");
                let mut service = service("default", &format!("s{number}"), &address, 80);
                let policy = if is_local { "Local" } else { "Cluster" };
                service["spec"]["internalTrafficPolicy"] = policy.into();
                server.apply(service);
            }
            Step::NoService(number) => {
                server.delete_object("Service", "default", &format!("s{number}"));
            }
            Step::Endpoints(number, ends) => {
                let addresses: Vec<_> = ends
                    .iter()
                    .map(|(place, _)| format!("10.244.0.{place}"))
                    .collect();
                let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
                let mut slice = endpoints("default", &format!("s{number}"), &addresses, 80);
                for (at, (_, node)) in ends.iter().enumerate() {
                    slice["endpoints"][at]["nodeName"] = format!("n{node}").into();
                }
                server.apply(slice);
            }
            Step::Crash => {
                let next = Running::start(&self.central, &self.server, &[]);
                std::mem::replace(&mut self.controller, next).kill();
            }
            Step::PortRemoved(number) => {
                let port = format!("default_p{number}");
                self.central.nbctl(format!("--if-exists lsp-del {port}"));
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

    /// Each pod on a node has its port there, with an address that is nobody else's; one that asks
    /// for an address has that one, or none while it can't have it. How many of those there are.
    fn check_pods(&self) -> usize {
        let made: Vec<_> = names(&self.central, "Logical_Switch_Port")
            .into_iter()
            .filter(|name| name.starts_with("default_p"))
            .collect();
        let mut addresses = BTreeSet::new();
        let mut refused = Vec::new();
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
            let port = format!("default_p{number}");
            let request = pod["metadata"]["annotations"][WISHED].as_str();
            if let Some(request) = request
                && !made.contains(&port)
            {
                let node = self.server.object("Node", "", node).unwrap();
                let subnets = annotation(&node, "k8s.ovn.org/node-subnets").unwrap();
                let subnet = subnets["default"][0].as_str().unwrap();
                let start = subnet.strip_suffix("0/24").unwrap();
                refused.push((request.to_owned(), request.starts_with(start)));
                continue;
            }
            let entry = annotation(&pod, "k8s.ovn.org/pod-networks").unwrap();
            let address = entry["default"]["ip_address"].as_str().unwrap();
            let address = address.split('/').next().unwrap();
            assert!(
                request.is_none_or(|request| request == address),
                "{request:?} {entry}"
            );
            assert!(addresses.insert(address.to_owned()), "{entry}");
            ports.push(port);
        }
        for (request, is_of_its_node) in &refused {
            assert!(!is_of_its_node || addresses.contains(request), "{request}");
        }
        assert_eq!(made, ports);
        refused.len()
    }

    /// On each node a service of local endpoints leads to the node's own, or rejects.
    fn check_services(&self) {
        let northbound = self.central.northbound();
        let balancers = northbound.rows("Load_Balancer").unwrap();
        for number in 0..3 {
            let name = format!("s{number}");
            let Some(service) = self.server.object("Service", "default", &name) else {
                continue;
            };
            if service["spec"]["internalTrafficPolicy"] != "Local" {
                continue;
            }
            let slice = self
                .server
                .object("EndpointSlice", "default", &format!("{name}-1"));
            for switch in northbound.rows("Logical_Switch").unwrap() {
                let own: Vec<_> = balancers
                    .iter()
                    .filter(|it| {
                        it["external_ids"]["k8s.ovn.org/owner"] == format!("default/{name}")
                    })
                    .filter(|it| {
                        switch["load_balancer"]
                            .to_string()
                            .contains(&it["_uuid"].to_string())
                    })
                    .collect();
                let [balancer] = own[..] else {
                    panic!("{name} on {switch:?}: {own:?}");
                };
                let ends = slice
                    .iter()
                    .flat_map(|it| it["endpoints"].as_array().unwrap());
                let ends: BTreeSet<_> = ends
                    .filter(|end| end["nodeName"] == switch["name"])
                    .map(|end| format!("{}:80", end["addresses"][0].as_str().unwrap()))
                    .collect();
                let ends: Vec<_> = ends.into_iter().collect();
                let vip = format!("10.96.0.{number}:80");
                assert_eq!(
                    balancer["vips"][&vip],
                    ends.join(","),
                    "{name} on {switch:?}"
                );
            }
        }
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
            let (central, server) = (Central::start(), ApiServer::start());
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
            let refused = world.check_pods();
            world.check_services();
            let World {
                central,
                server,
                controller,
                ..
            } = world;
            controller.stop().await.unwrap();
            let mut fresh = Running::start(&central, &server, &[]);
            let compared = fresh.idle().await;
            // Of each that it refuses it says so, as it can't know that another did.
            assert_eq!((compared.operations, compared.writes), (0, refused as u64));
            fresh.stop().await.unwrap();
        });
        Ok(())
    });
    outcome.unwrap();
}
