//! NetworkPolicies by packets: what they forbid does not pass, from the first packet on.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use podwire_controller::cluster::policy::Direction;
use podwire_controller::want::policy::{isolated_group, policy_group};
use podwire_tests::apiserver::{ApiServer, pod_on};
use podwire_tests::ovn::Central;
use podwire_tests::{Place, Pod};
use serde_json::{Value, json};

use crate::fixture::{Running, annotation, await_network, await_row, column, pod_of, populate};
use crate::networks::NETWORKS;
use crate::packets::{Named, Network, ask};

/// The namespace of the wired pods.
pub(crate) const TESTS: &str = "tests";

pub(crate) fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": namespace, "name": name, "uid": format!("uid-of-{name}") },
        "spec": spec,
    })
}

pub(crate) fn labelled(name: &str) -> Value {
    json!({ "matchLabels": { "app": name } })
}

pub(crate) fn namespace(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "uid": format!("uid-of-{name}"), "labels": labels },
    })
}

impl Network {
    /// Whether OVN lets a packet to port 8080 of a pod of the first node enter by that node's own
    /// port, from this address.
    pub(crate) fn enters(&self, pod: &str, address: IpAddr, from: &str) -> bool {
        let port = format!("{TESTS}_{pod}");
        let addresses = column(&self.central, "Logical_Switch_Port", &port, "addresses");
        let mac = addresses.as_str().unwrap().split(' ').next().unwrap();
        let packet = format!(
            "inport == \"k8s-node-a\" && eth.src == 0a:58:0a:f4:00:02 && eth.dst == {mac} && \
             ip4.src == {from} && ip4.dst == {address} && ip.ttl == 64 && tcp.src == 40000 && \
             tcp.dst == 8080"
        );
        let database = format!("--db={}", self.central.local_remote());
        let arguments = [
            &*database,
            "--minimal",
            "--ct=new",
            "--ct=new",
            "node-a",
            &packet,
        ];
        let traced = self.central.machine().run("ovn-trace", arguments);
        traced.contains(&format!("output(\"{port}\")"))
    }

    /// Changes the labels of a pod.
    pub(crate) fn label(&self, pod: &Pod<'_>, app: &str) {
        let mut object = self
            .server
            .object("Pod", &pod.namespace, &pod.name)
            .unwrap();
        object["metadata"]["labels"] = json!({ "app": app });
        self.server.apply(object);
    }

    /// A pod with a label, and perhaps one more field of its containers, wired.
    pub(crate) fn labelled_pod(&self, node: usize, name: &str, app: &str) -> (Pod<'_>, IpAddr) {
        self.pod_of(TESTS, node, name, app)
    }

    /// One of a namespace.
    pub(crate) fn pod_of(
        &self,
        namespace: &str,
        node: usize,
        name: &str,
        app: &str,
    ) -> (Pod<'_>, IpAddr) {
        let (pod, address) = self.announced_of(namespace, node, name, app);
        pod.add().success();
        (pod, address)
    }

    /// A pod that has an address and a port, and is not wired.
    pub(crate) fn announced(&self, node: usize, name: &str, app: &str) -> (Pod<'_>, IpAddr) {
        self.announced_of(TESTS, node, name, app)
    }

    fn announced_of(
        &self,
        namespace: &str,
        node: usize,
        name: &str,
        app: &str,
    ) -> (Pod<'_>, IpAddr) {
        let node = &self.nodes[node];
        let mut pod = node.pod(name);
        namespace.clone_into(&mut pod.namespace);
        let mut object = pod_on(&node.name, &pod, json!({}));
        object["metadata"]["labels"] = json!({ "app": app });
        object["spec"]["containers"][0]["ports"] =
            json!([{ "name": "web", "containerPort": 8080 }]);
        self.server.apply(object);
        let primary = self.primary.map(|it| format!("{namespace}/{it}"));
        let entry = primary.as_deref().unwrap_or("default");
        let of = |pod: &Value| annotation(pod, NETWORKS).map(|it| (it[entry].clone(), it));
        let is_there = |pod: &Value| of(pod).is_some_and(|(entry, _)| !entry.is_null());
        let id = ("Pod", &*pod.namespace, name);
        let (entry, all) = of(&self.server.await_object(id, is_there)).unwrap();
        let address = entry["ip_addresses"][0].as_str().unwrap();
        let address = address.split('/').next().unwrap().parse().unwrap();
        (pod.annotate(NETWORKS, &all), address)
    }
}

/// Whether a connection is accepted.
pub(crate) fn connects(from: &Place, to: SocketAddr) -> bool {
    from.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok())
}

/// Waits until connections are accepted, or are not.
#[track_caller]
pub(crate) fn await_reach(from: &Place, to: SocketAddr, reaches: bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while connects(from, to) != reaches {
        assert!(Instant::now() < until, "{to} is to be reached: {reaches}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_lets_pass_what_it_allows_and_follows_labels() {
    let (network, mut controller) = Network::start(&[]);
    let agents = network.start_agents();
    network
        .server
        .apply(namespace(TESTS, json!({ "team": "red" })));
    let (web, web_address) = network.labelled_pod(0, "web", "web");
    let (near, _) = network.labelled_pod(0, "near", "front");
    let (far, far_address) = network.labelled_pod(1, "far", "front");
    let named = [
        Named::start(web.place(), web_address, "web"),
        Named::start(far.place(), far_address, "far"),
    ];
    let to_web = SocketAddr::new(web_address, 8080);
    let to_far = SocketAddr::new(far_address, 8080);
    for client in [&near, &far] {
        await_reach(client.place(), to_web, true);
    }

    // Nothing in, but what it asks for itself.
    let server = &network.server;
    server.apply(policy(
        TESTS,
        "deny",
        json!({ "podSelector": labelled("web") }),
    ));
    for client in [&near, &far] {
        await_reach(client.place(), to_web, false);
    }
    assert_eq!(ask(web.place(), to_far).as_deref(), Ok("far"));

    // By labels of pods, which change; through a service, too.
    let from_front = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "podSelector": labelled("front") }], "ports": [{ "port": "web" }] },
    ] });
    server.apply(policy(TESTS, "allow", from_front));
    let vip = network.service(10, &[(web_address, "node-a", true)], &json!({}), "cluster");
    for client in [&near, &far] {
        await_reach(client.place(), to_web, true);
        assert_eq!(ask(client.place(), vip).as_deref(), Ok("web"));
    }
    // Itself by its service; and its node, but no other address that enters by the node's port.
    assert_eq!(ask(web.place(), vip).as_deref(), Ok("web"));
    let enters = |from: &str| network.enters("web", web_address, from);
    assert_eq!(
        ["10.244.0.2", "169.254.169.6", "192.0.2.1"].map(enters),
        [true, false, false]
    );
    network.label(&far, "other");
    await_reach(far.place(), to_web, false);
    assert!(!connects(far.place(), vip));
    assert!(connects(near.place(), to_web));
    network.label(&far, "front");
    await_reach(far.place(), to_web, true);

    // Out: to one pod alone, behind its service too.
    let to_web_alone = json!({
        "podSelector": labelled("front"), "policyTypes": ["Egress"],
        "egress": [{ "to": [
            { "namespaceSelector": { "matchLabels": { "team": "blue" } } },
        ] }],
    });
    server.apply(policy(TESTS, "out", to_web_alone));
    await_reach(near.place(), to_web, false);
    assert!(!connects(near.place(), vip));
    // What it is asked is answered.
    assert_eq!(ask(web.place(), to_far).as_deref(), Ok("far"));
    server.apply(namespace(TESTS, json!({ "team": "blue" })));
    await_reach(near.place(), to_web, true);
    assert!(connects(near.place(), vip));

    // Networks without some.
    let by_block = json!({ "podSelector": labelled("web"), "ingress": [
        { "from": [{ "ipBlock": { "cidr": "10.244.0.0/16", "except": ["10.244.1.0/24"] } }] },
    ] });
    server.apply(policy(TESTS, "allow", by_block));
    await_reach(far.place(), to_web, false);
    assert!(connects(near.place(), to_web));

    // A controller that starts again has nothing to do, and a policy that is gone closes nothing.
    controller.idle().await;
    controller.stop().await.unwrap();
    let mut controller = Running::start(&network.central, server, &[]);
    let progress = controller.idle().await;
    assert_eq!((progress.operations, progress.writes), (0, 0));
    for name in ["deny", "allow", "out"] {
        server.delete_object("NetworkPolicy", TESTS, name);
    }
    await_reach(far.place(), to_web, true);
    drop((named, agents));
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_comes_later_cuts_the_connections_that_it_forbids() {
    let (network, controller) = Network::start(&[]);
    let agents = network.start_agents();
    let (web, address) = network.labelled_pod(0, "web", "web");
    let (client, _) = network.labelled_pod(1, "client", "client");
    let to_web = SocketAddr::new(address, 8080);
    let listener = web.place().run(|| TcpListener::bind(to_web)).unwrap();
    await_reach(client.place(), to_web, true);
    drop(listener.accept().unwrap());
    let mut stream = client.place().run(|| TcpStream::connect(to_web)).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    stream.write_all(b"1").unwrap();
    accepted.read_exact(&mut [0]).unwrap();

    network
        .server
        .apply(policy(TESTS, "deny", json!({ "podSelector": {} })));
    await_reach(client.place(), to_web, false);
    network.central.sync();
    stream.write_all(b"2").unwrap();
    accepted
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    assert!(accepted.read(&mut [0]).is_err(), "a connection was not cut");

    // What was lost on the way is sent again once it may pass.
    network.server.delete_object("NetworkPolicy", TESTS, "deny");
    accepted
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut read = [0];
    accepted.read_exact(&mut read).unwrap();
    assert_eq!(read, *b"2");
    drop(agents);
    controller.stop().await.unwrap();
}

/// Each kind's list is answered in its turn: no port is there before all are.
#[tokio::test(flavor = "multi_thread")]
async fn no_port_is_made_before_everything_that_can_select_its_pod_is_listed() {
    for kind in ["networkpolicies", "namespaces"] {
        let (central, server) = (Central::start(), ApiServer::start());
        server.withhold(Some(kind));
        populate(&server);
        server.apply(policy("default", "deny", json!({ "podSelector": {} })));
        let mut controller = Running::start(&central, &server, &[]);
        // Nodes and services do not wait.
        await_row(&central, "Logical_Switch_Port", "stor-node-a", true);
        await_row(
            &central,
            "Load_Balancer",
            "Service_default/front_TCP_cluster",
            true,
        );
        let ports = crate::fixture::names(&central, "Logical_Switch_Port");
        assert!(
            !ports.iter().any(|it| it == "default_web"),
            "{kind}: {ports:?}"
        );
        server.withhold(None);
        controller.idle().await;
        let ports = column(
            &central,
            "Port_Group",
            &isolated_group("default", Direction::Ingress),
            "ports",
        );
        assert_eq!(ports.as_array().map(Vec::len), Some(2), "{kind}: {ports}");
        controller.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_policy_is_told_and_allows_nothing() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(policy(
        "default",
        "wrong",
        json!({ "podSelector": {}, "ingress": [
            { "from": [{ "ipBlock": { "cidr": "10.0.0.0/33" } }], "ports": [{ "port": 80 }] },
        ] }),
    ));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let events = server.await_events("the mistake", |events| !events.is_empty());
    let message = events[0]["message"].as_str().unwrap();
    assert!(
        message.contains("spec.ingress[0].from[0]: ipBlock: \"10.0.0.0/33\""),
        "{message}"
    );
    assert_eq!(events[0]["involvedObject"]["kind"], "NetworkPolicy");
    let groups = crate::fixture::names(&central, "Port_Group");
    assert!(groups.contains(&isolated_group("default", Direction::Ingress).to_string()));
    let group = policy_group("default", "wrong", "uid-of-wrong").to_string();
    assert!(groups.contains(&group), "{groups:?}");
    let is_of_it = |it: &String| it.starts_with("NP:default:wrong");
    assert!(!crate::fixture::names(&central, "ACL").iter().any(is_of_it));
    controller.stop().await.unwrap();
}

/// ovn-northd 26.03 loses a group that is deleted and made again before it looks.
#[tokio::test(flavor = "multi_thread")]
async fn the_groups_of_a_namespace_stay_when_its_last_policy_goes() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(namespace("default", json!({})));
    let rest = Duration::from_secs(5);
    let mut controller = Running::resting(rest, &central, &server, &[]);
    let deny = policy("default", "deny", json!({ "podSelector": {} }));
    let group = isolated_group("default", Direction::Ingress);
    let row = |name: &str| column(&central, "Port_Group", name, "_uuid");
    controller.idle().await;
    let (before, drops) = (row(&group), || crate::fixture::names(&central, "ACL"));
    let is_ours = |acl: &String| acl.starts_with("NP:");
    assert!(!drops().iter().any(is_ours), "{:?}", drops());
    for _ in 0..2 {
        server.apply(deny.clone());
        await_row(&central, "ACL", "NP:default:Ingress", true);
        assert_eq!(row(&group), before);
        server.delete_object("NetworkPolicy", "default", "deny");
        await_row(&central, "ACL", "NP:default:Ingress", false);
        assert_eq!(row(&group), before);
    }
    // One that is made again at once, and one that is gone.
    server.delete_object("Namespace", "", "default");
    server.apply(namespace("default", json!({})));
    server.apply(deny);
    await_row(&central, "ACL", "NP:default:Ingress", true);
    assert_eq!(row(&group), before);
    server.delete_object("NetworkPolicy", "default", "deny");
    server.delete_object("Namespace", "", "default");
    await_row(&central, "Port_Group", &group, false);
    controller.stop().await.unwrap();
}

/// A network of which pieces are left, about sixteen for each exception.
fn holed(first: u8, holes: u8) -> Value {
    let except = (0..holes).map(|hole| format!("{first}.{hole}.0.0/32"));
    let except: Vec<String> = except.collect();
    json!({ "ipBlock": { "cidr": format!("{first}.0.0.0/8"), "except": except } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_too_many_networks_is_told_so_and_allows_less() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let one_rule: Vec<Value> = (1..=3).map(|first| holed(first, 250)).collect();
    let rules = (1..=6).map(|first| json!({ "from": [holed(first, 200)] }));
    let rules: Vec<Value> = rules.collect();
    for (name, ingress) in [
        ("rule", json!([{ "from": one_rule }])),
        ("rules", json!(rules)),
    ] {
        let spec = json!({ "podSelector": {}, "ingress": ingress });
        server.apply(policy("default", name, spec));
    }
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let events = server.await_events("mistakes", |events| events.len() == 2);
    for event in events {
        assert_eq!(event["reason"], "PolicyMistake");
        let message = event["message"].as_str().unwrap();
        let told = match event["involvedObject"]["name"].as_str() {
            Some("rule") => [
                "spec.ingress[0].from[1]: ipBlock: without",
                "with it the rule",
            ],
            _ => [
                "spec.ingress[5].from[0]: ipBlock: without",
                "with it the policy",
            ],
        };
        assert!(told.iter().all(|it| message.contains(it)), "{message}");
    }
    let acls = crate::fixture::names(&central, "ACL");
    for name in ["rule", "rules"] {
        let group = policy_group("default", name, &format!("uid-of-{name}")).to_string();
        let groups = crate::fixture::names(&central, "Port_Group");
        assert!(groups.contains(&group), "{name}");
        let own = format!("NP:default:{name}:");
        assert!(
            acls.iter().any(|it| it.starts_with(&own)),
            "{name}: {acls:?}"
        );
    }
    controller.stop().await.unwrap();
}

/// Its networks stand beside each of the numbers that pods give a port.
#[tokio::test(flavor = "multi_thread")]
async fn whose_rows_the_database_does_not_take_is_told_so_and_holds_up_no_other() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let ports: Vec<Value> = (8000..8024)
        .map(|number| json!({ "name": "http", "containerPort": number }))
        .collect();
    let mut many = pod_of("node-a", "many");
    many["metadata"]["labels"] = json!({ "app": "many" });
    many["spec"]["containers"] = json!([{ "name": "one", "ports": ports }]);
    server.apply(many);
    let rule = |first| json!({ "from": [holed(first, 200)], "ports": [{ "port": "http" }] });
    let ingress: Vec<Value> = (1..=4).map(rule).collect();
    let spec = json!({ "podSelector": labelled("many"), "ingress": ingress });
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    server.apply(policy("default", "large", spec));
    let events = server.await_events("a refusal", |events| {
        events.iter().any(|it| it["reason"] == "RowsRefused")
    });
    let event = events
        .iter()
        .find(|it| it["reason"] == "RowsRefused")
        .unwrap();
    assert_eq!(event["involvedObject"]["name"], "large");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("an OVSDB transaction of "), "{message}");
    server.apply(pod_of("node-a", "after"));
    await_network(&server, "default", "after");
    await_row(&central, "Logical_Switch_Port", "default_after", true);

    server.apply(policy(
        "default",
        "large",
        json!({ "podSelector": labelled("many") }),
    ));
    let group = policy_group("default", "large", "uid-of-large");
    await_row(&central, "Port_Group", &group, true);
    controller.until(|it| it.problems == 0).await;
    controller.stop().await.unwrap();
}
