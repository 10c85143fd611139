//! Where a pod's wishes come from, end to end: the API server, a directory, the node itself.

use podwire_tests::annotation::{self, POD_NETWORKS, entry, ipv4, mac};
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, conf, links};
use serde_json::{Value, json};

/// For waits that end in vain.
fn impatient(server: &ApiServer) -> AgentOptions {
    server.watched_by("n1", "1")
}

/// For waits that end by an event.
fn patient(server: &ApiServer) -> AgentOptions {
    server.watched_by("n1", "60")
}

fn default_network(number: u8) -> Value {
    annotation::default_network(&entry(number))
}

#[test]
fn an_add_waits_for_the_pod_and_for_its_annotation_and_then_wires_it() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = node.start_agent(&patient(&server));
    let pod = node.pod("web");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().success());
        server.await_watches(1);
        server.apply(apiserver::pod_on("n1", &pod, json!({})));
        server.apply(apiserver::pod_on("n1", &pod, default_network(11)));
        let result = add.join().unwrap();
        assert_eq!(result["ips"][0]["address"], format!("{}/24", ipv4(11)));
    });
    let eth0 = links::find(pod.place(), "eth0").unwrap();
    assert_eq!(eth0.mac, mac(11));
    pod.del().success();
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn the_error_says_which_was_missing_and_to_try_again() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = node.start_agent(&impatient(&server));
    let pod = node.pod("web");
    let unknown = pod.add().error();
    assert_eq!(unknown.code, 11);
    assert!(
        unknown.msg.contains("pod tests/web is not known to"),
        "{unknown:?}"
    );
    server.apply(apiserver::pod_on(
        "n1",
        &pod,
        json!({ "podwire.io/mtu": "1400" }),
    ));
    let bare = pod.add().error();
    assert_eq!(bare.code, 11);
    assert!(
        bare.msg.contains("pod tests/web is not annotated after"),
        "{bare:?}"
    );
    assert!(
        bare.msg.ends_with("its annotations: podwire.io/mtu"),
        "{bare:?}"
    );
    node.leftovers().assert_none();
}

#[test]
fn a_del_ends_the_wait_of_its_add() {
    let (node, server) = ApiServer::beside_a_node();
    let options = patient(&server).with("--log info,podwire::pods=debug");
    let agent = node.start_agent(&options);
    let pod = node.pod("web");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().error());
        // The agent says so when it waits: until then the DEL would come first.
        agent.await_log("awaits its pod's annotation");
        pod.del().success();
        let error = add.join().unwrap();
        assert!(
            error.msg.contains("a DEL of this attachment arrived"),
            "{error:?}"
        );
    });
}

#[test]
fn a_pod_that_is_deleted_while_its_port_is_awaited_ends_its_add_and_leaves_nothing() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = Agent::launch(&node, &patient(&server).with("--wait ovn-installed")).unwrap();
    let pod = node.pod("web");
    server.apply(apiserver::pod_on("n1", &pod, default_network(11)));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().error());
        let name = json!([["name", "==", pod.host_link()]]);
        let row = json!([{ "name": pod.host_link() }]);
        node.ovsdb()
            .wait("Interface", name, "==", &["name"], row)
            .unwrap();
        server.delete(&pod.namespace, &pod.name);
        let error = add.join().unwrap();
        assert_eq!(error.code, 11);
        assert!(error.msg.contains("was deleted from"), "{error:?}");
    });
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn a_wrong_annotation_is_refused_at_once_by_name() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = node.start_agent(&patient(&server));
    let pod = node.pod("web");
    server.apply(apiserver::pod_on(
        "n1",
        &pod,
        json!({ POD_NETWORKS: r#"{"default":{"mac_address":"x"}}"# }),
    ));
    let error = pod.add().error();
    assert_eq!(error.code, 104);
    let text = format!("annotation {POD_NETWORKS}, network default, mac_address: \"x\": ");
    assert!(error.msg.starts_with(&text), "{error:?}");
}

#[test]
fn a_pod_that_can_t_be_read_holds_up_no_other_and_stays_what_it_was() {
    let (node, server) = ApiServer::beside_a_node();
    let pods = ["web", "late", "strange"].map(|name| node.pod(name));
    let [web, late, strange] = &pods;
    let unreadable = |pod: &Pod<'_>| {
        let annotations = json!({ POD_NETWORKS: { "number": "where a string belongs" } });
        apiserver::pod_on("n1", pod, annotations)
    };
    server.apply(unreadable(strange));
    server.apply(apiserver::pod_on("n1", web, default_network(11)));
    let agent = node.start_agent(&patient(&server));
    web.add().success();
    web.del().success();
    server.apply(unreadable(web));
    server.apply(apiserver::pod_on("n1", late, default_network(12)));
    late.add().success();
    let result = web.add().success();
    assert_eq!(result["ips"][0]["address"], format!("{}/24", ipv4(11)));
    let said = server.await_events("both", |events| {
        let named = |name: &str| {
            let mut of = events.iter().filter(|it| it["reason"] == "Unreadable");
            of.any(|it| it["involvedObject"]["name"] == name)
        };
        named("web") && named("strange")
    });
    assert_eq!(said[0]["source"]["component"], "podwire", "{said:?}");
    agent.await_log("Pod tests/strange");
    for pod in [web, late] {
        pod.del().success();
    }
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn a_static_pods_port_bears_the_uid_that_the_api_has() {
    let (node, server) = ApiServer::beside_a_node();
    let _agent = node.start_agent(&patient(&server));
    let pod = node.pod("web");
    let mut annotations = default_network(11);
    annotations["kubernetes.io/config.mirror"] = json!(pod.uid);
    server.apply(apiserver::pod(
        "n1",
        &pod.namespace,
        &pod.name,
        "mirror",
        annotations,
    ));
    pod.add().success();
    let version = node.external_id(&pod.container, "eth0", "iface-id-ver");
    assert_eq!(version.as_deref(), Some("mirror"));
}

#[test]
fn status_says_what_keeps_pods_from_being_known() {
    let (node, server) = ApiServer::beside_a_node();
    server.accept_tokens(Some(&["secret"]));
    let agent = Agent::launch(&node, &impatient(&server)).unwrap();
    let refused = |health: &Value| health["reasons"].to_string().contains("Unauthorized");
    agent.await_health("Unauthorized among the reasons", refused);
    let status = node.pod("any").exec("STATUS", &conf()).error();
    assert_eq!(status.code, 50);
    assert!(
        status.msg.contains(&server.url()) && status.msg.contains("Unauthorized"),
        "{status:?}"
    );
    server.accept_tokens(None);
    agent.await_ready(true);
}

#[test]
fn a_manifest_in_a_directory_is_enough() {
    let node = TestNode::with_ovs();
    std::fs::create_dir(node.path("/run/pods")).unwrap();
    let options = AgentOptions::for_numbered_pods().with("--pod-dir /run/pods");
    let agent = node.start_agent(&options);
    let pod = node.pod("web");
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: {}\n  annotations:\n    \
         {POD_NETWORKS}: '{}'\n",
        pod.namespace,
        json!({ "default": entry(11) })
    );
    std::fs::write(node.path("/run/pods/web.yaml"), manifest).unwrap();
    pod.add().success();
    assert_eq!(links::find(pod.place(), "eth0").unwrap().mac, mac(11));
    pod.del().success();
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn without_a_controller_a_wish_gets_what_it_leaves_open_from_the_node() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(
        &AgentOptions::default()
            .subnet("10.186.0.0/24")
            .with("--no-port-security"),
    );
    let wish = json!([
        { "name": "a", "interface": "*", "defaultGateway": "true" },
        { "name": "a", "interface": "net0", "ipAddress": "10.186.0.77",
            "macAddress": "0A:00:00:00:00:4E" },
        { "name": "b", "interface": "net1", "ip_address": "172.16.24.2/24", "mtu": "1300" },
    ]);
    let pod = node.pod("wish").annotate("ovnNetwork", &wish);
    pod.add().success();
    let address = |name| links::addresses(pod.place(), name);
    assert_eq!(address("eth0"), ["10.186.0.2/24"]);
    assert_eq!(address("net0"), ["10.186.0.77/24"]);
    assert_eq!(address("net1"), ["172.16.24.2/24"]);
    assert_eq!(links::find(pod.place(), "net1").unwrap().mtu, 1300);
    assert_eq!(links::default_routes(pod.place()), ["eth0"]);
    pod.del().success();
    let again = node.pod("again").annotate("ovnNetwork", &json!([wish[1]]));
    again.add().success();
    again.del().success();
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn five_hundred_pods_in_the_watch_cost_little_memory() {
    let (node, server) = ApiServer::beside_a_node();
    let resident = |agent: &Agent<'_>| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let watched = node.start_agent(&patient(&server));
    server.await_watches(1);
    let before = resident(&watched);
    for number in 0..500 {
        let annotations = default_network(u8::try_from(number % 250).unwrap());
        server.apply(apiserver::pod(
            "n1",
            "ns",
            &format!("p{number}"),
            &format!("u{number}"),
            annotations,
        ));
    }
    let last = node.pod("last");
    server.apply(apiserver::pod_on("n1", &last, default_network(251)));
    last.add().success();
    let after = resident(&watched);
    println!("VmRSS: {before} KB with no pod in the watch, {after} KB with 501");
    assert!(after < before + 8 * 1024, "{before} KB grew to {after} KB");
}
