//! What ovn-kubernetes' control plane of May 2022 writes for a node with a gateway of its own, a
//! pod and a service: annotations, and rows of the northbound database.

use podwire_tests::Pod;

use super::*;

/// The node's subnets, by whose second address its management port is known.
const SUBNETS: [&str; 2] = ["10.244.1.", "fd00:10:244:1::"];
const MAC: &str = "0a:58:0a:f4:01:05";

/// The Node's annotations.
pub(super) fn annotate(server: &ApiServer) {
    let mut node = server.object("Node", "", "node-a").unwrap();
    let of = &mut node["metadata"]["annotations"];
    let subnets = json!({ "default": ["10.244.1.0/24", "fd00:10:244:1::/64"] });
    of["k8s.ovn.org/node-subnets"] = subnets.to_string().into();
    let port = json!({ "ipv4": "100.64.0.2/16", "ipv6": "fd98::2/64" });
    of["k8s.ovn.org/node-gateway-router-lrp-ifaddr"] = port.to_string().into();
    server.apply(node);
}

/// The entry of the default network in what the node says of its gateway.
pub(super) fn gateway(node: &Value) -> Value {
    let text = node["metadata"]["annotations"]["k8s.ovn.org/l3-gateway-config"].as_str();
    let all: Value = serde_json::from_str(text.unwrap_or("{}")).unwrap();
    all["default"].clone()
}

/// A router's port on a switch.
fn joined(switch: &str, port: &str, to: &str) -> String {
    format!(
        "-- lsp-add {switch} {port} -- lsp-set-type {port} router \
         -- lsp-set-options {port} router-port={to} -- lsp-set-addresses {port} router"
    )
}

/// The router of all nodes, the switch of gateway routers, the node's switch.
pub(super) fn write(central: &Central) {
    let router = "ovn_cluster_router";
    central.nbctl(format!(
        "lr-add {router} -- ls-add join \
         -- lrp-add {router} rtoj-{router} 0a:58:64:40:00:01 100.64.0.1/16 fd98::1/64 {} \
         -- ls-add node-a \
         -- lrp-add {router} rtos-node-a 0a:58:0a:f4:01:01 10.244.1.1/24 fd00:10:244:1::1/64 {} \
         -- lsp-add node-a k8s-node-a \
         -- lsp-set-addresses k8s-node-a '0a:58:0a:f4:01:02 10.244.1.2 fd00:10:244:1::2'",
        joined("join", &format!("jtor-{router}"), &format!("rtoj-{router}")),
        joined("node-a", "stor-node-a", "rtos-node-a"),
    ));
}

/// The gateway router, as the node has announced it.
pub(super) fn write_gateway(central: &Central, entry: &Value) {
    let texts = |field: &str| -> Vec<String> {
        let all = entry[field].as_array().into_iter().flatten();
        all.map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let (addresses, hops) = (texts("ip-addresses"), texts("next-hops"));
    let (mac, port) = (&entry["mac-address"], &entry["interface-id"]);
    let (mac, port) = (mac.as_str().unwrap(), port.as_str().unwrap());
    let gr = "GR_node-a";
    central.nbctl(format!(
        "lr-add {gr} -- set logical_router {gr} options:chassis=node-a options:snat-ct-zone=0 \
         options:lb_force_snat_ip=router_ip options:always_learn_from_arp_request=false \
         options:dynamic_neigh_routers=true \
         -- lrp-add {gr} rtoj-{gr} 0a:58:64:40:00:02 100.64.0.2/16 fd98::2/64 {} \
         -- lrp-add {gr} rtoe-{gr} {mac} {} {} -- ls-add ext_node-a {} \
         -- lsp-set-addresses etor-{gr} {mac} \
         -- lsp-add ext_node-a {port} -- lsp-set-type {port} localnet \
         -- lsp-set-options {port} network_name=physnet -- lsp-set-addresses {port} unknown",
        joined("join", &format!("jtor-{gr}"), &format!("rtoj-{gr}")),
        addresses[0],
        addresses[1],
        joined("ext_node-a", &format!("etor-{gr}"), &format!("rtoe-{gr}")),
    ));
    for (family, (all, every, join)) in [
        ("10.244.0.0/16", "0.0.0.0/0", "100.64.0."),
        ("fd00:10:244::/48", "::/0", "fd98::"),
    ]
    .into_iter()
    .enumerate()
    {
        let own = addresses[family].split('/').next().unwrap();
        let subnet = [SUBNETS[family], ["0/24", "/64"][family]].concat();
        let management = [SUBNETS[family], "2"].concat();
        let ip = ["ip4", "ip6"][family];
        let router = "ovn_cluster_router";
        central.nbctl(format!(
            "lr-route-add {gr} {all} {join}1 -- lr-route-add {gr} {every} {} rtoe-{gr} \
             -- lr-route-add {router} {join}2 {join}2 \
             -- --policy=src-ip lr-route-add {router} {subnet} {join}2 \
             -- lr-nat-add {gr} snat {own} {all} \
             -- lr-policy-add {router} 1004 'inport == \"rtos-node-a\" && {ip}.dst == {own}' \
             reroute {management}",
            hops[family]
        ));
    }
}

/// A pod with its logical port, wired; and its addresses.
pub(super) fn pod(cluster: &Cluster) -> (Pod<'_>, Vec<IpAddr>) {
    let addresses = SUBNETS.map(|net| format!("{net}5"));
    let pod = cluster.node.pod("web");
    let (name, uid) = (format!("{}_{}", pod.namespace, pod.name), &pod.uid);
    cluster.central.nbctl(format!(
        "lsp-add node-a {name} -- lsp-set-addresses {name} '{MAC} {} {}' \
         -- lsp-set-options {name} iface-id-ver={uid} requested-chassis=node-a",
        addresses[0], addresses[1]
    ));
    let pod = pod.on_default_network(&json!({
        "ip_addresses": [format!("{}/24", addresses[0]), format!("{}/64", addresses[1])],
        "mac_address": MAC,
        "gateway_ips": SUBNETS.map(|net| format!("{net}1")),
    }));
    pod.add().success();
    (pod, addresses.map(|it| it.parse().unwrap()).into())
}

/// The load balancer of a service with one endpoint, on the node's switch and its gateway router.
pub(super) fn write_balancer(cluster: &Cluster, policy: &str, [slice, service]: &[Value; 2]) {
    let address: IpAddr = slice["endpoints"][0]["addresses"][0]
        .as_str()
        .and_then(|it| it.parse().ok())
        .unwrap();
    let end = SocketAddr::new(address, 8080);
    let name = service["metadata"]["name"].as_str().unwrap();
    let nbctl = |line: String| cluster.central.nbctl(line);
    for vip in cluster.ways(usize::from(end.is_ipv6())) {
        nbctl(format!("--may-exist lb-add {name} {vip} {end} tcp"));
    }
    nbctl(format!(
        "set load_balancer {name} options:skip_snat={} \
         -- --may-exist lr-lb-add GR_node-a {name} -- --may-exist ls-lb-add node-a {name}",
        policy == "Local"
    ));
}
