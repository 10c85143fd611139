//! Rows of the shape that ovn-kubernetes' central control plane writes in its shared gateway mode:
//! beside what podwire has, a gateway router, a port on the join switch and an external switch for
//! each node, an address set for each namespace, and a load balancer of each node for each
//! service with a node port, which every fiftieth has here.

use std::collections::HashMap;

use podwire_tests::Failure;
use serde_json::{Value, json};

use super::policies;
use crate::cluster::{Cluster, NAMESPACES, PORT_OF_ENDS, address_of_service, ends_of_service};
use crate::cluster::{name_of_node, name_of_pod, name_of_service, namespace, place};
use crate::floor::Database;

const ROUTER: &str = "ovn_cluster_router";
/// One of so many services has a node port.
const NODE_PORTS: u32 = 50;

/// The groups of load balancers: of all, of switches, of gateway routers.
const GROUPS: [&str; 3] = [
    "clusterLBGroup",
    "clusterSwitchLBGroup",
    "clusterRouterLBGroup",
];

pub(crate) struct Peer {
    database: Database,
    /// Those of [`GROUPS`].
    groups: [Value; 3],
    /// The ports of pods that came later.
    ports: HashMap<u32, Value>,
}

pub(super) fn insert(table: &str, uuid: &str, row: Value) -> Value {
    json!({ "op": "insert", "table": table, "uuid-name": uuid, "row": row })
}

/// Adds to a column of the row with a name.
pub(super) fn under(table: &str, name: &str, column: &str, uuids: &[&str]) -> Value {
    let added: Vec<_> = uuids.iter().map(|it| json!(["named-uuid", it])).collect();
    json!({ "op": "mutate", "table": table, "where": [["name", "==", name]],
        "mutations": [[column, "insert", ["set", added]]] })
}

pub(super) fn map<const N: usize>(pairs: [(&str, &str); N]) -> Value {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| json!([name, value]))
        .collect();
    json!(["map", pairs])
}

fn mac(address: &str) -> String {
    let bytes = address.split('.').filter_map(|it| it.parse::<u8>().ok());
    bytes.fold("0a:58".to_owned(), |mac, it| format!("{mac}:{it:02x}"))
}

/// The network of a node, and an address of it.
fn subnet(node: u32, last: u32) -> String {
    place((128 << 16) + (node << 10) + last)
}

fn vips(address: &str, port: u32, ends: &[String]) -> Value {
    let ends: Vec<_> = ends
        .iter()
        .map(|it| format!("{it}:{PORT_OF_ENDS}"))
        .collect();
    map([(&format!("{address}:{port}"), &ends.join(","))])
}

fn set_of(namespace: u32) -> String {
    format!("a{namespace}")
}

impl Peer {
    pub(crate) fn write(cluster: &Cluster) -> Result<Self, Failure> {
        let database = Database::northbound(&cluster.central)?;
        let mut peer = Self {
            database,
            groups: Default::default(),
            ports: HashMap::new(),
        };
        peer.commit(&shared())?;
        let group = |name| insert("Load_Balancer_Group", "group", json!({ "name": name }));
        for (place, name) in GROUPS.iter().enumerate() {
            peer.groups[place] = peer.commit(&[group(name)])?[0]["uuid"].take();
        }
        for node in 0..cluster.nodes {
            let rows = node_rows(node, &peer.groups);
            peer.commit(&rows)?;
        }
        for service in 0..cluster.services {
            peer.commit(&service_rows(cluster, service))?;
        }
        for number in 0..cluster.pods {
            peer.commit(&pod_rows(cluster, number))?;
        }
        Ok(peer)
    }

    fn commit(&mut self, operations: &[Value]) -> Result<Value, Failure> {
        let results = self.database.commit(operations)?;
        let mut all = results.as_array().into_iter().flatten();
        match all.find(|it| it.get("error").is_some()) {
            None => Ok(results),
            Some(error) => Err(Failure::Ovsdb {
                request: json!(operations).to_string(),
                answer: error.to_string(),
            }),
        }
    }

    /// Policies, and the places of all pods.
    pub(crate) fn add_policies(&mut self, cluster: &Cluster, count: u32) -> Result<(), Failure> {
        self.commit(&policies::shared_rows())?;
        for number in 0..count {
            self.commit(&policies::policy_rows(cluster, number))?;
        }
        for number in 0..cluster.pods {
            let places = policies::places(count, number, policies::app(number));
            self.join(cluster, number, &places, "insert")?;
        }
        Ok(())
    }

    /// One more, with the pods that it selects.
    pub(crate) fn add_policy(&mut self, cluster: &Cluster, number: u32) -> Result<(), Failure> {
        let mut rows = policies::policy_rows(cluster, number);
        for pod in policies::selected(cluster, number) {
            let groups = [policies::group(number)];
            rows.extend(self.places(cluster, pod, (&[], &groups), "insert")?);
        }
        self.commit(&rows).map(drop)
    }

    /// Has a pod in the sets and groups of another label.
    pub(crate) fn relabel(
        &mut self,
        cluster: &Cluster,
        number: u32,
        [before, after]: [(&[String], &[String]); 2],
    ) -> Result<(), Failure> {
        let mut all = self.places(cluster, number, before, "delete")?;
        all.extend(self.places(cluster, number, after, "insert")?);
        self.commit(&all).map(drop)
    }

    fn join(
        &mut self,
        cluster: &Cluster,
        number: u32,
        (sets, groups): &([String; 2], Vec<String>),
        mutator: &str,
    ) -> Result<(), Failure> {
        let all = self.places(cluster, number, (&sets[..], groups), mutator)?;
        self.commit(&all).map(drop)
    }

    fn places(
        &mut self,
        cluster: &Cluster,
        number: u32,
        (sets, groups): (&[String], &[String]),
        mutator: &str,
    ) -> Result<Vec<Value>, Failure> {
        let address = address_of_pod(cluster, number);
        let name = format!("{}_{}", namespace(number), name_of_pod(number));
        let port = self.commit(&[json!({ "op": "select", "table": "Logical_Switch_Port",
            "where": [["name", "==", name]], "columns": ["_uuid"] })])?;
        let port = port[0]["rows"][0]["_uuid"].clone();
        let change = |table: &str, name: &String, column: &str, member: &Value| {
            json!({ "op": "mutate", "table": table, "where": [["name", "==", name]],
                "mutations": [[column, mutator, member]] })
        };
        let address = json!(address);
        let sets = sets
            .iter()
            .map(|it| change("Address_Set", it, "addresses", &address));
        let groups = groups
            .iter()
            .map(|it| change("Port_Group", it, "ports", &port));
        Ok(sets.chain(groups).collect())
    }

    pub(crate) fn add_pod(&mut self, cluster: &Cluster, number: u32) -> Result<(), Failure> {
        let mut results = self.commit(&pod_rows(cluster, number))?;
        self.ports.insert(number, results[0]["uuid"].take());
        Ok(())
    }

    pub(crate) fn remove_pod(&mut self, cluster: &Cluster, number: u32) -> Result<(), Failure> {
        let switch = name_of_node(number % cluster.nodes);
        let port = self.ports.remove(&number);
        let removed = json!({ "op": "mutate", "table": "Logical_Switch",
            "where": [["name", "==", switch]], "mutations": [["ports", "delete", port]] });
        let left = in_set(cluster, number, "delete");
        self.commit(&[removed, left]).map(drop)
    }

    pub(crate) fn set_ends(&mut self, service: u32, ends: &[String]) -> Result<(), Failure> {
        let vips = vips(&address_of_service(service), 80, ends);
        let name = name_of_balancer(service, "cluster");
        self.commit(&[json!({ "op": "update", "table": "Load_Balancer",
            "where": [["name", "==", name]], "row": { "vips": vips } })])
            .map(drop)
    }
}

fn shared() -> Vec<Value> {
    let router = json!({ "name": ROUTER, "options":
        map([("always_learn_from_arp_request", "false")]),
        "external_ids": map([("k8s-cluster-router", "yes")]) });
    let mut rows = vec![
        insert("Logical_Router", "router", router),
        insert("Logical_Switch", "join", json!({ "name": "join" })),
        insert(
            "Logical_Router_Port",
            "rtoj",
            json!({ "name": format!("rtoj-{ROUTER}"), "mac": "0a:58:64:40:00:01",
                "networks": "100.64.0.1/16" }),
        ),
        under("Logical_Router", ROUTER, "ports", &["rtoj"]),
        router_port("jtor", &format!("jtor-{ROUTER}"), &format!("rtoj-{ROUTER}")),
        under("Logical_Switch", "join", "ports", &["jtor"]),
        insert("Port_Group", "pg", json!({ "name": "clusterPortGroup" })),
    ];
    rows.extend((0..NAMESPACES).map(|number| {
        let ids = map([("name", &format!("{}_v4", namespace(number)))]);
        let row = json!({ "name": set_of(number), "external_ids": ids });
        insert("Address_Set", &format!("set{number}"), row)
    }));
    rows
}

/// A switch's end of a router's port.
fn router_port(uuid: &str, name: &str, router_port: &str) -> Value {
    let row = json!({ "name": name, "type": "router", "addresses": "router",
        "options": map([("router-port", router_port)]) });
    insert("Logical_Switch_Port", uuid, row)
}

fn node_rows(node: u32, [of_all, of_switches, of_routers]: &[Value; 3]) -> Vec<Value> {
    let name = name_of_node(node);
    let [gr, ext] = ["GR_", "ext_"].map(|prefix| format!("{prefix}{name}"));
    let [rtos, rtoj, rtoe] = ["rtos-", "rtoj-GR_", "rtoe-GR_"].map(|it| format!("{it}{name}"));
    let own = |last| subnet(node, last);
    let join = format!("100.64.{}.{}", (node + 2) >> 8, (node + 2) & 255);
    let outside = outside(node);
    let net = format!("{}/22", own(0));
    let route = |uuid: &str, columns: Value| insert("Logical_Router_Static_Route", uuid, columns);
    let lrp = |uuid: &str, name: &str, address: &str, length: u8| {
        let networks = format!("{address}/{length}");
        let row = json!({ "name": name, "mac": mac(address), "networks": networks });
        insert("Logical_Router_Port", uuid, row)
    };
    let mut to_switch = lrp("rtos", &rtos, &own(1), 22);
    to_switch["row"]["gateway_chassis"] = json!(["named-uuid", "chassis"]);
    let policy = format!("inport == \"{rtos}\" && ip4.dst == {outside} /* {name} */");
    let management = format!("{} {}", mac(&own(2)), own(2));
    let allowed = json!({ "direction": "to-lport", "priority": 1001, "action": "allow-related",
        "match": format!("ip4.src=={}", own(2)) });
    let nat = json!({ "type": "snat", "external_ip": outside, "logical_ip": "10.128.0.0/9" });
    let localnet = json!({ "name": format!("br-ex_{name}"), "type": "localnet",
        "addresses": "unknown", "options": map([("network_name", "physnet")]) });
    vec![
        insert(
            "Logical_Switch",
            "switch",
            json!({ "name": name, "other_config":
            map([("subnet", &*net)]), "load_balancer_group": ["set", [of_all, of_switches]] }),
        ),
        insert(
            "Gateway_Chassis",
            "chassis",
            json!({ "name": format!("{rtos}-{name}"),
            "chassis_name": name, "priority": 1 }),
        ),
        to_switch,
        under("Logical_Router", ROUTER, "ports", &["rtos"]),
        router_port("stor", &format!("stor-{name}"), &rtos),
        insert(
            "Logical_Switch_Port",
            "k8s",
            json!({ "name": format!("k8s-{name}"),
            "addresses": management }),
        ),
        under("Logical_Switch", &name, "ports", &["stor", "k8s"]),
        under("Port_Group", "clusterPortGroup", "ports", &["k8s"]),
        insert("ACL", "acl", allowed),
        under("Logical_Switch", &name, "acls", &["acl"]),
        insert(
            "Logical_Router",
            "gr",
            json!({ "name": gr, "options": map([
            ("chassis", &*name), ("always_learn_from_arp_request", "false"),
            ("dynamic_neigh_routers", "true"), ("lb_force_snat_ip", "router_ip"),
            ("snat-ct-zone", "0")]), "load_balancer_group": ["set", [of_all, of_routers]] }),
        ),
        lrp("rtoj", &rtoj, &join, 16),
        lrp("rtoe", &rtoe, &outside, 16),
        under("Logical_Router", &gr, "ports", &["rtoj", "rtoe"]),
        router_port("jtor", &format!("jtor-GR_{name}"), &rtoj),
        under("Logical_Switch", "join", "ports", &["jtor"]),
        insert("Logical_Switch", "ext", json!({ "name": ext })),
        router_port("etor", &format!("etor-GR_{name}"), &rtoe),
        insert("Logical_Switch_Port", "localnet", localnet),
        under("Logical_Switch", &ext, "ports", &["etor", "localnet"]),
        route(
            "in",
            json!({ "ip_prefix": "10.128.0.0/9", "nexthop": "100.64.0.1" }),
        ),
        route(
            "out",
            json!({ "ip_prefix": "0.0.0.0/0", "nexthop": "172.16.255.254",
            "output_port": rtoe }),
        ),
        under("Logical_Router", &gr, "static_routes", &["in", "out"]),
        route(
            "togr",
            json!({ "ip_prefix": format!("{join}/32"), "nexthop": join }),
        ),
        route(
            "src",
            json!({ "ip_prefix": net, "nexthop": join, "policy": "src-ip" }),
        ),
        under("Logical_Router", ROUTER, "static_routes", &["togr", "src"]),
        insert("NAT", "nat", nat),
        under("Logical_Router", &gr, "nat", &["nat"]),
        insert(
            "Logical_Router_Policy",
            "policy",
            json!({ "priority": 1004, "match": policy,
            "action": "reroute", "nexthops": own(2) }),
        ),
        under("Logical_Router", ROUTER, "policies", &["policy"]),
    ]
}

fn name_of_balancer(service: u32, suffix: &str) -> String {
    let (namespace, name) = (namespace(service), name_of_service(service));
    format!("Service_{namespace}/{name}_TCP_{suffix}")
}

fn service_rows(cluster: &Cluster, service: u32) -> Vec<Value> {
    let ends = ends_of_service(service);
    let owner = format!("{}/{}", namespace(service), name_of_service(service));
    let balancer = |uuid: &str, suffix: &str, vips: Value| {
        let row = json!({
            "name": name_of_balancer(service, suffix), "protocol": "tcp", "vips": vips,
            "options": map([("reject", "true"), ("event", "false"), ("skip_snat", "false"),
                ("neighbor_responder", "none"), ("hairpin_snat_ip", "169.254.169.5 fd69::5")]),
            "external_ids": map([("k8s.ovn.org/kind", "Service"), ("k8s.ovn.org/owner", &owner)]),
        });
        insert("Load_Balancer", uuid, row)
    };
    let mut rows = vec![
        balancer(
            "cluster",
            "cluster",
            vips(&address_of_service(service), 80, &ends),
        ),
        under(
            "Load_Balancer_Group",
            GROUPS[0],
            "load_balancer",
            &["cluster"],
        ),
    ];
    if service.is_multiple_of(NODE_PORTS) {
        for node in 0..cluster.nodes {
            let (uuid, name) = (format!("node{node}"), name_of_node(node));
            let vips = vips(&outside(node), 30_000 + service, &ends);
            let suffix = format!("node_router+switch_{name}");
            let gr = format!("GR_{name}");
            rows.extend([
                balancer(&uuid, &suffix, vips),
                under("Logical_Switch", &name, "load_balancer", &[&uuid]),
                under("Logical_Router", &gr, "load_balancer", &[&uuid]),
            ]);
        }
    }
    rows
}

/// The operations of a pod; the first one inserts its port.
fn pod_rows(cluster: &Cluster, number: u32) -> Vec<Value> {
    let (namespace, node) = (namespace(number), name_of_node(number % cluster.nodes));
    let address = address_of_pod(cluster, number);
    let addresses = format!("{} {address}", mac(&address));
    let port = json!({
        "name": format!("{namespace}_{}", name_of_pod(number)),
        "addresses": addresses, "port_security": addresses,
        "options": map([("iface-id-ver", &version_of_pod(number)), ("requested-chassis", &node)]),
        "external_ids": map([("namespace", &namespace), ("pod", "true")]),
    });
    vec![
        insert("Logical_Switch_Port", "port", port),
        under("Logical_Switch", &node, "ports", &["port"]),
        in_set(cluster, number, "insert"),
    ]
}

/// A pod's address in its namespace's set, or no longer there.
fn in_set(cluster: &Cluster, number: u32, mutator: &str) -> Value {
    let address = address_of_pod(cluster, number);
    json!({ "op": "mutate", "table": "Address_Set",
        "where": [["name", "==", set_of(number % NAMESPACES)]],
        "mutations": [["addresses", mutator, address]] })
}

pub(super) fn address_of_pod(cluster: &Cluster, number: u32) -> String {
    subnet(number % cluster.nodes, 3 + number / cluster.nodes)
}

pub(super) fn version_of_pod(number: u32) -> String {
    format!("{number:032}")
}

/// A node's own address.
fn outside(node: u32) -> String {
    format!("172.16.{}.{}", node / 250, 1 + node % 250)
}
