use podwire_cluster::api;
use serde_json::json;

use super::*;

fn definition(config: Value) -> Option<Definition> {
    let object = json!({
        "metadata": { "name": "blue", "namespace": "ns", "uid": "u" },
        "spec": { "config": config.to_string() },
    });
    let object: api::NetworkAttachmentDefinition = serde_json::from_value(object).unwrap();
    Definition::of(&object)
}

fn config(more: Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "tenant-blue", "type": "ovn-k8s-cni-overlay",
        "netAttachDefName": "ns/blue", "topology": "layer2",
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn what_a_network_is_comes_from_its_configuration() {
    let network = |more| definition(config(more)).unwrap().network.unwrap();
    let (name, shape) = network(json!({
        "subnets": "fd00:1::/64, 10.1.0.0/16", "excludeSubnets": "10.1.0.0/24", "mtu": 1300,
    }));
    assert_eq!(name, Network::named("tenant-blue"));
    let texts: Vec<_> = shape.subnets.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.1.0.0/16", "fd00:1::/64"]);
    assert_eq!((shape.mtu, shape.vlan), (Some(1300), None));
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
    let physical = json!({
        "topology": "localnet", "vlanID": 100, "physicalNetworkName": "physnet", "mtu": 0,
    });
    let (_, shape) = network(physical);
    assert_eq!((shape.vlan, shape.mtu), (Some(100), None));
    let mut chained = config(json!({}));
    let name = chained.as_object_mut().unwrap().remove("name").unwrap();
    let chained = json!({ "name": name, "plugins": [{ "type": "tuning" }, chained] });
    assert!(definition(chained).unwrap().network.is_ok());
}

#[test]
fn a_layer_3_network_is_divided_among_nodes_as_it_says_or_as_usual() {
    let network = |subnets: &str| {
        let more = json!({ "topology": "layer3", "subnets": subnets });
        definition(config(more)).unwrap().network.unwrap().1
    };
    let shape = network("fd00:1::/48, 10.1.0.0/16/23");
    let parts: Vec<_> = shape.divided().iter().map(ToString::to_string).collect();
    assert_eq!(parts, ["10.1.0.0/16/23", "fd00:1::/48/64"]);
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
    assert_eq!(super::shape(&shape.config()).unwrap(), shape);
    // Another size of parts is another network; one more family is not.
    assert_eq!(
        shape.fixed(&network("fd00:1::/48,10.1.0.0/16/24")),
        ["subnets"]
    );
    let v4 = network("10.1.0.0/16/23");
    assert!(v4.fixed(&shape).is_empty());
    assert_eq!(v4.differing(&shape), ["subnets"]);
}

#[test]
fn definitions_of_other_plugins_and_of_the_default_network_are_none() {
    for other in [json!({ "type": "macvlan" }), json!({ "topology": null })] {
        assert_eq!(definition(config(other)), None);
    }
    assert_eq!(definition(json!("")), definition(json!({})));
}

#[test]
fn a_mistake_is_named_by_its_field() {
    let many = ["10.1.0.0/28"; 257].join(",");
    for (more, field, part) in [
        (
            json!({ "name": "default" }),
            "name",
            "the network of all pods",
        ),
        (json!({ "name": "a b" }), "name", "other characters"),
        (
            json!({ "netAttachDefName": "ns/red" }),
            "netAttachDefName",
            "\"ns/blue\"",
        ),
        (json!({ "topology": "layer4" }), "topology", "is none of"),
        (
            json!({ "topology": "layer3" }),
            "subnets",
            "nodes need parts of it",
        ),
        (
            json!({ "topology": "layer3", "subnets": "10.1.0.0/16/30" }),
            "subnets",
            "no room for nodes' parts",
        ),
        (
            json!({ "topology": "layer3", "subnets": "10.1.0.0/25" }),
            "subnets",
            "no room for nodes' parts",
        ),
        (
            json!({ "topology": "layer3", "subnets": "10.1.0.1/16/24" }),
            "subnets",
            "10.1.0.0/16 is one",
        ),
        (
            json!({ "topology": "layer2", "subnets": "10.1.0.0/16/24" }),
            "subnets",
            "is no network",
        ),
        (
            json!({
                "topology": "layer3", "subnets": "10.1.0.0/16", "excludeSubnets": "10.1.0.0/24",
            }),
            "excludeSubnets",
            "leave it out",
        ),
        (json!({ "topology": 2 }), "topology", "is no text"),
        (
            json!({ "ipam": { "type": "dhcp" } }),
            "ipam",
            "leave it out",
        ),
        (
            json!({ "reservedSubnets": "10.1.0.0/28" }),
            "reservedSubnets",
            "not implemented",
        ),
        (
            json!({ "allowPersistentIPs": true }),
            "allowPersistentIPs",
            "not implemented",
        ),
        (
            json!({ "role": "primary", "topology": "localnet" }),
            "role",
            "can't be primary",
        ),
        (
            json!({ "role": "primary", "subnets": "" }),
            "subnets",
            "a primary network needs addresses",
        ),
        (
            json!({ "subnets": "10.1.0.1/16" }),
            "subnets",
            "10.1.0.0/16 is one",
        ),
        (
            json!({ "subnets": "10.1.0.0/33" }),
            "subnets",
            "is no network",
        ),
        (
            json!({ "subnets": "10.1.0.0/16,10.2.0.0/16" }),
            "subnets",
            "of one family",
        ),
        (json!({ "subnets": "10.1.0.0/31" }), "subnets", "no room"),
        (
            json!({ "subnets": "10.1.0.0/16", "excludeSubnets": many }),
            "excludeSubnets",
            "257 networks are too many, 256 at most",
        ),
        (json!({ "subnets": many }), "subnets", "257 networks"),
        (
            json!({ "excludeSubnets": "10.1.0.0/24" }),
            "excludeSubnets",
            "no part of",
        ),
        (
            json!({ "mtu": 20 }),
            "mtu",
            "20 is no number from 576 to 65535",
        ),
        (json!({ "mtu": "1400" }), "mtu", "is no number"),
        (
            json!({ "vlanID": 7 }),
            "vlanID",
            "only a network of the topology localnet",
        ),
        (
            json!({ "topology": "localnet", "vlanID": 4095 }),
            "vlanID",
            "4095 is no number from 1 to 4094",
        ),
        (
            json!({ "topology": "localnet", "physicalNetworkName": "a:b" }),
            "physicalNetworkName",
            "ovn-bridge-mappings",
        ),
    ] {
        let problem = definition(config(more.clone()))
            .unwrap()
            .network
            .unwrap_err();
        let expected = format!("{field} of its spec.config: ");
        assert!(problem.starts_with(&expected), "{more}: {problem}");
        assert!(problem.contains(part), "{more}: {problem}");
    }
}

#[test]
fn networks_are_asked_for_in_both_forms_and_several_times() {
    let entries = |text: &str| {
        let read = Selections::of(Some(text), "own");
        let all: Vec<_> = read.all.iter().map(|it| it.entry.to_string()).collect();
        (all.join(" "), read.problem)
    };
    let short = entries("blue, ns/red@net7,blue@net2,ns/red");
    assert_eq!(
        short,
        ("own/blue ns/red own/blue/1 ns/red/1".to_owned(), None)
    );
    let list = json!([
        { "name": "blue", "namespace": "ns", "ips": ["10.1.0.9/16", "fd00::9"],
          "mac": "02:00:00:00:00:09", "default-route": ["10.1.0.1"] },
        { "name": "blue", "ips": ["x"] },
    ]);
    let read = Selections::of(Some(&list.to_string()), "own");
    let wanted = Request::parse(Some("10.1.0.9,fd00::9"), Some("02:00:00:00:00:09"));
    assert_eq!(read.all[0].request, wanted);
    assert_eq!(read.all[0].gateways.len(), 1);
    let problem = read.all[1].request.as_ref().unwrap_err().to_string();
    assert!(
        problem.starts_with("the annotation k8s.v1.cni.cncf.io/networks"),
        "{problem}"
    );
    let many = ["a"; 65].join(",");
    assert!(
        entries(&many)
            .1
            .unwrap()
            .contains("65 networks are too many, 64 at most")
    );
    for wrong in [
        "[",
        "{}",
        "[{}]",
        "a/b/c",
        "blue,,red",
        r#"[{"name":"a","default-route":["x"]}]"#,
        r#"[{"name":"a","default-route":["10.1.0.1","fd00::1","10.1.0.2"]}]"#,
    ] {
        let (all, problem) = entries(wrong);
        assert!(all.is_empty() && problem.is_some(), "{wrong}");
    }
    assert_eq!(Selections::of(Some(" "), "own"), Selections::default());
}
