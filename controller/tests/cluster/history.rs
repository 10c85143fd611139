//! Random histories of a cluster, with crashes and times without a controller in between. What
//! exists is kept, nothing outlives its object, and the rows are what a fresh controller computes.

mod check;
mod policies;
mod settle;
mod steps;
mod users;

use std::collections::{BTreeMap, BTreeSet};

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use steps::{Step, Text, step};

use crate::fixture::Running;
use crate::networks::{ASKED, definition};
use crate::tiered::{has_tiers, tiered};
use crate::user_networks::{DEFINITION, OF_CLUSTER, layer2, of_team};

const WISHED: &str = "podwire.io/ip-addresses";
const WISHED_MAC: &str = "podwire.io/mac-address";
const NETWORKS: &str = "k8s.ovn.org/pod-networks";
const SUBNETS: &str = "k8s.ovn.org/node-subnets";
const SERVICE: &str = "kubernetes.io/service-name";

/// Of the management port of each node: that of an address which pods request, too.
const MANAGEMENT: &str = "0a:58:0a:f4:01:c9";
/// What pods request. The last two they can't have: the other is a router's.
const MACS: [&str; 4] = [
    "02:00:00:00:00:01",
    "02:00:00:00:00:02",
    MANAGEMENT,
    "0a:58:0a:f4:02:01",
];

/// All controllers are one that starts again, and need not wait for the lease.
const FLAGS: [&str; 2] = ["--identity", "me"];

const NODES: u8 = 3;
const PODS: u8 = 8;
const SERVICES: u8 = 3;
const POLICIES: u8 = 3;

struct World {
    central: Central,
    server: ApiServer,
    controller: Option<Running>,
    /// Sets pods of one name apart.
    uids: u32,
    /// How often everything was compared.
    settled: u32,
    /// Whether OVN has tiers of ACLs.
    has_tiers: bool,
    /// The address of each pod, by its uid.
    addresses: BTreeMap<String, String>,
    /// The address of each attachment to the second network, by the pod's uid and the entry.
    attached: BTreeMap<String, String>,
    /// The subnet of each node that exists or has pods.
    subnets: BTreeMap<String, Value>,
    /// Those of these nodes that were gone since everything was compared.
    gone: BTreeSet<String>,
    /// Pods whose annotations somebody wrote, by uid.
    written: BTreeSet<String>,
}

impl World {
    fn take(&mut self, step: Step) {
        let server = &self.server;
        match step {
            Step::Node(number) => {
                // An annotation of a node that is there stays, as with a real change.
                if self.node(number).is_none() {
                    server.apply(node_of(number));
                }
            }
            Step::NoNode(number) => server.delete_object("Node", "", &format!("n{number}")),
            Step::NodeAgain(number) => {
                server.delete_object("Node", "", &format!("n{number}"));
                self.forget();
                self.server.apply(node_of(number));
            }
            Step::NodeSubnets(number, text) => {
                let other = match text {
                    Text::Of(other) => self.node(other),
                    _ => None,
                };
                self.annotate(self.node(number), SUBNETS, (text, other));
            }
            Step::Pod(number, node, wish, mac, is_told) => {
                let name = format!("p{number}");
                if is_told {
                    server.delete("default", &name);
                }
                self.uids += 1;
                let uid = format!("uid-{}", self.uids);
                let wish = wish.map(|wish| (WISHED.to_owned(), wished(wish).into()));
                let mac = mac.map(|mac| (WISHED_MAC.to_owned(), MACS[mac].into()));
                let wishes = Value::Object(wish.into_iter().chain(mac).collect());
                server.apply(pod(&format!("n{node}"), "default", &name, &uid, wishes));
            }
            Step::NoPod(number) => server.delete("default", &format!("p{number}")),
            Step::PodDone(number, node) => {
                let name = format!("p{number}");
                server.delete("default", &name);
                let mut pod = pod(&format!("n{node}"), "default", &name, "done", json!({}));
                pod["status"]["phase"] = "Failed".into();
                server.apply(pod);
            }
            Step::PodRenamed(number, other) => {
                if let Some(mut pod) = self.pod(number) {
                    server.delete("default", &format!("p{number}"));
                    server.delete("default", &format!("p{other}"));
                    self.uids += 1;
                    pod["metadata"]["name"] = format!("p{other}").into();
                    let uid = format!("uid-{}", self.uids);
                    pod["metadata"]["uid"] = uid.as_str().into();
                    pod["status"] = json!({});
                    self.written.insert(uid);
                    server.apply(pod);
                }
            }
            Step::PodNetworks(number, text) => {
                let other = match text {
                    Text::Of(other) => self.pod(other),
                    _ => None,
                };
                let pod = self.pod(number);
                self.written.extend(pod.iter().map(uid));
                self.annotate(pod, NETWORKS, (text, other));
            }
            Step::PodWishes(number, wish) => {
                if let Some(mut pod) = self.pod(number) {
                    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
                    annotations.remove(WISHED);
                    annotations.extend(wish.map(|it| (WISHED.to_owned(), wished(it).into())));
                    self.written.insert(uid(&pod));
                    server.apply(pod);
                }
            }
            Step::Labelled(kind, number, label) => {
                let name = format!("{}{number}", kind[..1].to_lowercase());
                if let Some(mut object) = server.object(kind, "default", &name) {
                    object["metadata"]["labels"] = json!({ "app": format!("a{label}") });
                    server.apply(object);
                }
            }
            Step::Policy(number, of, from) => {
                let app = |label: u8| json!({ "matchLabels": { "app": format!("a{label}") } });
                let team = |label: u8| json!({ "matchLabels": { "team": format!("t{label}") } });
                let peer = match from {
                    Ok(label) => json!({ "podSelector": app(label) }),
                    Err(label) => json!({ "namespaceSelector": team(label) }),
                };
                server.apply(policy_of(
                    &format!("np{number}"),
                    of.map_or(json!({}), app),
                    peer,
                ));
            }
            Step::NoPolicy(number) => {
                server.delete_object("NetworkPolicy", "default", &format!("np{number}"));
            }
            Step::Tiered(number, is_first, of, action, from) => {
                let app = |label: u8| json!({ "matchLabels": { "app": format!("a{label}") } });
                let team = |label: u8| json!({ "matchLabels": { "team": format!("t{label}") } });
                let pods = |selector| json!({ "namespaceSelector": {}, "podSelector": selector });
                let peer = match from {
                    Ok(label) => json!({ "pods": pods(app(label)) }),
                    Err(label) => json!({ "namespaces": team(label) }),
                };
                let action = ["Accept", "Deny", "Pass"][usize::from(action)];
                let spec = json!({
                    "tier": if is_first { "Admin" } else { "Baseline" }, "priority": number,
                    "subject": { "pods": pods(of.map_or(json!({}), app)) },
                    "ingress": [{ "action": action, "from": [peer] }],
                });
                server.apply(tiered(
                    "ClusterNetworkPolicy",
                    &format!("cp{number}"),
                    &spec,
                ));
            }
            Step::NoTiered(number) => {
                server.delete_object("ClusterNetworkPolicy", "", &format!("cp{number}"));
            }
            Step::Team(label) => server.apply(namespace(json!({ "team": format!("t{label}") }))),
            Step::MembersChanged => {
                let emptied = json!({ "ports": ["set", []] });
                let stranger = json!(["addresses", "insert", "10.9.9.9"]);
                let northbound = self.central.northbound();
                let change = northbound.transact(&[
                    json!({ "op": "update", "table": "Port_Group", "where": [], "row": emptied }),
                    json!({
                        "op": "mutate", "table": "Address_Set", "where": [],
                        "mutations": [stranger],
                    }),
                ]);
                change.unwrap();
            }
            Step::Service(number, is_local) => {
                let address = self.cluster_ip(number);
                let mut service = service("default", &format!("s{number}"), &address, 80);
                let policy = if is_local { "Local" } else { "Cluster" };
                service["spec"]["internalTrafficPolicy"] = policy.into();
                server.apply(service);
            }
            Step::NoService(number) => {
                server.delete_object("Service", "default", &format!("s{number}"));
            }
            Step::ServiceRenamed(number, other) => {
                if let Some(mut service) = self.service(number) {
                    for name in [number, other] {
                        server.delete_object("Service", "default", &format!("s{name}"));
                    }
                    self.uids += 1;
                    service["metadata"]["name"] = format!("s{other}").into();
                    service["metadata"]["uid"] = format!("uid-{}", self.uids).into();
                    server.apply(service);
                }
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
            Step::NoEndpoints(number) => {
                server.delete_object("EndpointSlice", "default", &format!("s{number}-1"));
            }
            Step::EndpointsOf(number, service) => {
                let name = format!("s{number}-1");
                if let Some(mut slice) = server.object("EndpointSlice", "default", &name) {
                    let service = service.map(|it| (SERVICE.to_owned(), format!("s{it}").into()));
                    slice["metadata"]["labels"] = Value::Object(service.into_iter().collect());
                    server.apply(slice);
                }
            }
            Step::Definition(number) => {
                let subnets = ["10.1.0.0/26", "10.2.0.0/26", "10.1.0.0/26"];
                let mut more = json!({ "subnets": subnets[usize::from(number)] });
                if number == 2 {
                    more["excludeSubnets"] = "10.1.0.0/30".into();
                }
                server.apply(definition("blue", "blue", &more));
            }
            Step::NoDefinition => {
                server.delete_object("NetworkAttachmentDefinition", "default", "blue");
            }
            Step::Asks(number, times) => {
                if let Some(mut pod) = self.pod(number) {
                    // What it no longer asks for it may get with another address later.
                    let own = uid(&pod);
                    self.attached
                        .retain(|of, _| !of.starts_with(&format!("{own}/")));
                    let asked = ["absent", "blue,absent", "blue,absent,blue", "green"];
                    let asked = asked[usize::from(times)];
                    pod["metadata"]["annotations"][ASKED] = asked.into();
                    server.apply(pod);
                }
            }
            Step::UserNetwork(team) => {
                let mut network = of_team("green", &format!("t{team}"), &layer2("10.4.0.0/24"));
                match self.server.object(OF_CLUSTER, "", "green") {
                    Some(before) => {
                        for part in ["metadata", "status"] {
                            network[part] = before[part].clone();
                        }
                    }
                    None => {
                        self.uids += 1;
                        network["metadata"]["uid"] = format!("uid-{}", self.uids).into();
                    }
                }
                self.server.apply(network);
            }
            Step::NoUserNetwork => self.server.delete_object(OF_CLUSTER, "", "green"),
            Step::DefinitionRemoved => server.delete_object(DEFINITION, "default", "green"),
            Step::DefinitionEdited => {
                if let Some(mut object) = server.object(DEFINITION, "default", "green") {
                    object["spec"]["config"] = "{}".into();
                    server.apply(object);
                }
            }
            Step::Crash => {
                let next = Running::start(&self.central, &self.server, &FLAGS);
                if let Some(former) = self.controller.replace(next) {
                    former.kill();
                }
            }
            Step::Away => match self.controller.take() {
                Some(controller) => controller.kill(),
                None => self.lead(),
            },
            Step::PortRemoved(number) => {
                let port = format!("default_p{number}");
                self.central.nbctl(format!("--if-exists lsp-del {port}"));
            }
            Step::SwitchRemoved(number) => {
                self.central.nbctl(format!("--if-exists ls-del n{number}"));
            }
            Step::RouterPortRemoved(number) => {
                self.central
                    .nbctl(format!("--if-exists lrp-del rtos-n{number}"));
            }
            Step::Settle => {}
        }
    }

    fn node(&self, number: u8) -> Option<Value> {
        self.server.object("Node", "", &format!("n{number}"))
    }

    fn pod(&self, number: u8) -> Option<Value> {
        self.server.object("Pod", "default", &format!("p{number}"))
    }

    fn service(&self, number: u8) -> Option<Value> {
        self.server
            .object("Service", "default", &format!("s{number}"))
    }

    /// The address of a service: its own, or one that no other has.
    fn cluster_ip(&self, number: u8) -> String {
        let address = |number| {
            Some(
                self.service(number)?["spec"]["clusterIP"]
                    .as_str()?
                    .to_owned(),
            )
        };
        let used: BTreeSet<String> = (0..SERVICES).filter_map(address).collect();
        let mut all = (0..SERVICES).map(|number| format!("10.96.0.{number}"));
        address(number).unwrap_or_else(|| all.find(|it| !used.contains(it)).unwrap())
    }

    fn annotate(&self, object: Option<Value>, name: &str, (text, other): (Text, Option<Value>)) {
        let Some(mut object) = object else {
            return;
        };
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        let text = match text {
            Text::Nothing => None,
            Text::Empty => Some("{}".into()),
            Text::Garbage => Some(r#"{"default":["#.into()),
            Text::Of(_) => other.map(|other| other["metadata"]["annotations"][name].clone()),
        };
        annotations.remove(name);
        let text = text.filter(|text: &Value| !text.is_null());
        annotations.extend(text.map(|text| (name.to_owned(), text)));
        self.server.apply(object);
    }

    fn lead(&mut self) {
        let start = || Running::start(&self.central, &self.server, &FLAGS);
        self.controller.get_or_insert_with(start);
    }
}

fn node_of(number: u8) -> Value {
    let mut node = node(&format!("n{number}"), &format!("192.0.2.{number}"));
    node["metadata"]["annotations"]["k8s.ovn.org/node-mgmt-port-mac-address"] = MANAGEMENT.into();
    node
}

/// The namespace `default`.
fn namespace(labels: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": "default", "uid": "uid-of-default", "labels": labels },
    })
}

/// A policy with one rule, for what comes in.
fn policy_of(name: &str, pods: Value, from: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-of-{name}") },
        "spec": {
            "podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{ "from": [from] }],
        },
    })
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn wished((subnet, place): (u8, u8)) -> String {
    format!("10.244.{subnet}.{}", 200 + place)
}

#[test]
fn any_history_keeps_what_exists_and_ends_in_what_a_fresh_controller_computes() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let cases = std::env::var("PROPTEST_CASES").map_or(6, |count| count.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    };
    let histories = proptest::collection::vec(step(), 20..90);
    let outcome = TestRunner::new(config).run(&histories, |history| {
        runtime.block_on(async {
            let central = Central::start();
            let has_tiers = has_tiers(&central).await;
            let server = ApiServer::start();
            if has_tiers {
                // Pods wait for it.
                server.apply(namespace(json!({})));
            }
            let mut world = World {
                central,
                has_tiers,
                server,
                controller: None,
                uids: 0,
                settled: 0,
                addresses: BTreeMap::new(),
                attached: BTreeMap::new(),
                subnets: BTreeMap::new(),
                gone: BTreeSet::new(),
                written: BTreeSet::new(),
            };
            world.lead();
            for step in history.into_iter().chain([Step::Settle]) {
                let settles = matches!(step, Step::Settle);
                world.take(step);
                world.forget();
                if settles {
                    world.settle().await;
                    let refused = world.check();
                    world.compare(refused).await;
                    world.report();
                }
            }
            world.controller.unwrap().stop().await.unwrap();
        });
        Ok(())
    });
    outcome.unwrap();
}
