use super::*;

fn of_cluster(network: Value) -> UserNetwork {
    let object = json!({
        "metadata": { "name": "blue", "uid": "u", "resourceVersion": "7" },
        "spec": { "namespaceSelector": { "matchLabels": { "team": "a" } }, "network": network },
    });
    UserNetwork::of_cluster(&serde_json::from_value(object).unwrap())
}

fn of_namespace(spec: Value) -> UserNetwork {
    let object = json!({
        "metadata": { "name": "blue", "namespace": "shop", "uid": "u" }, "spec": spec,
    });
    UserNetwork::of_namespace(&serde_json::from_value(object).unwrap())
}

fn layer2(more: Value) -> Value {
    let mut config = json!({ "role": "Secondary", "subnets": ["10.1.0.0/16"] });
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "topology": "Layer2", "layer2": config })
}

fn localnet(more: Value) -> Value {
    let mut spec = layer2(more);
    spec["topology"] = "Localnet".into();
    spec["localnet"] = spec["layer2"].take();
    spec
}

fn id() -> ObjectName {
    ("shop".into(), "blue".into())
}

#[test]
fn a_user_s_network_is_a_definition_s_configuration() {
    let dual = json!({ "subnets": ["10.1.0.0/16", "fd00:1::/64"], "mtu": 1300 });
    let spec = of_namespace(layer2(dual)).spec.unwrap();
    let expected = json!({
        "cniVersion": "1.0.0", "type": "podwire-cni", "name": "shop_blue",
        "netAttachDefName": "shop/blue", "topology": "layer2", "role": "secondary",
        "subnets": "10.1.0.0/16,fd00:1::/64", "mtu": 1300,
    });
    assert_eq!(spec.config(&id()), expected);
    assert_eq!(spec.namespaces, None);
    let bare = json!({ "subnets": null, "ipam": { "mode": "Disabled" } });
    let spec = of_namespace(layer2(bare)).spec.unwrap();
    assert_eq!(spec.config(&id())["subnets"], Value::Null);
    let physical = json!({
        "physicalNetworkName": "physnet", "excludeSubnets": ["10.1.0.0/24", "10.1.9.0/24"],
        "vlan": { "mode": "Access", "access": { "id": 100 } },
    });
    let spec = of_cluster(localnet(physical)).spec.unwrap();
    let config = spec.config(&id());
    assert_eq!(config["name"], "cluster_udn_blue");
    assert_eq!(config["topology"], "localnet");
    assert_eq!(config["vlanID"], 100);
    assert_eq!(config["physicalNetworkName"], "physnet");
    assert_eq!(config["excludeSubnets"], "10.1.0.0/24,10.1.9.0/24");
    let key = Key::object(Of::UserNetwork, id());
    let definition = |change: fn(&mut Value)| {
        let mut object = spec.definition(&id(), &key, "u");
        object["metadata"]["resourceVersion"] = "9".into();
        change(&mut object);
        object
    };
    let stored = |object: Value| Stored::of(&serde_json::from_value(object).unwrap());
    let resource = json!({ "k8s.v1.cni.cncf.io/resourceName": "network.podwire.io/physnet" });
    let made = definition(|_| {});
    assert_eq!(made["metadata"]["annotations"], resource);
    assert_eq!(spec.changes(&id(), &stored(made)), None);
    let earlier = definition(|it| it["metadata"]["annotations"] = Value::Null);
    let patch = spec.changes(&id(), &stored(earlier)).unwrap();
    assert_eq!(patch["metadata"]["annotations"], resource);
    assert_eq!(patch["spec"], Value::Null);
    let team = |name: &str| [("team".to_owned(), name.to_owned())].into();
    let selector = spec.namespaces.unwrap();
    assert!(selector.matches(&team("a")) && !selector.matches(&team("b")));
}

fn layer3(more: Value) -> Value {
    let mut own = json!({ "role": "Secondary", "subnets": [{ "cidr": "10.1.0.0/16" }] });
    own.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "topology": "Layer3", "layer3": own })
}

#[test]
fn a_layer_3_network_says_which_parts_nodes_get() {
    let subnets = json!([{ "cidr": "10.1.0.0/16", "hostSubnet": 23 }, { "cidr": "fd01::/48" }]);
    let network = layer3(json!({ "subnets": subnets, "mtu": 1300 }));
    let spec = of_namespace(network).spec.unwrap();
    let config = spec.config(&id());
    assert_eq!(config["topology"], "layer3");
    assert_eq!(config["subnets"], "10.1.0.0/16/23,fd01::/48");
    assert_eq!(
        (&config["role"], &config["mtu"]),
        (&json!("secondary"), &json!(1300))
    );
}

#[test]
fn a_mistake_is_named_by_the_field_of_the_user_s_object() {
    let physical = |mut more: Value| {
        more["physicalNetworkName"] = "physnet".into();
        localnet(more)
    };
    for (network, field, part) in [
        (
            json!({ "topology": "ring" }),
            "topology",
            "\"ring\" is none of",
        ),
        (json!({ "topology": "Layer3" }), "layer3", "needs it"),
        (
            layer3(json!({ "subnets": [{ "cidr": "10.1.0.0/24", "hostSubnet": 16 }] })),
            "layer3.subnets",
            "no room for nodes' parts",
        ),
        (
            layer3(json!({ "joinSubnets": ["100.65.0.0/16"] })),
            "layer3.joinSubnets",
            "only a primary network",
        ),
        (json!({ "topology": "Layer2" }), "layer2", "needs it"),
        (
            physical(json!({ "role": "Primary" })),
            "localnet.role",
            "use Layer2",
        ),
        (layer2(json!({ "role": "" })), "layer2.role", "neither"),
        (
            layer2(json!({ "subnets": ["10.1.0.1/16"] })),
            "layer2.subnets",
            "10.1.0.0/16 is one",
        ),
        (
            layer2(json!({ "subnets": [] })),
            "layer2.subnets",
            "ipam.mode is Disabled",
        ),
        (
            layer2(json!({ "ipam": { "mode": "Disabled" } })),
            "layer2.subnets",
            "can't be given",
        ),
        (
            layer2(json!({ "ipam": { "mode": "x" } })),
            "layer2.ipam.mode",
            "\"x\" is neither",
        ),
        (
            layer2(json!({ "ipam": { "lifecycle": "Persistent" } })),
            "layer2.ipam.lifecycle",
            "Persistent is not implemented",
        ),
        (
            layer2(json!({ "mtu": 20 })),
            "layer2.mtu",
            "20 is no number from 576",
        ),
        (
            layer2(json!({ "joinSubnets": ["10.2.0.0/24"] })),
            "layer2.joinSubnets",
            "primary",
        ),
        (
            layer2(json!({ "role": "Primary", "reservedSubnets": ["10.1.0.0/28"] })),
            "layer2.reservedSubnets",
            "not implemented",
        ),
        (
            localnet(json!({})),
            "localnet.physicalNetworkName",
            "missing",
        ),
        (
            physical(json!({ "vlan": { "mode": "Access", "access": { "id": 4095 } } })),
            "localnet.vlan.access.id",
            "4095 is no number",
        ),
        (
            physical(json!({ "vlan": { "mode": "Trunk" } })),
            "localnet.vlan",
            "\"Trunk\"",
        ),
        (
            physical(json!({ "excludeSubnets": ["10.9.0.0/24"] })),
            "localnet.excludeSubnets",
            "no part of",
        ),
    ] {
        let problem = of_cluster(network.clone()).spec.unwrap_err();
        let expected = format!("spec.network.{field}: ");
        assert!(problem.starts_with(&expected), "{network}: {problem}");
        assert!(problem.contains(part), "{network}: {problem}");
    }
    let problem = of_namespace(localnet(json!({}))).spec.unwrap_err();
    assert!(
        problem.starts_with("spec.topology: only a Cluster"),
        "{problem}"
    );
    let problem = of_namespace(json!({ "topology": 7 })).spec.unwrap_err();
    assert!(problem.starts_with("spec: invalid type"), "{problem}");
    let object = json!({ "metadata": { "name": "blue" }, "spec": { "network": {} } });
    let network = UserNetwork::of_cluster(&serde_json::from_value(object).unwrap());
    assert!(
        network
            .spec
            .unwrap_err()
            .starts_with("spec.namespaceSelector: it is missing")
    );
}

#[test]
fn conditions_of_others_stay_and_a_time_changes_with_its_status_alone() {
    let theirs = json!({ "type": "Theirs", "status": "True", "lastTransitionTime": "t0" });
    let own = json!({
        "type": CREATED, "status": "False", "reason": "SyncError", "message": "m",
        "lastTransitionTime": "t1",
    });
    let network = UserNetwork {
        conditions: vec![theirs.clone(), own],
        ..of_namespace(layer2(json!({})))
    };
    let wanted = |holds, message: &str| {
        let (reason, message) = ("SyncError", message.to_owned());
        [Condition {
            name: CREATED,
            holds,
            reason,
            message,
        }]
    };
    assert_eq!(network.conditions(&wanted(false, "m")), None);
    let changed = network.conditions(&wanted(false, "other")).unwrap();
    assert_eq!(changed[0], theirs);
    assert_eq!(changed[1]["lastTransitionTime"], "t1");
    let changed = network.conditions(&wanted(true, "m")).unwrap();
    assert_eq!(changed[1]["lastTransitionTime"], Value::Null);
}

#[test]
fn what_was_edited_of_a_definition_is_put_back_and_nothing_else() {
    let network = of_namespace(layer2(json!({})));
    let spec = network.spec.unwrap();
    let key = Key::object(Of::UserNetwork, id());
    let stored = |change: fn(&mut Value)| {
        let mut object = spec.definition(&id(), &key, "u");
        object["metadata"]["uid"] = "d".into();
        object["metadata"]["resourceVersion"] = "9".into();
        change(&mut object);
        Stored::of(&serde_json::from_value(object).unwrap())
    };
    let made = stored(|_| {});
    assert_eq!(
        made.owner,
        Some(Owner {
            key: key.clone(),
            uid: "u".into()
        })
    );
    assert_eq!(spec.changes(&id(), &made), None);
    let edited = stored(|it| it["spec"]["config"] = "{}".into());
    let patch = spec.changes(&id(), &edited).unwrap();
    assert_eq!(
        patch["metadata"],
        json!({ "uid": "d", "resourceVersion": "9" })
    );
    assert!(
        patch["spec"]["config"]
            .as_str()
            .unwrap()
            .contains("10.1.0.0/16")
    );
    let stripped = stored(|it| {
        it["metadata"]["labels"] = json!({ "theirs": "x" });
        it["metadata"]["finalizers"] = json!(["theirs"]);
    });
    let patch = spec.changes(&id(), &stripped).unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({ LABEL: "" }));
    assert_eq!(
        patch["metadata"]["finalizers"],
        json!(["theirs", FINALIZER])
    );
    assert_eq!(patch["spec"], Value::Null);
    let unkept = stored(|it| it["metadata"]["finalizers"] = json!(null));
    let patch = spec.changes(&id(), &unkept).unwrap();
    assert_eq!(patch["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(patch["metadata"]["labels"], Value::Null);
    let foreign = stored(|it| it["metadata"]["ownerReferences"] = json!([]));
    assert_eq!(foreign.owner, None);
    let released = stripped.release();
    assert_eq!(released["metadata"]["finalizers"], json!(["theirs"]));
}
