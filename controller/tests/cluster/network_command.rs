//! `podwire-controller network`.

use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use podwire_tests::schema::assert_valid;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, column, flags, names, pod_of, populate, populated};
use crate::networks::{ASKED, await_event};
use crate::user_networks::{
    OF_CLUSTER, OF_NAMESPACE, is_made, layer2, namespace, of_namespace, of_team,
};

/// Runs a command; its exit code, and what it says.
fn network(central: &Central, server: &ApiServer, line: &str) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
    command
        .args(flags(central, server))
        .arg("network")
        .args(line.split(' '));
    run(command)
}

fn run(mut command: std::process::Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    // With a problem that is shown, the answer is there too.
    let text = match output.stdout.is_empty() {
        false => output.stdout,
        true => output.stderr,
    };
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn config(server: &ApiServer, name: &str) -> Value {
    let object = server
        .object("NetworkAttachmentDefinition", "shop", name)
        .unwrap();
    serde_json::from_str(object["spec"]["config"].as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_are_made_shown_changed_and_removed_with_their_refusals() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let run = |line: &str| network(&central, &server, line);

    let made = "create shop/blue --subnets 10.1.0.0/24 --exclude 10.1.0.0/30 --mtu 1300";
    assert_eq!(
        run(made),
        (
            Some(0),
            "created shop/blue of network shop-blue\n".to_owned()
        )
    );
    let switch = "shop.blue_ovn_layer2_switch";
    await_row(&central, "Logical_Switch", switch, true);
    let (code, text) = run(made);
    assert!(code == Some(1) && text.contains("already exists"), "{text}");
    assert!(!text.contains("Status"), "{text}");
    // Another definition of a known network must say the same of it.
    let (code, text) = run("create shop/more --network shop-blue --subnets 10.2.0.0/24");
    let why = "network shop-blue exists with other excludeSubnets, mtu, subnets";
    assert!(code == Some(1) && text.contains(why), "{text}");
    for (line, field) in [
        (
            "create shop/bad --subnets 10.1.0.1/24",
            "subnets of its spec.config: 10.1.0.1/24 has bits",
        ),
        (
            "create shop/bad --vlan 7",
            "vlanID of its spec.config: only a network of the topology",
        ),
        (
            "create shop/bad --mtu 100",
            "mtu of its spec.config: 100 is no number from 576",
        ),
    ] {
        let (code, text) = run(line);
        assert!(code == Some(2) && text.contains(field), "{line}: {text}");
    }
    // And what the leader would refuse.
    for (line, why) in [
        (
            "create shop/bad --network shop.blue",
            "shop.blue and shop-blue would have rows of the same names",
        ),
        (
            "create shop/bad --subnets 10.244.7.0/24",
            "overlaps with 10.244.0.0/16 (--cluster-subnets)",
        ),
        (
            "update shop/blue --subnets 10.96.0.0/24 --exclude 10.96.0.0/30",
            "overlaps with 10.96.0.10/32 (the cluster IPs of services)",
        ),
    ] {
        let (code, text) = run(line);
        assert!(code == Some(1) && text.contains(why), "{line}: {text}");
    }
    assert_eq!(config(&server, "blue")["subnets"], "10.1.0.0/24");
    assert_eq!(
        server.object("NetworkAttachmentDefinition", "shop", "bad"),
        None
    );

    let mut pod = pod_of("node-a", "asking");
    pod["metadata"]["annotations"][ASKED] = "shop/blue".into();
    server.apply(pod);
    let port = "shop.blue_default_asking";
    await_row(&central, "Logical_Switch_Port", port, true);
    let (code, text) = run("get shop-blue");
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "topology    layer2\n",
        "excluded    10.1.0.0/30\n",
        "definition  shop/blue\n",
        &format!(
            "attachment  default/asking as shop/blue: Logical_Switch_Port {port} on {switch}: "
        ),
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let (_, listed) = run("list -o json");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_valid("controllerNetworks", &listed);
    assert_eq!(listed[0]["network"], "shop-blue");
    assert_eq!(listed[0]["attachments"].as_array().unwrap().len(), 1);

    let (code, text) = run("update shop/blue --subnets 10.9.0.0/24 --exclude 10.9.0.0/30");
    let why = "subnets of network shop-blue can't change while pods are on it: default/asking";
    assert!(code == Some(1) && text.contains(why), "{text}");
    assert_eq!(config(&server, "blue")["subnets"], "10.1.0.0/24");
    let done = |line: &str| {
        let (code, text) = run(&format!("{line} -o json"));
        assert_eq!(code, Some(0), "{line}: {text}");
        let done: Value = serde_json::from_str(&text).unwrap();
        assert_valid("controllerNetworkDone", &done);
        done
    };
    let expected = |change: &str| {
        let [definition, network] = ["shop/blue", "shop-blue"];
        json!({ "change": change, "definition": definition, "network": network })
    };
    assert_eq!(done("update shop/blue --mtu 1200"), expected("updated"));
    assert_eq!(done("create shop/other")["change"], "created");
    assert_eq!(done("delete shop/other")["network"], "shop-other");
    assert_eq!(config(&server, "blue")["mtu"], json!(1200));
    assert_eq!(config(&server, "blue")["excludeSubnets"], "10.1.0.0/30");
    let (code, text) = run("delete shop/blue");
    assert!(code == Some(1) && text.contains("default/asking"), "{text}");
    server.delete("default", "asking");
    await_row(&central, "Logical_Switch_Port", port, false);
    assert_eq!(
        run("delete shop/blue"),
        (Some(0), "deleted shop/blue\n".to_owned())
    );
    await_row(&central, "Logical_Switch", switch, false);
    let (code, text) = run("get shop-blue");
    assert!(
        code == Some(4) && text.contains("there is no network shop-blue"),
        "{text}"
    );
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_3_network_is_made_shown_and_changed_by_the_parts_that_nodes_get() {
    let (central, server, controller) = populated().await;
    let run = |line: &str| network(&central, &server, line);
    let made = "create shop/blue --topology layer3 --subnets 10.1.0.0/16/24,fd01::/48";
    let (code, text) = run(made);
    assert_eq!(code, Some(0), "{text}");
    await_row(
        &central,
        "Logical_Router",
        "shop.blue_ovn_cluster_router",
        true,
    );
    let mut pod = pod_of("node-b", "asking");
    pod["metadata"]["annotations"][ASKED] = "shop/blue".into();
    server.apply(pod);
    let port = "shop.blue_default_asking";
    await_row(&central, "Logical_Switch_Port", port, true);
    let (code, text) = run("get shop-blue");
    let of_pod = format!("Logical_Switch_Port {port} on shop.blue_node-b: ");
    let lines = [
        "topology    layer3\n",
        "subnets     10.1.0.0/16/24, fd01::/48/64\n",
        &of_pod,
    ];
    for line in lines {
        assert!(code == Some(0) && text.contains(line), "{line} in {text}");
    }
    let (_, listed) = run("list -o json");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_valid("controllerNetworks", &listed);
    let (code, text) = run("update shop/blue --subnets 10.1.0.0/16/25,fd01::/48");
    let why = "subnets of network shop-blue can't change while pods are on it: default/asking";
    assert!(code == Some(1) && text.contains(why), "{text}");
    for (line, why) in [
        (
            "create shop/bad --topology layer3",
            "subnets of its spec.config: it is missing",
        ),
        (
            "create shop/bad --subnets 10.1.0.0/16/24",
            "subnets of its spec.config: \"10.1.0.0/16/24\" is no network",
        ),
        (
            "create shop/bad --topology layer3 --subnets 10.1.0.0/16/16/24",
            "expected a network, such as",
        ),
    ] {
        let (code, text) = run(line);
        assert!(code == Some(2) && text.contains(why), "{line}: {text}");
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_s_network_is_shown_with_its_object_and_changed_by_that_alone() {
    let (central, server, controller) = populated().await;
    server.apply(namespace("shop", "a"));
    server.apply(of_namespace("blue", &layer2("10.1.0.0/24")));
    server.apply(of_team("red", "a", &layer2("10.2.0.0/24")));
    server.apply(of_namespace("odd", &json!({ "topology": "Layer4" })));
    is_made(&server, (OF_NAMESPACE, "shop", "blue"));
    is_made(&server, (OF_CLUSTER, "", "red"));
    let run = |line: &str| network(&central, &server, line);
    let (code, text) = run("get shop_blue");
    let line = "definition  shop/blue of UserDefinedNetwork shop/blue\n";
    assert!(code == Some(0) && text.contains(line), "{text}");
    let (code, text) = run("list -o json");
    assert_eq!(code, Some(1), "{text}");
    let (_, text) = run("list -o yaml");
    let all: Value = serde_saphyr::from_str(&text).unwrap();
    assert_valid("controllerNetworks", &all);
    assert_eq!(all[0]["network"], "cluster_udn_red");
    assert_eq!(
        all[0]["definitions"][0]["from"],
        "ClusterUserDefinedNetwork red"
    );
    assert_eq!(all[2]["network"], "of UserDefinedNetwork shop/odd");
    let problem = all[2]["definitions"][0]["problem"].as_str().unwrap();
    assert!(
        problem.starts_with("spec.topology: \"Layer4\""),
        "{problem}"
    );
    for line in ["update shop/blue --mtu 1300", "delete shop/red"] {
        let (code, text) = run(line);
        let is_named = text.contains("is made for ") && text.contains("change or delete that");
        assert!(code == Some(1) && is_named, "{text}");
    }
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cluster_the_rows_themselves_are_made_shown_changed_and_removed() {
    let central = Central::start();
    let nb = central.local_northbound();
    let alone = |line: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
        command.args(["network", "--nb", &nb]).args(line.split(' '));
        run(command)
    };
    let create = "create blue --subnets 10.1.0.0/24,fd00:1::/64 --exclude 10.1.0.0/30 --mtu 1300";
    assert_eq!(
        alone(create),
        (Some(0), "created network blue\n".to_owned())
    );
    let (code, text) = alone("create bad --topology layer3 --subnets 10.9.0.0/16");
    let why = "topology: the nodes of a layer3 network are those of a cluster";
    assert!(code == Some(2) && text.contains(why), "{text}");
    let switch = "blue_ovn_layer2_switch";
    let config = column(&central, "Logical_Switch", switch, "other_config");
    let expected = json!({
        "subnet": "10.1.0.0/24", "exclude_ips": "10.1.0.0..10.1.0.3", "ipv6_prefix": "fd00:1::",
    });
    assert_eq!(config, expected);
    // The same again is there; another shape is not made of it.
    let again = (Some(0), "network blue is so already\n".to_owned());
    assert_eq!(alone(create), again);
    for (line, why) in [
        (
            "create blue --subnets 10.2.0.0/24",
            "network blue exists with other excludeSubnets, mtu",
        ),
        (
            "create bad --subnets 10.2.0.1/24",
            "subnets: 10.2.0.1/24 has bits beyond the prefix",
        ),
        ("create a/b@c", "name: \"a/b@c\" has other characters"),
        (
            "create bad --network x",
            "--network names the network of a definition",
        ),
        ("get red", "there is no network red"),
        ("update red --mtu 1400", "there is no network red"),
        ("delete red", "there is no network red"),
    ] {
        let (code, text) = alone(line);
        // No such object; a mistake in what was given; refused.
        let expected = match why {
            _ if why.starts_with("there is no") => 4,
            _ if why.contains(": ") || why.starts_with("--") => 2,
            _ => 1,
        };
        assert_eq!(code, Some(expected), "{line}: {text}");
        assert!(text.contains(why), "{line}: {text}");
    }
    central.nbctl("ls-add theirs_ovn_layer2_switch");
    let (code, text) = alone("create theirs");
    assert!(
        code == Some(1) && text.contains("does not belong to this controller"),
        "{text}"
    );
    let lan = "create lan --topology localnet --vlan 100 --physical-network physnet";
    assert_eq!(alone(lan).0, Some(0));
    let port = "lan_ovn_localnet_port";
    assert_eq!(
        column(&central, "Logical_Switch_Port", port, "tag_request"),
        100
    );

    // OVN itself gives ports their addresses.
    central.nbctl(format!("lsp-add {switch} web"));
    central.nbctl("lsp-set-addresses web dynamic");
    let given = |rows: &[Value]| {
        rows.iter().any(|row| {
            let given = row["dynamic_addresses"].as_str().unwrap_or_default();
            given.contains(" 10.1.0.4 ") && given.contains("fd00:1:")
        })
    };
    central.nbctl("--timeout=30 --wait=sb sync");
    let ports = central.northbound().rows("Logical_Switch_Port").unwrap();
    let ports: Vec<Value> = ports.into_iter().map(Value::Object).collect();
    assert!(given(&ports), "{ports:?}");
    let (code, text) = alone("get blue");
    assert!(
        code == Some(0) && text.contains("port        web (dynamic)\n"),
        "{text}"
    );
    // As a controller has those of a localnet network.
    let mac = "0a:58:0a:00:00:02";
    central.nbctl("lsp-add lan_ovn_localnet_switch pod");
    central.nbctl(["lsp-set-addresses", "pod", mac]);
    let secured = format!("{mac} 198.51.100.2 0.0.0.0");
    central.nbctl(["lsp-set-port-security", "pod", &secured]);
    let (_, text) = alone("get lan");
    let shown = format!("port        pod ({mac} 198.51.100.2)\n");
    assert!(text.contains(&shown), "{text}");
    central.nbctl("lsp-del pod");
    let (code, text) = alone("list -o json");
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_valid("controllerNetworks", &all);
    assert_eq!((code, &all[0]["network"]), (Some(0), &json!("blue")));
    assert_eq!(all[0]["shape"]["mtu"], 1300);
    // What would take a port's address is refused with its name, the rest is done.
    let (code, text) = alone("update blue --subnets 10.2.0.0/24 --exclude 10.2.0.0/30");
    let why = "subnets of network blue can't change while ports are on it: web (dynamic)";
    assert!(code == Some(1) && text.contains(why), "{text}");
    let update = "update blue --exclude 10.1.0.0/29";
    assert_eq!(
        alone(update),
        (Some(0), "updated network blue\n".to_owned())
    );
    let config = column(&central, "Logical_Switch", switch, "other_config");
    assert_eq!(config["exclude_ips"], "10.1.0.0..10.1.0.7");
    assert_eq!(alone(update).1, "network blue is so already\n");
    let (code, text) = alone("delete blue");
    assert!(
        code == Some(1) && text.contains("ports are on network blue: web"),
        "{text}"
    );
    central.nbctl("lsp-del web");
    assert_eq!(
        alone("delete blue"),
        (Some(0), "deleted network blue\n".to_owned())
    );
    assert_eq!(
        names(&central, "Logical_Switch"),
        ["lan_ovn_localnet_switch"]
    );

    // Where a controller leads, these rows are its own.
    let server = ApiServer::start();
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let (code, text) = alone("create blue");
    assert!(
        code == Some(1) && text.contains("a podwire-controller leads this"),
        "{text}"
    );
}

#[test]
fn of_two_who_make_one_network_at_the_same_time_one_is_refused() {
    let central = Central::start();
    let nb = central.local_northbound();
    for round in 0..3 {
        // Of one shape each, of which the database can have one.
        let made = std::thread::scope(|scope| {
            let all: Vec<_> = (0..6)
                .map(|number| {
                    let line = format!("create net{round} --subnets 10.{number}.0.0/24");
                    let mut command =
                        std::process::Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
                    command.args(["network", "--nb", &nb]).args(line.split(' '));
                    scope.spawn(move || run(command))
                })
                .collect();
            let all = all.into_iter().map(|it| it.join().unwrap());
            all.collect::<Vec<_>>()
        });
        let done = made.iter().filter(|(code, _)| *code == Some(0));
        assert_eq!(done.count(), 1, "{made:?}");
        let refused = made.iter().filter(|(code, text)| {
            let others = ["meanwhile: try again", "exists with other subnets"];
            *code == Some(1) && others.iter().any(|it| text.contains(it))
        });
        assert_eq!(refused.count(), 5, "{made:?}");
        let switches = names(&central, "Logical_Switch");
        assert_eq!(switches.len(), round + 1, "{switches:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_refused_while_pods_are_on_the_network_is_taken_back() {
    let (central, server, mut controller) = populated().await;
    let run = |line: &str| network(&central, &server, line);
    let (code, text) = run("create shop/blue --subnets 10.1.0.0/24");
    assert_eq!(code, Some(0), "{text}");
    let mut pod = pod_of("node-a", "asking");
    pod["metadata"]["annotations"][ASKED] = "shop/blue".into();
    server.apply(pod);
    let port = "shop.blue_default_asking";
    await_row(&central, "Logical_Switch_Port", port, true);
    let mut object = server
        .object("NetworkAttachmentDefinition", "shop", "blue")
        .unwrap();
    let mut other = config(&server, "blue");
    other["subnets"] = "10.9.0.0/24".into();
    object["spec"]["config"] = other.to_string().into();
    server.apply(object);
    let part = "can't be changed while pods are on the network";
    await_event(&server, "NetworkAttachmentDefinition", "blue", part);
    let back = "update shop/blue --subnets 10.1.0.0/24";
    for said in ["updated shop/blue", "is so already"] {
        let (code, text) = run(back);
        assert!(code == Some(0) && text.contains(said), "{text}");
        assert_eq!(config(&server, "blue")["subnets"], "10.1.0.0/24");
    }
    controller.idle().await;
    controller.stop().await.unwrap();
}
