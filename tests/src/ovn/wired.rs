//! Nodes that `podwire node run` keeps, and pods, with what podwire-controller gave them.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{CENTRAL_ADDRESS, Central, OvnNode};
use crate::apiserver::{self, ApiServer, pod_on};
use crate::words::Words as _;
use crate::{NodeRun, Pod};

const NETWORKS: &str = "k8s.ovn.org/pod-networks";
/// What a node role tells the others, once its door is there.
const DOOR_MAC: &str = "k8s.ovn.org/podwire-door-mac";
/// Both families, for podwire-controller.
pub const BOTH_FAMILIES: &str = "--cluster-subnets 10.244.0.0/16/24,fd00:10:244::/48/64";

impl OvnNode {
    /// Makes a [`Central::bare_node`] a part of the cluster, in both families.
    #[track_caller]
    pub fn join(&self, central: &Central, server: &ApiServer) -> NodeRun {
        self.join_by(central, server, self.joining("run", server))
    }

    /// The same, by this command line.
    #[track_caller]
    pub fn join_by(&self, central: &Central, server: &ApiServer, line: Vec<String>) -> NodeRun {
        let name = &*self.name;
        self.register(server);
        let run = NodeRun::start(self, line);
        central.await_chassis(name);
        central.await_up(&format!("k8s-{name}"), true);
        run
    }

    /// Has the API know it, as its kubelet does.
    #[track_caller]
    pub fn register(&self, server: &ApiServer) {
        let mut object = apiserver::node(&self.name, &self.tunnel_address());
        let v6 = json!({ "type": "InternalIP", "address": self.underlay_ipv6() });
        let addresses = object["status"]["addresses"].as_array_mut();
        addresses.into_iter().for_each(|it| it.push(v6.clone()));
        server.apply(object);
    }

    /// The arguments of `podwire node` for [`Self::join`].
    pub fn joining(&self, verb: &str, server: &ApiServer) -> Vec<String> {
        let line = format!(
            "node {verb} --mode ovn --node-name {} --interface {} --cluster-subnet 10.244.0.0/16 \
             --cluster-subnet fd00:10:244::/48 --service-cidr 10.96.0.0/16 \
             --service-cidr fd00:96::/112 --ovn-remote tcp:{CENTRAL_ADDRESS}:6642 \
             --k8s-apiserver {}",
            self.name,
            self.uplink(),
            server.url()
        );
        line.words()
    }

    /// The same for a [`Central::bare_node_by_bridge`] or, with the profile bridged, for a
    /// [`Central::bare_node_by_nic`], with this mode of its gateway.
    pub fn joining_by_bridge(
        &self,
        (verb, profile): (&str, &str),
        server: &ApiServer,
        mode: &str,
    ) -> Vec<String> {
        let mut words = self.joining(verb, server);
        let named = words.iter().position(|word| word == "--interface");
        words.drain(named.map_or(0..0, |at| at..at + 2));
        words.extend(format!("--profile {profile} --gateway-mode {mode}").words());
        words
    }

    /// Waits until this node leads clients to the doors of these others.
    #[track_caller]
    pub fn await_doors(&self, server: &ApiServer, run: &NodeRun, others: &[&str]) {
        let mut changes = 1;
        for &other in others {
            let is_there = |node: &Value| !door(node).unwrap_or_default().is_empty();
            let object = server.await_object(("Node", "", other), is_there);
            let mac = door(&object).unwrap_or_default();
            while !self
                .run("nft", "list table netdev podwire-door")
                .contains(mac)
            {
                let changed = "changed with the machine: nftables table netdev podwire-door";
                run.await_log(changed, changes);
                changes += 1;
            }
        }
    }

    /// A pod of this node in the API, with the label `app`.
    pub fn labelled(&self, pod: &Pod<'_>, app: &str) -> Value {
        let mut object = pod_on(&self.name, pod, json!({}));
        object["metadata"]["labels"] = json!({ "app": app });
        object
    }

    /// A pod with this label, wired as the controller says; and its addresses.
    ///
    /// # Panics
    /// It got no address, or its ADD failed.
    #[track_caller]
    pub fn wired(&self, server: &ApiServer, name: &str, app: &str) -> (Pod<'_>, Vec<IpAddr>) {
        let pod = self.pod(name);
        server.apply(self.labelled(&pod, app));
        wired(server, pod)
    }

    /// A pod of a namespace with a [`primary_network`], wired, with its name as its label; its
    /// addresses on the default network, and on that one.
    ///
    /// # Panics
    /// That is not its primary network, or its ADD failed.
    #[track_caller]
    pub fn wired_on_own(
        &self,
        server: &ApiServer,
        namespace: &str,
        name: &str,
    ) -> (Pod<'_>, [Vec<IpAddr>; 2]) {
        let mut pod = self.pod(name);
        namespace.clone_into(&mut pod.namespace);
        server.apply(self.labelled(&pod, name));
        let own = format!("{namespace}/own");
        let all = await_entries(server, &pod, &own);
        assert_eq!(all[&own]["role"], "primary");
        let addresses = ["default", &own].map(|entry| addresses(&all[entry]));
        let pod = pod.annotate(NETWORKS, &all);
        pod.add().success();
        (pod, addresses)
    }

    /// As there, of a pod that the API has already: its namespace, its name and its uid.
    #[track_caller]
    pub fn wired_as(
        &self,
        server: &ApiServer,
        (namespace, name, uid): (&str, &str, &str),
    ) -> (Pod<'_>, Vec<IpAddr>) {
        let mut pod = self.pod(name);
        pod.namespace = namespace.to_owned();
        pod.uid = uid.to_owned();
        wired(server, pod)
    }
}

#[track_caller]
fn wired<'node>(server: &ApiServer, pod: Pod<'node>) -> (Pod<'node>, Vec<IpAddr>) {
    let all = await_entries(server, &pod, "default");
    let entry = &all["default"];
    let addresses = addresses(entry);
    let pod = pod.on_default_network(entry);
    pod.add().success();
    (pod, addresses)
}

/// What a pod's annotation says of its networks, once it has this one.
#[track_caller]
fn await_entries(server: &ApiServer, pod: &Pod<'_>, network: &str) -> Value {
    let read = |pod: &Value| -> Option<Value> {
        let text = pod["metadata"]["annotations"][NETWORKS].as_str()?;
        serde_json::from_str(text).ok()
    };
    let is_there = |pod: &Value| read(pod).is_some_and(|all| all[network].is_object());
    let object = server.await_object(("Pod", &pod.namespace, &pod.name), is_there);
    read(&object).unwrap_or_default()
}

fn addresses(entry: &Value) -> Vec<IpAddr> {
    let addresses = entry["ip_addresses"].as_array().into_iter().flatten();
    let address = |it: &Value| it.as_str()?.split('/').next()?.parse().ok();
    addresses.filter_map(address).collect()
}

/// A namespace with a primary network of its name, of this topology and with these subnets.
pub fn primary_network(server: &ApiServer, namespace: &str, (topology, subnets): (&str, &str)) {
    server.apply(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": namespace, "uid": format!("uid-of-{namespace}"),
            "labels": { "k8s.ovn.org/primary-user-defined-network": "" },
        },
    }));
    let config = json!({
        "cniVersion": "1.0.0", "type": "podwire-cni", "name": namespace, "topology": topology,
        "netAttachDefName": format!("{namespace}/own"), "role": "primary", "subnets": subnets,
    });
    server.apply(json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "namespace": namespace, "name": "own", "uid": format!("uid-of-{namespace}-own"),
        },
        "spec": { "config": config.to_string() },
    }));
}

/// What a Node says of its door.
pub fn door(node: &Value) -> Option<&str> {
    node["metadata"]["annotations"][DOOR_MAC].as_str()
}
