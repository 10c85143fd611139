//! Pods of a primary network leave as those of the default one do: by the gateway router, and
//! after a change of the mode by the host.

use podwire_tests::Pod;
use podwire_tests::apiserver::pod_on;

use super::*;

const NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// A pod of a namespace with a primary network, wired.
fn wired<'c>(cluster: &'c Cluster, namespace: &str) -> Pod<'c> {
    let Cluster { server, node, .. } = cluster;
    server.apply(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": namespace, "uid": format!("uid-of-{namespace}"),
            "labels": { "k8s.ovn.org/primary-user-defined-network": "" },
        },
    }));
    let config = json!({
        "cniVersion": "1.0.0", "type": "podwire-cni", "name": namespace, "topology": "layer2",
        "netAttachDefName": format!("{namespace}/own"), "role": "primary",
        "subnets": "10.1.0.0/24,fd01::/64",
    });
    server.apply(json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "namespace": namespace, "name": "own", "uid": format!("uid-of-{namespace}-own"),
        },
        "spec": { "config": config.to_string() },
    }));
    let mut pod = node.pod(namespace);
    namespace.clone_into(&mut pod.namespace);
    server.apply(pod_on("node-a", &pod, json!({})));
    let written = |pod: &Value| {
        pod["metadata"]["annotations"][NETWORKS]
            .as_str()
            .map(str::to_owned)
    };
    let object = server.await_object(("Pod", namespace, namespace), |it| written(it).is_some());
    let all: Value = serde_json::from_str(&written(&object).unwrap()).unwrap();
    assert_eq!(all[format!("{namespace}/own")]["role"], "primary");
    let pod = pod.annotate(NETWORKS, &all);
    pod.add().success();
    cluster
        .central
        .await_up(&format!("{namespace}.own_{namespace}_{namespace}"), true);
    pod
}

#[test]
fn pods_of_primary_networks_leave_with_the_address_of_their_node_by_router_and_by_host() {
    let cluster = start();
    let (run, agent) = cluster.share();
    // With one address.
    let pods = ["shop", "bank"].map(|it| wired(&cluster, it));
    cluster.central.sync();
    for pod in &pods {
        cluster.assert_all_reached(pod.place());
    }
    assert!(packets_of_router(&cluster.node) > 100);
    assert!(run.stop().success());
    let run = cluster.run("routed");
    cluster.await_router(false);
    for pod in &pods {
        cluster.assert_all_reached(pod.place());
    }
    assert_eq!(packets_of_router(&cluster.node), 0);
    assert!(run.stop().success());
    drop(agent);
}
