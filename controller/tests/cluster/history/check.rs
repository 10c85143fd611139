//! What holds whenever everything that was told is done.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{
    MACS, NETWORKS, NODES, PODS, SERVICE, SERVICES, SUBNETS, WISHED, WISHED_MAC, World, uid,
};
use crate::fixture::annotation;
use crate::networks::ASKED;

/// Of the northbound database.
type Row = Map<String, Value>;

impl World {
    /// A pod that is gone has no address. A node that is gone, and has no pods, may later have
    /// another subnet; also if it comes back and a controller has not seen it before the pods go.
    pub(super) fn forget(&mut self) {
        let pods: Vec<Value> = (0..PODS).filter_map(|number| self.pod(number)).collect();
        let lives = |of: &String| pods.iter().any(|pod| uid(pod) == *of);
        self.addresses.retain(|uid, _| lives(uid));
        let is_there = |name: &String| self.server.object("Node", "", name).is_some();
        let has_node = |of: &str| {
            let mut own = pods
                .iter()
                .filter(|pod| of.starts_with(&format!("{}/", uid(pod))));
            own.any(|pod| is_there(&pod["spec"]["nodeName"].as_str().unwrap().to_owned()))
        };
        self.attached.retain(|of, _| has_node(of));
        let gone = self.subnets.keys().filter(|name| !is_there(name)).cloned();
        self.gone.extend(gone);
        let (gone, addresses) = (&self.gone, &self.addresses);
        self.subnets.retain(|name, _| {
            let has_address = |pod: &Value| {
                pod["spec"]["nodeName"] == **name && addresses.contains_key(&uid(pod))
            };
            !gone.contains(name) || pods.iter().any(has_address)
        });
    }

    /// Compares rows, annotations, and what was there before; returns how many objects are refused.
    pub(super) fn check(&mut self) -> usize {
        self.check_nodes();
        self.check_services();
        let refused = self.check_pods();
        self.check_policies();
        let of_cluster = self.tiered().count();
        let of_tiers = if self.has_tiers { 0 } else { of_cluster };
        refused + of_tiers + self.check_networks() + self.check_users()
    }

    /// What kubelets report of the pods that run.
    pub(super) fn report(&self) {
        for number in 0..PODS {
            let Some(mut pod) = self.pod(number) else {
                continue;
            };
            if let Some(address) = self.addresses.get(&uid(&pod)) {
                pod["status"] = json!({ "phase": "Running", "podIPs": [{ "ip": address }] });
                self.server.apply(pod);
            }
        }
    }

    /// Each pod has as many ports on the second network as it asks for, or fewer while it is
    /// refused; on it no address is anybody else's, and none changes. Returns how often something
    /// is refused: the definition, and the pods that ask for it.
    fn check_networks(&mut self) -> usize {
        let northbound = self.central.northbound();
        let ports_of_all = northbound.rows("Logical_Switch_Port").unwrap();
        let is_on = |port: &&Row| port["external_ids"]["k8s.ovn.org/network"] == "blue";
        let ports = ports_of_all.iter().filter(is_on);
        let (mut addresses, mut names) = (BTreeSet::new(), BTreeSet::new());
        for port in ports {
            let name = port["name"].as_str().unwrap();
            let words: Vec<_> = port["addresses"].as_str().unwrap().split(' ').collect();
            names.insert(name.to_owned());
            assert!(addresses.insert(words[1].to_owned()), "{port:?}");
            let (_, pod) = name.rsplit_once('_').unwrap();
            let pod = self.server.object("Pod", "default", pod).unwrap();
            assert_eq!(port["options"]["iface-id-ver"], uid(&pod), "{port:?}");
            let entry = port["external_ids"]["k8s.ovn.org/nad"].as_str().unwrap();
            let written = annotation(&pod, NETWORKS).unwrap()[entry].clone();
            let address = written["ip_address"].as_str().unwrap();
            assert_eq!(
                address.split('/').next(),
                Some(words[1]),
                "{written} {port:?}"
            );
            let asked = pod["metadata"]["annotations"][ASKED]
                .as_str()
                .unwrap_or_default();
            let times = asked.matches("blue").count();
            assert!(!entry.ends_with("/1") || times == 2, "{entry} {pod}");
            let key = format!("{}/{entry}", uid(&pod));
            let before = self.attached.insert(key, address.to_owned());
            assert!(before.is_none_or(|it| it == address), "{address} {pod}");
        }
        let switches = northbound.rows("Logical_Switch").unwrap();
        let switch = switches
            .iter()
            .find(|it| it["name"] == "blue_ovn_layer2_switch");
        let definition = "NetworkAttachmentDefinition";
        let definition = self.server.object(definition, "default", "blue");
        assert_eq!(
            switch.is_some(),
            definition.is_some() || !addresses.is_empty()
        );
        let Some((switch, definition)) = switch.zip(definition) else {
            return 0;
        };
        let parse =
            |text: &Value| -> Value { serde_json::from_str(text.as_str().unwrap()).unwrap() };
        let is = parse(&switch["external_ids"]["podwire.io/network"]);
        let wanted = parse(&definition["spec"]["config"]);
        let is_refused = is["subnets"][0] != wanted["subnets"];
        assert!(!is_refused || !addresses.is_empty(), "{is} {wanted}");
        let mut refused = usize::from(is_refused);
        for pod in (0..PODS).filter_map(|number| self.pod(number)) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let on_default = format!("default_{name}");
            if !ports_of_all.iter().any(|port| port["name"] == on_default) {
                continue;
            }
            let asked = pod["metadata"]["annotations"][ASKED]
                .as_str()
                .unwrap_or_default();
            let own = ["", ".1"].iter().take(asked.matches("blue").count());
            let own = own.map(|index| format!("default.blue{index}_default_{name}"));
            let lacks = own.into_iter().filter(|port| !names.contains(port)).count();
            assert!(lacks == 0 || is_refused, "{pod}");
            refused += usize::from(lacks != 0);
        }
        refused
    }

    fn check_nodes(&mut self) {
        for number in 0..NODES {
            let Some(node) = self.node(number) else {
                continue;
            };
            let subnets = annotation(&node, SUBNETS).unwrap()["default"].clone();
            let name = format!("n{number}");
            self.gone.remove(&name);
            let before = self.subnets.insert(name.clone(), subnets.clone());
            assert!(before.is_none_or(|before| before == subnets), "{name}");
        }
        let all: BTreeSet<String> = self.subnets.values().map(Value::to_string).collect();
        assert_eq!(all.len(), self.subnets.len(), "{:?}", self.subnets);
    }

    /// Each pod on a node has its port there, with an address that no other port has and that never
    /// changes; one that asks for an address has had another before, or has that one, or none while
    /// it can't have it. No other port is there.
    fn check_pods(&mut self) -> usize {
        let northbound = self.central.northbound();
        let ports = northbound.rows("Logical_Switch_Port").unwrap();
        let mut holders: BTreeMap<String, String> = BTreeMap::new();
        for port in &ports {
            let name = port["name"].as_str().unwrap();
            let words = port["addresses"].as_str().unwrap().split(' ');
            for word in words.filter(|word| word.contains('.')) {
                let before = holders.insert(word.to_owned(), name.to_owned());
                assert_eq!(before, None, "{word}: {name}");
            }
        }
        let switches = northbound.rows("Logical_Switch").unwrap();
        let has = |switch: &Row, port: &Row| {
            let on_switch = switch["ports"].to_string();
            on_switch.contains(&port["_uuid"].to_string())
        };
        let macs = self.check_macs(&switches, &ports);
        let (mut wanted, mut refused) = (BTreeSet::new(), 0);
        for number in 0..PODS {
            let Some(pod) = self.pod(number) else {
                continue;
            };
            let name = format!("default_p{number}");
            let node = pod["spec"]["nodeName"].as_str().unwrap();
            let Some(node) = self.server.object("Node", "", node) else {
                continue;
            };
            if pod["status"]["phase"] == "Failed" {
                continue;
            }
            let request = pod["metadata"]["annotations"][WISHED].as_str();
            let mac = pod["metadata"]["annotations"][WISHED_MAC].as_str();
            let switch = switches
                .iter()
                .find(|it| it["name"] == node["metadata"]["name"]);
            let switch = switch.unwrap();
            let Some(port) = ports.iter().find(|port| port["name"] == *name) else {
                let subnets = annotation(&node, SUBNETS).unwrap();
                let subnet = subnets["default"][0].as_str().unwrap();
                let start = subnet.strip_suffix("0/24").unwrap();
                let on = switch["name"].as_str().unwrap().to_owned();
                let is_held =
                    |mac| MACS[2..].contains(&mac) || macs.contains(&(on, mac.to_owned()));
                let has_reason = mac.is_some_and(is_held)
                    || request.is_some_and(|request| {
                        let is_management = request == "10.244.1.201" && mac.is_none();
                        !request.starts_with(start)
                            || holders.contains_key(request)
                            || is_management
                    });
                assert!(has_reason, "{pod} has no port");
                refused += 1;
                continue;
            };
            let uid = uid(&pod);
            assert_eq!(port["options"]["iface-id-ver"], uid, "{port:?}");
            assert!(has(switch, port), "{port:?}");
            let entry = annotation(&pod, NETWORKS).unwrap()["default"].clone();
            let address = entry["ip_address"].as_str().unwrap();
            let address = address.split('/').next().unwrap().to_owned();
            let both = format!("{} {address}", entry["mac_address"].as_str().unwrap());
            assert_eq!(port["addresses"], both);
            let before = self.addresses.insert(uid.clone(), address.clone());
            assert!(
                before.is_none_or(|before| before == address),
                "{address} {pod}"
            );
            // A request that was changed after the pod had its address changes nothing.
            let is_its = request.is_none_or(|request| request == address);
            let has_mac = mac.is_none_or(|mac| entry["mac_address"] == mac);
            let is_its = is_its && has_mac;
            assert!(is_its || self.written.contains(&uid), "{address} {pod}");
            wanted.insert(name);
        }
        let made = ports.iter().filter_map(|port| port["name"].as_str());
        let made: BTreeSet<_> = made.filter(|name| name.starts_with("default_p")).collect();
        assert!(
            made.iter().all(|name| wanted.contains(*name)),
            "{made:?} {wanted:?}"
        );
        refused
    }

    /// On each switch, each port has a MAC address that neither another one nor the router has.
    /// Returns all of them, each with its switch's name.
    fn check_macs(&self, switches: &[Row], ports: &[Row]) -> BTreeSet<(String, String)> {
        let router_ports = self.central.northbound().rows("Logical_Router_Port");
        let router_ports = router_ports.unwrap();
        let mut macs = BTreeSet::new();
        for switch in switches {
            let name = switch["name"].as_str().unwrap();
            let all = switch["ports"].to_string();
            let own = ports
                .iter()
                .filter(|it| all.contains(&it["_uuid"].to_string()));
            let own = own.filter_map(|port| port["addresses"].as_str()?.split(' ').next());
            let router = router_ports
                .iter()
                .filter(|it| it["name"] == format!("rtos-{name}"));
            let router = router.filter_map(|port| port["mac"].as_str());
            for mac in own.filter(|mac| *mac != "router").chain(router) {
                let is_new = macs.insert((name.to_owned(), mac.to_owned()));
                assert!(is_new, "{mac} twice on {name}");
            }
        }
        macs
    }

    /// A service leads to all its endpoints; one of local endpoints leads on each node to the
    /// node's own, or rejects. No other has load balancers.
    fn check_services(&self) {
        let northbound = self.central.northbound();
        let balancers = northbound.rows("Load_Balancer").unwrap();
        // Those of nodes: other networks, and the doors', have no services.
        let is_node_s = |row: &Row| {
            let network = &row["external_ids"]["k8s.ovn.org/network"];
            network.is_null() && row["name"] != "podwire_doors"
        };
        let mut switches = northbound.rows("Logical_Switch").unwrap();
        switches.retain(is_node_s);
        let owner = |row: &Row| row["external_ids"]["k8s.ovn.org/owner"].clone();
        let slices: Vec<Value> = (0..SERVICES)
            .map(|number| format!("s{number}-1"))
            .filter_map(|name| self.server.object("EndpointSlice", "default", &name))
            .collect();
        for number in 0..SERVICES {
            let name = format!("s{number}");
            let own: Vec<_> = balancers
                .iter()
                .filter(|it| owner(it) == format!("default/{name}"))
                .collect();
            let Some(service) = self.service(number) else {
                assert!(own.is_empty(), "{name} is gone: {own:?}");
                continue;
            };
            let vip = format!("{}:80", service["spec"]["clusterIP"].as_str().unwrap());
            let ends = |node: Option<&Value>| {
                let of = slices
                    .iter()
                    .filter(|it| it["metadata"]["labels"][SERVICE] == *name);
                let all = of.flat_map(|it| it["endpoints"].as_array().unwrap());
                let ends = all.filter(|end| node.is_none_or(|node| end["nodeName"] == *node));
                let ends = ends.map(|end| format!("{}:80", end["addresses"][0].as_str().unwrap()));
                let ends: BTreeSet<_> = ends.collect();
                ends.into_iter().collect::<Vec<_>>().join(",")
            };
            if service["spec"]["internalTrafficPolicy"] != "Local" {
                let [balancer] = own[..] else {
                    panic!("{name}: {own:?}");
                };
                assert_eq!(balancer["vips"], json!({ vip: ends(None) }), "{name}");
                continue;
            }
            for switch in &switches {
                let on_switch = switch["load_balancer"].to_string();
                let here = own
                    .iter()
                    .filter(|it| on_switch.contains(&it["_uuid"].to_string()));
                let [balancer] = here.collect::<Vec<_>>()[..] else {
                    panic!("{name} on {switch:?}: {own:?}");
                };
                let ends = ends(Some(&switch["name"]));
                assert_eq!(balancer["vips"][&vip], ends, "{name} on {switch:?}");
            }
        }
    }
}
