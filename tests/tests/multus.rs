//! The calls of Multus, as its thin plugin 4.0.2 was seen to make them below containerd and
//! kubelet: a delegate for each network, every variable of CNI_ARGS twice, a requested MAC, the
//! default route moved by Multus itself, and each DEL again without namespace and prevResult.

use podwire_tests::{AgentOptions, PluginRun, Pod, TestNode, links};
use serde_json::{Value, json};

/// What Multus passes for a delegate: the fields of its definition, and of the request.
struct Delegate {
    ifname: &'static str,
    conf: Value,
    mac: Option<&'static str>,
}

fn delegates() -> [Delegate; 3] {
    let of = |name: &str| {
        json!({
            "capabilities": {"ips": true, "mac": true},
            "cniVersion": "0.4.0", "name": name, "type": "podwire-cni",
        })
    };
    let mac = "0a:58:0a:ba:00:99";
    let mut green = of("green");
    green["runtimeConfig"] = json!({ "mac": mac });
    [
        ("eth0", of("podwire"), None),
        ("net1", of("blue"), None),
        ("green0", green, Some(mac)),
    ]
    .map(|(ifname, conf, mac)| Delegate { ifname, conf, mac })
}

fn call(pod: &Pod<'_>, verb: &str, delegate: &Delegate, prev: Option<&Value>) -> PluginRun {
    let mut conf = delegate.conf.clone();
    if let Some(prev) = prev {
        conf["prevResult"] = prev.clone();
    }
    let of_pod = format!(
        "K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        pod.namespace, pod.name, pod.container, pod.uid
    );
    let mut arguments = format!("IgnoreUnknown=true;{of_pod};IgnoreUnknown=1;{of_pod}");
    if let Some(mac) = delegate.mac {
        arguments.push_str(&format!(";MAC={mac}"));
    }
    let variables = [
        ("CNI_IFNAME", Some(delegate.ifname)),
        ("CNI_ARGS", Some(arguments.as_str())),
        (
            "CNI_NETNS",
            (verb != "DEL" || prev.is_some()).then_some(pod.netns.as_str()),
        ),
    ];
    pod.exec_with(verb, conf.to_string().as_bytes(), &variables)
}

#[test]
fn two_networks_of_multus_and_a_default_route_that_it_moves_are_added_checked_and_removed() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("two");
    let mut results: Vec<Value> = delegates()
        .iter()
        .map(|delegate| call(&pod, "ADD", delegate, None).success())
        .collect();
    assert_eq!(results[2]["interfaces"][1]["mac"], "0a:58:0a:ba:00:99");

    // As "default-route" has it: it removes each default route, and keeps in its cache of the
    // first result the one of the family that it doesn't set.
    for family in ["-4", "-6"] {
        pod.run("ip", format!("{family} route delete default"));
    }
    pod.run("ip", "route add default via 10.186.0.1 dev green0");
    let kept = results[0]["routes"].as_array_mut().unwrap();
    kept.retain(|route| route["dst"] != "0.0.0.0/0");
    results[2]["routes"] = json!([{"dst": "0.0.0.0/0", "gw": "10.186.0.1"}]);
    assert_eq!(links::default_routes(pod.place()), ["green0"]);
    for (delegate, result) in delegates().iter().zip(&results) {
        call(&pod, "CHECK", delegate, Some(result)).success();
    }
    let checked = node.podwire("check");
    assert_eq!(checked.status.code(), Some(0), "{}", checked.stdout);

    for round in 0..2 {
        for (delegate, result) in delegates().iter().zip(&results).rev() {
            let prev = (round == 0).then_some(result);
            call(&pod, "DEL", delegate, prev).success();
        }
    }
    node.leftovers().assert_none();
}
