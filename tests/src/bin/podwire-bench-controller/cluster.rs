//! A cluster of a certain size, and pods that come one by one.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::Failure;
use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::floor::Floor;

pub(crate) const NETWORKS: &str = "k8s.ovn.org/pod-networks";

pub(crate) const NAMESPACES: u32 = 200;

/// The port of all endpoints.
pub(crate) const PORT_OF_ENDS: u16 = 8080;

pub(crate) struct Cluster {
    pub(crate) central: Central,
    pub(crate) server: ApiServer,
    pub(crate) nodes: u32,
    pub(crate) pods: u32,
    pub(crate) services: u32,
    /// Networks of a policy.
    pub(crate) blocks: u32,
}

impl Cluster {
    pub(crate) fn new(nodes: u32, pods_of_each: u32, services: u32) -> Result<Self, Failure> {
        let central = Central::start();
        // It would take the machine's processors for what is not measured.
        central.end_northd();
        let server = ApiServer::start_in(central.machine().place());
        let cluster = Self {
            central,
            server,
            nodes,
            pods: nodes * pods_of_each,
            services,
            blocks: 1,
        };
        for number in 0..nodes {
            let address = format!("172.16.{}.{}", number / 250, 1 + number % 250);
            cluster.server.apply(node(&name_of_node(number), &address));
        }
        for number in 0..cluster.pods {
            cluster.apply_pod(number);
        }
        for number in 0..services {
            let (namespace, name) = (namespace(number), name_of_service(number));
            let address = address_of_service(number);
            cluster
                .server
                .apply(service(&namespace, &name, &address, 80));
            cluster.apply_endpoints(number, &ends_of_service(number));
        }
        Ok(cluster)
    }

    pub(crate) fn size(&self) -> String {
        let Self {
            nodes,
            pods,
            services,
            ..
        } = self;
        format!("{nodes} nodes, {pods} pods, {services} services")
    }

    pub(crate) fn apply_endpoints(&self, service: u32, ends: &[String]) {
        let ends: Vec<_> = ends.iter().map(String::as_str).collect();
        let (namespace, name) = (namespace(service), name_of_service(service));
        let slice = endpoints(&namespace, &name, &ends, PORT_OF_ENDS);
        self.server.apply(slice);
    }

    pub(crate) fn apply_pod(&self, number: u32) {
        let node = name_of_node(number % self.nodes);
        let (name, uid) = (name_of_pod(number), uid_of_pod(number));
        let pod = pod(&node, &namespace(number), &name, &uid, json!({}));
        self.server.apply(pod);
    }

    /// Creates pods one after the other, and beside each one of the floor's; how long each took
    /// until its annotation came, sorted: those of the controller, and those of the floor.
    pub(crate) fn create(
        &self,
        count: u32,
        every: Duration,
    ) -> Result<[Vec<Duration>; 2], Failure> {
        let floor = Floor::start(&self.central, &self.server)?;
        let mut created = HashMap::new();
        let began = Instant::now();
        for turn in 0..count {
            let number = self.pods + turn;
            thread::sleep((every * turn).saturating_sub(began.elapsed()));
            created.insert(path(number, &name_of_pod(number)), (0, Instant::now()));
            self.apply_pod(number);
            thread::sleep((every * turn + every / 2).saturating_sub(began.elapsed()));
            let name = format!("floor-{number}");
            created.insert(path(number, &name), (1, Instant::now()));
            self.server.apply(floor.pod(&namespace(number), &name));
        }
        let is_done = |pod: &Value| pod["metadata"]["annotations"].get(NETWORKS).is_some();
        for turn in 0..count {
            let number = self.pods + turn;
            for name in [name_of_pod(number), format!("floor-{number}")] {
                self.server
                    .await_object(("Pod", &namespace(number), &name), is_done);
            }
        }
        let mut latencies = [Vec::new(), Vec::new()];
        for request in self.server.requests() {
            // Only the first is of interest: another would be a repetition.
            if request.method == "PATCH"
                && let Some((whose, created)) = created.remove(&request.path)
            {
                latencies[whose].push(request.at - created);
            }
        }
        latencies.iter_mut().for_each(|all| all.sort());
        Ok(latencies)
    }
}

fn path(number: u32, name: &str) -> String {
    format!(
        "/api/v1/namespaces/{}/pods/{name}/status",
        namespace(number)
    )
}

/// A number as an address of 10.0.0.0/8.
pub(crate) fn place(number: u32) -> String {
    let [_, a, b, c] = number.to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

pub(crate) fn address_of_service(number: u32) -> String {
    place(96 << 16 | number)
}

/// The addresses of a service's endpoints.
pub(crate) fn ends_of_service(number: u32) -> Vec<String> {
    (0..5)
        .map(|it| place(128 << 16 | (5 * number + it)))
        .collect()
}

pub(crate) fn namespace(number: u32) -> String {
    format!("namespace-{}", number % NAMESPACES)
}

pub(crate) fn name_of_service(number: u32) -> String {
    format!("service-{number}")
}

pub(crate) fn name_of_node(number: u32) -> String {
    format!("node-{number}")
}

pub(crate) fn uid_of_pod(number: u32) -> String {
    format!("8f14e45f-ceea-467f-ab27-{number:012}")
}

pub(crate) fn name_of_pod(number: u32) -> String {
    format!("deployment-6b7c9d5f4-{number:05}")
}
