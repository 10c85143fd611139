//! MultiNetworkPolicies: what a NetworkPolicy says, on secondary networks.

use std::net::SocketAddr;

use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use podwire_tests::traffic;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, names, populate, populated};
use crate::networks::{attached, await_event, definition};
use crate::packets::{Named, Network, ask};
use crate::policies::{TESTS, await_reach, connects, labelled, namespace};
use crate::primary::{self, of_shop, primary};
use crate::tiered::{await_condition, tiered};
use crate::user_networks::{OF_NAMESPACE, is_made, of_namespace};

const KIND: &str = "MultiNetworkPolicy";

/// One for these definitions.
pub(crate) fn policy(name: &str, of: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": KIND,
        "metadata": {
            "namespace": TESTS, "name": name, "uid": format!("uid-of-{name}"),
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": of },
        },
        "spec": spec,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_enforced_on_the_networks_that_it_is_for_and_on_no_other() {
    let (network, mut controller) = Network::start(&[]);
    let agents = network.start_agents();
    let server = &network.server;
    server.apply(namespace(TESTS, json!({})));
    for name in ["blue", "red"] {
        let subnets = json!({ "subnets": "10.1.0.0/24" });
        server.apply(definition(name, name, &subnets));
    }
    let pods = [("web", 0), ("near", 0), ("far", 1)];
    let on = |of: &'static str| {
        pods.map(|(name, node)| {
            let (pod, address) = attached(&network, node, &format!("{of}-{name}"), of);
            network.label(&pod, name);
            (pod, address)
        })
    };
    let [(web, address), (near, _), (far, _)] = on("blue");
    let [(red_web, red_address), (red_near, _), (red_far, _)] = on("red");
    assert_eq!(address, red_address);
    let named = [
        Named::start(web.place(), address, "web"),
        Named::start(red_web.place(), red_address, "red-web"),
    ];
    let to_web = SocketAddr::new(address, 8080);
    let clients = [&near, &far, &red_near, &red_far];
    for client in clients {
        await_reach(client.place(), to_web, true);
    }
    // What a NetworkPolicy says is for the default network.
    let deny = json!({ "podSelector": labelled("web") });
    server.apply(crate::policies::policy(TESTS, "deny", deny.clone()));
    let from_near = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("near") }] },
    ] });
    server.apply(policy("some", "default/blue", &from_near));
    await_reach(far.place(), to_web, false);
    for client in [&near, &red_near, &red_far] {
        assert!(connects(client.place(), to_web), "{}", client.name);
    }
    // Labels, and the networks that it is for, change.
    network.label(&near, "other");
    await_reach(near.place(), to_web, false);
    network.label(&near, "near");
    await_reach(near.place(), to_web, true);
    server.apply(policy("some", "default/blue, default/red", &from_near));
    await_reach(red_far.place(), to_web, false);
    assert!(connects(red_near.place(), to_web) && !connects(far.place(), to_web));
    let out = json!({ "podSelector": labelled("near"), "policyTypes": ["Egress"], "egress": [] });
    server.apply(policy("out", "default/blue", &out));
    await_reach(near.place(), to_web, false);
    assert_eq!(ask(red_near.place(), to_web).as_deref(), Ok("red-web"));
    server.delete_object(KIND, TESTS, "out");
    await_reach(near.place(), to_web, true);

    // A definition that is deleted takes no policy from the pods that stay; nor does a successor.
    server.delete_object("NetworkAttachmentDefinition", "default", "blue");
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&network.central, server, &[]);
    let done = controller.idle().await;
    assert_eq!(done.operations, 0);
    network.central.sync();
    assert!(!connects(far.place(), to_web) && connects(near.place(), to_web));

    server.delete_object(KIND, TESTS, "some");
    for client in clients {
        await_reach(client.place(), to_web, true);
    }
    controller.idle().await;
    let acls = names(&network.central, "ACL");
    assert!(!acls.iter().any(|it| it.contains(":some:")), "{acls:?}");
    traffic::tcp_echo(far.place(), near.place(), "10.1.0.2".parse().unwrap(), 16).unwrap();
    drop((named, agents));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_policy_has_no_effect_is_said_by_an_event() {
    let (central, server, controller) = populated().await;
    let subnets = json!({ "subnets": "10.1.0.0/24" });
    server.apply(definition("blue", "blue", &subnets));
    await_row(&central, "Logical_Switch", "blue_ovn_layer2_switch", true);
    server.apply(primary::labelled("shop"));
    server.apply(of_namespace("own", &primary("10.2.0.0/24")));
    is_made(&server, (OF_NAMESPACE, "shop", "own"));
    let spec = json!({ "podSelector": {}, "ingress": [{ "from": [{}] }] });
    for (name, of, part) in [
        ("nowhere", "", "names no NetworkAttachmentDefinition"),
        (
            "odd",
            "a/b/c",
            "\"a/b/c\" is neither NAME nor NAMESPACE/NAME",
        ),
        (
            "absent",
            "green",
            "tests/green: there is no NetworkAttachmentDefinition",
        ),
        (
            "primary",
            "shop/own",
            "shop/own: its network is a primary one",
        ),
        (
            "rule",
            "default/blue",
            "spec.ingress[0].from[0]: none of podSelector",
        ),
    ] {
        server.apply(policy(name, of, &spec));
        await_event(&server, KIND, name, part);
    }
    // Mistakes of rules close, as those of NetworkPolicies do.
    await_row(&central, "ACL", "NP:tests:rule:Ingress", true);
    // One that comes later is noticed.
    server.apply(policy(
        "later",
        "default/red",
        &json!({ "podSelector": {} }),
    ));
    await_event(&server, KIND, "later", "default/red: there is no Network");
    server.apply(definition("red", "red", &subnets));
    await_row(&central, "ACL", "NP:tests:later:Ingress", true);
    controller.stop().await.unwrap();
}

/// Has the northbound database tiers, as OVN's has from 23.06 on.
fn give_tiers(central: &Central) {
    let text = std::fs::read_to_string("/usr/share/ovn/ovn-nb.ovsschema").unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    let tier = json!({ "key": { "type": "integer", "minInteger": 0, "maxInteger": 3 } });
    schema["tables"]["ACL"]["columns"]["tier"] = json!({ "type": tier });
    let file = "/run/ovn/tiers.ovsschema";
    std::fs::write(central.machine().path(file), schema.to_string()).unwrap();
    let convert = format!("convert {} {file}", central.local_northbound());
    central.machine().run("ovsdb-client", convert);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_has_the_policies_of_the_cluster_while_it_is_a_primary_one() {
    let (central, server) = (Central::start(), ApiServer::start());
    give_tiers(&central);
    populate(&server);
    server.apply(primary::labelled("shop"));
    server.apply(policy("some", "shop/red", &json!({ "podSelector": {} })));
    let of_cluster = |name: &str, priority: u8| {
        let rules = json!([{ "action": "Deny", "from": [{ "namespaces": {} }] }]);
        let spec = json!({ "priority": priority, "ingress": rules });
        server.apply(tiered("AdminNetworkPolicy", name, &spec));
    };
    of_cluster("deny", 10);
    let mut controller = Running::start(&central, &server, &[]);
    let await_acl = |network: &str, policy: &str, is_there: bool| {
        let controller = format!("{network}-network-controller");
        let ids = json!([
            ["k8s.ovn.org/owner-controller", controller],
            ["k8s.ovn.org/name", policy],
        ]);
        let own = json!([["external_ids", "includes", ["map", ids]]]);
        let until = if is_there { "!=" } else { "==" };
        let northbound = central.northbound();
        let waited = northbound.wait("ACL", own, until, &["name"], json!([]));
        assert!(waited.is_ok(), "{policy} on {network}: {is_there}");
    };
    // Its condition is a change of it. When one that comes after that is known, nothing tells of it
    // any more.
    await_condition(&server, ("AdminNetworkPolicy", "deny"), "Applied");
    of_cluster("later", 11);
    await_acl("default", "later", true);
    for role in ["secondary", "primary", "secondary"] {
        server.apply(of_shop("red", role, "10.1.0.0/24"));
        let is_primary = role == "primary";
        await_acl("red", "tests:some", !is_primary);
        await_acl("red", "deny", is_primary);
    }
    controller.idle().await;
    controller.stop().await.unwrap();
}
