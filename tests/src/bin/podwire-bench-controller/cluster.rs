//! A cluster of a certain size, and pods that come one by one.

use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::Failure;
use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::json;

const NETWORKS: &str = "k8s.ovn.org/pod-networks";

pub(crate) struct Cluster {
    pub(crate) central: Central,
    pub(crate) server: ApiServer,
    nodes: u32,
    pods: u32,
    services: u32,
}

impl Cluster {
    pub(crate) fn new(nodes: u32, pods_of_each: u32, services: u32) -> Result<Self, Failure> {
        let central = Central::start()?;
        // It would take the machine's processors for what is not measured.
        central.end_northd();
        let cluster = Self {
            central,
            server: ApiServer::start()?,
            nodes,
            pods: nodes * pods_of_each,
            services,
        };
        for number in 0..nodes {
            let address = format!("172.16.{}.{}", number / 250, 1 + number % 250);
            cluster.server.apply(node(&name_of_node(number), &address));
        }
        for number in 0..cluster.pods {
            cluster.apply_pod(number);
        }
        for number in 0..services {
            let (namespace, name) = (namespace(number), format!("service-{number}"));
            let place =
                |it: u32| format!("10.{}.{}.{}", it >> 16 & 0xff, it >> 8 & 0xff, it & 0xff);
            let address = place(96 << 16 | number);
            cluster
                .server
                .apply(service(&namespace, &name, &address, 80));
            let ends: Vec<_> = (0..5)
                .map(|it| place(128 << 16 | (5 * number + it)))
                .collect();
            let ends: Vec<_> = ends.iter().map(String::as_str).collect();
            cluster
                .server
                .apply(endpoints(&namespace, &name, &ends, 8080));
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

    fn apply_pod(&self, number: u32) {
        let node = name_of_node(number % self.nodes);
        let (name, uid) = (
            name_of_pod(number),
            format!("8f14e45f-ceea-467f-ab27-{number:012}"),
        );
        let pod = pod(&node, &namespace(number), &name, &uid, json!({}));
        self.server.apply(pod);
    }

    /// Creates pods one after the other; how long each took until its annotation was there, sorted.
    pub(crate) fn create(&self, count: u32, every: Duration) -> Result<Vec<Duration>, Failure> {
        let numbers = self.pods..self.pods + count;
        let (sender, created) = std::sync::mpsc::channel();
        let mut latencies = thread::scope(|scope| {
            scope.spawn(move || {
                let began = Instant::now();
                for (turn, number) in numbers.enumerate() {
                    let turn = u32::try_from(turn).unwrap_or(u32::MAX);
                    thread::sleep((every * turn).saturating_sub(began.elapsed()));
                    let created = Instant::now();
                    self.apply_pod(number);
                    if sender.send((number, created)).is_err() {
                        return;
                    }
                }
            });
            let ends = created.into_iter().map(|(number, created)| {
                let (namespace, name) = (namespace(number), name_of_pod(number));
                let place = ("Pod", &*namespace, &*name);
                let is_done = |pod: &serde_json::Value| {
                    pod["metadata"]["annotations"].get(NETWORKS).is_some()
                };
                self.server.await_object(place, is_done)?;
                Ok(created.elapsed())
            });
            ends.collect::<Result<Vec<_>, Failure>>()
        })?;
        latencies.sort();
        Ok(latencies)
    }
}

fn namespace(number: u32) -> String {
    format!("namespace-{}", number % 200)
}

fn name_of_node(number: u32) -> String {
    format!("node-{number}")
}

fn name_of_pod(number: u32) -> String {
    format!("deployment-6b7c9d5f4-{number:05}")
}
