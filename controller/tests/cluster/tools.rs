//! What people ask, of a real network.

use std::process::Command;

use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use podwire_tests::schema::assert_valid;
use serde_json::{Value, json};

use crate::fixture::{Running, flags};

pub(crate) fn ask(central: &Central, server: &ApiServer, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
    command.args(flags(central, server)).args(arguments);
    let output = command.output().unwrap();
    let text = match output.stdout.is_empty() {
        true => output.stderr,
        false => output.stdout,
    };
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn networks_that_overlap_are_refused_before_anything_is_done() {
    let (central, server) = (Central::start(), ApiServer::start());
    let flags = ["--cluster-subnets=10.244.0.0/16/24,fd00::/48/64,10.244.128.0/17/25"];
    let (is_well, told) = ask(&central, &server, &flags);
    let overlap = "--cluster-subnets: 10.244.0.0/16 and 10.244.128.0/17 overlap";
    assert!(!is_well && told.contains(overlap), "{told}");
    assert_eq!(server.requests(), []);
}

#[test]
fn two_sources_of_subnets_are_refused_before_anything_is_done() {
    let (central, server) = (Central::start(), ApiServer::start());
    let flags = ["--cluster-subnets=10.244.0.0/16/24", "--use-pod-cidrs"];
    let (is_well, told) = ask(&central, &server, &flags);
    let both = "--cluster-subnets and --use-pod-cidrs exclude each other";
    assert!(!is_well && told.contains(both), "{told}");
    assert_eq!(server.requests(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_executed_in_the_pod_computes_with_the_pods_variables() {
    for (flag, variable, value) in [
        (
            "--cluster-subnets=10.9.0.0/16/26",
            "CLUSTER_SUBNETS",
            "10.9.0.0/16/26",
        ),
        ("--use-pod-cidrs", "USE_POD_CIDRS", "true"),
    ] {
        let (central, server) = (Central::start(), ApiServer::start());
        let mut node = node("node-a", "192.0.2.1");
        node["spec"]["podCIDRs"] = json!(["10.8.1.0/24"]);
        server.apply(node);
        server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
        let mut controller = Running::start(&central, &server, &[flag]);
        controller.idle().await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
        command
            .arg("status")
            .env("OVN_NB_DB", central.local_northbound())
            .env("OVN_SB_DB", central.local_remote())
            .env("PODWIRE_K8S_APISERVER", server.url())
            .env("PODWIRE_LOG", "info")
            .env(format!("PODWIRE_{variable}"), value);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        let status = String::from_utf8(output.stdout).unwrap();
        assert!(status.contains("pending   nothing"), "{status}");
        controller.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_what_is_and_what_would_be_done() {
    let (central, server) = (Central::start(), ApiServer::start());
    for (name, address) in [("node-a", "192.0.2.1"), ("node-b", "192.0.2.2")] {
        server.apply(node(name, address));
        central.sbctl(format!("chassis-add {name} geneve {address}"));
    }
    for (on, name) in [("node-a", "web"), ("node-b", "db")] {
        server.apply(pod(
            on,
            "default",
            name,
            &format!("uid-of-{name}"),
            json!({}),
        ));
    }
    server.apply(service("default", "front", "10.96.0.10", 80));
    server.apply(endpoints("default", "front", &["10.244.1.3"], 8080));
    server.apply(service("default", "empty", "10.96.0.11", 80));

    // Before anybody leads.
    let (_, planned) = ask(&central, &server, &["--dry-run"]);
    assert!(
        planned.contains(r#""op":"insert","table":"Logical_Switch""#),
        "{planned}"
    );
    assert!(
        planned.contains(
            "\nnode/node-a: annotation k8s.ovn.org/node-subnets {\"default\":[\"10.244.0.0/24\"]}\n"
        ),
        "{planned}"
    );
    let changes = ["json", "yaml"].map(|format| {
        let (is_well, changes) = ask(&central, &server, &["--dry-run", "-o", format]);
        assert!(!is_well, "{changes}");
        let changes: Value = serde_saphyr::from_str(&changes).unwrap();
        assert_valid("controllerDryRun", &changes);
        let operations = changes["operations"].as_array().unwrap();
        let heading = format!("# {} operations in OVN_Northbound\n", operations.len());
        assert!(planned.contains(&heading), "{heading}{planned}");
        changes
    });
    assert_eq!(changes[0]["writes"], changes[1]["writes"]);
    let writes = changes[0]["writes"].as_array().unwrap();
    let subnet = json!({
        "object": "node/node-a",
        "write": "annotation",
        "name": "k8s.ovn.org/node-subnets",
        "content": {"default": ["10.244.0.0/24"]},
    });
    assert!(writes.contains(&subnet), "{writes:?}");
    let (is_well, status) = ask(&central, &server, &["status"]);
    assert!(
        !is_well && status.contains("there is no Lease podwire-controller"),
        "{status}"
    );
    assert!(
        central
            .northbound()
            .rows("Logical_Switch")
            .unwrap()
            .is_empty()
    );

    let mut controller = Running::start(&central, &server, &["--identity", "me"]);
    controller.idle().await;
    let (is_well, planned) = ask(&central, &server, &["--dry-run"]);
    let nothing = "# 0 operations in OVN_Northbound\n# 0 writes to Kubernetes\n";
    assert_eq!((is_well, &*planned), (true, nothing));
    let (is_well, status) = ask(&central, &server, &["status"]);
    assert!(
        is_well && status.starts_with("leader    me, which renewed its lease"),
        "{status}"
    );
    assert!(
        status.contains("2 nodes, 2 pods on the pod network, 2 services"),
        "{status}"
    );
    assert!(status.contains("pending   nothing"), "{status}");
    let (_, status) = ask(&central, &server, &["status", "--output", "json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_valid("controllerStatus", &status);
    assert_eq!(status["isWell"], true);
    assert_eq!(status["rows"]["Logical_Switch"], 3);
    assert_eq!(status["problems"], json!([]));
    // The ovn-northd of this machine, which has worked on the database.
    let version = status["northd"]["version"].as_str().unwrap();
    let installed = Command::new("ovn-northd").arg("--version").output();
    let installed = String::from_utf8(installed.unwrap().stdout).unwrap();
    assert!(installed.contains(version), "{version}: {installed}");
    let (_, yaml) = ask(&central, &server, &["status", "-o", "yaml"]);
    let yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(yaml["pods"], 2);

    central.nbctl("--wait=sb sync");
    let explain = |arguments: &[&str]| {
        let own = ["explain", "pod", "default/web"];
        ask(&central, &server, &[&own[..], arguments].concat())
    };
    let (arrives, text) = explain(&["--to", "default/db"]);
    assert!(arrives);
    for part in [
        "pod default/web on node node-a\n",
        "annotation 10.244.0.3/24 0a:58:0a:f4:00:03\n",
        "row        Logical_Switch_Port default_web on node-a: 0a:58:0a:f4:00:03 10.244.0.3\n",
        "service    none\n",
        "pod default/db (10.244.1.3, ICMP): yes, it leaves the logical network at port \
         default_db\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let (_, json) = explain(&["--to", "default/db", "-o", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_valid("controllerExplain", &json);
    let port = json!({
        "name": "default_web",
        "switch": "node-a",
        "addresses": "0a:58:0a:f4:00:03 10.244.0.3",
        "problems": [],
    });
    let reaches = &json["reaches"];
    assert_eq!((&json["port"], &reaches["arrives"]), (&port, &json!(true)));
    assert_eq!(reaches["policies"][0]["pod"], "default/web");
    let (arrives, text) = explain(&["--to", "10.96.0.10", "--port", "80"]);
    assert!(
        arrives && text.contains("yes, it leaves the logical network at port default_db"),
        "{text}"
    );
    let (arrives, text) = explain(&["--to", "10.96.0.11", "--port", "80"]);
    assert!(!arrives && text.contains("no, it is rejected"), "{text}");
    let (arrives, text) = explain(&["--to", "10.244.1.77"]);
    assert!(
        !arrives && text.contains("it sends an ARP or ND request"),
        "{text}"
    );
    let (_, text) = ask(&central, &server, &["explain", "pod", "default/db"]);
    assert!(
        text.contains("service    default/front 10.96.0.10 80/TCP to 8080: ready"),
        "{text}"
    );
    let (_, json) = ask(
        &central,
        &server,
        &["explain", "pod", "default/db", "-o", "json"],
    );
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_valid("controllerExplain", &json);
    let serving = json!([{
        "service": "default/front",
        "clusterIps": ["10.96.0.10"],
        "ports": ["80/TCP to 8080"],
        "endpoint": "ready",
    }]);
    assert_eq!((&json["services"], json.get("reaches")), (&serving, None));
    let of_service = |name: &str, more: &[&str]| {
        let own = ["explain", "service", name];
        ask(&central, &server, &[&own[..], more].concat())
    };
    let (is_well, text) = of_service("default/front", &[]);
    let expected = "\
service    default/front
cluster    10.96.0.10
port       80/TCP
endpoint   10.244.1.3 of default/db on no node, 8080/TCP: ready
row        Load_Balancer ";
    assert!(is_well && text.starts_with(expected), "{text}");
    assert!(text.ends_with(": in sync\n"), "{text}");
    let row = text.lines().last().unwrap().split(' ');
    let row = row.map(|it| it.trim_end_matches(':'));
    let name = row.skip_while(|it| *it != "Load_Balancer").nth(1).unwrap();
    central.nbctl(format!("set load_balancer {name} vips={{}}"));
    let (is_well, json) = of_service("default/front", &["-o", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_valid("controllerExplainService", &json);
    let state = (&json["rows"][0]["state"], &json["rows"][0]["differs"]);
    assert_eq!(state, (&json!("in sync"), &json!([])));
    assert!(is_well);
    let (_, text) = of_service("default/empty", &[]);
    let line = "endpoint   none: connections are rejected\n";
    assert!(text.contains(line), "{text}");
    let (is_well, text) = of_service("default/none", &[]);
    assert!(!is_well && text.contains("it does not exist"), "{text}");
    let (is_well, text) = ask(&central, &server, &["explain", "pod", "default/none"]);
    assert!(
        !is_well && text.contains("is not on the pod network"),
        "{text}"
    );
    controller.stop().await.unwrap();
}

#[test]
fn a_dry_run_is_of_everything_however_long_it_takes() {
    let (central, server) = (Central::start(), ApiServer::start());
    for on in 0..12 {
        let name = format!("node-{on}");
        server.apply(node(&name, &format!("192.0.2.{}", on + 1)));
        for n in 0..200 {
            let (pod_name, uid) = (format!("web-{on}-{n}"), format!("uid-{on}-{n}"));
            server.apply(pod(&name, "default", &pod_name, &uid, json!({})));
        }
    }
    let (_, planned) = ask(&central, &server, &["--dry-run"]);
    let ports = planned.matches(r#""op":"insert","table":"Logical_Switch_Port""#);
    let of_pods = planned.matches(": annotation k8s.ovn.org/pod-networks ");
    assert_eq!(of_pods.count(), 2400);
    assert!(ports.count() >= 2400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_sent_is_a_problem_and_nothing_that_is_pending() {
    let (central, server) = (Central::start(), ApiServer::start());
    let mut far = node("node-a", "192.0.2.1");
    far["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] =
        json!({ "default": ["192.168.0.0/24"] }).to_string().into();
    server.apply(far);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let (is_well, status) = ask(&central, &server, &["status"]);
    assert!(
        !is_well && status.contains("problem   node/node-a: "),
        "{status}"
    );
    assert!(status.contains("pending   nothing"), "{status}");
    controller.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_say_what_was_done() {
    let (central, server) = (Central::start(), ApiServer::start());
    server.apply(node("node-a", "192.0.2.1"));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut controller = Running::start(&central, &server, &["--metrics-address", &address]);
    let before = controller.idle().await;
    // A change that causes something.
    server.apply(pod("node-a", "default", "web", "uid-of-web", json!({})));
    controller
        .until(|it| it.operations > before.operations)
        .await;
    let done = controller.idle().await;
    let page = |path: &str| {
        let curl =
            ["-s", "--max-time", "10", &format!("http://{address}{path}")].map(str::to_owned);
        let output = Command::new("curl").args(curl).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let metrics = page("/metrics");
    let operations = format!("podwire_controller_operations_total {}\n", done.operations);
    for line in [
        "podwire_controller_leading 1\n",
        "podwire_controller_nodes 1\n",
        &operations,
        "podwire_controller_programming_duration_seconds_count{kind=\"pod\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert_eq!(page("/healthz"), "ok\n");
    assert!(page("/").contains("/metrics"));
    controller.stop().await.unwrap();
}

#[test]
fn a_dry_run_is_of_no_command_and_formats_are_of_a_dry_run() {
    let (central, server) = (Central::start(), ApiServer::start());
    let delete = ["--dry-run", "network", "delete", "default/blue"];
    for (arguments, expected) in [
        (&delete[..], "--dry-run can't be used before a command"),
        (&["-o", "json"], "--dry-run"),
    ] {
        let (is_well, told) = ask(&central, &server, arguments);
        assert!(!is_well && told.contains(expected), "{told}");
    }
    assert_eq!(server.requests(), []);
}

#[test]
fn commands_name_the_server_that_they_can_t_reach_and_how_long_they_tried() {
    let (central, server) = (Central::start(), ApiServer::start());
    let explain = ["explain", "pod", "default/web"];
    for command in [&["status"][..], &explain, &["--dry-run"]] {
        let away = [command, &["--nb-db", "unix:/run/none.sock"]].concat();
        let (is_well, told) = ask(&central, &server, &away);
        let expected = "the northbound database unix:/run/none.sock (--nb-db) can't be reached \
                        within 5 s: ";
        assert!(!is_well && told.contains(expected), "{told}");
        // Nobody listens on port 1.
        let away = [command, &["--k8s-apiserver", "http://127.0.0.1:1"]].concat();
        let (is_well, told) = ask(&central, &server, &away);
        let expected = "the API server http://127.0.0.1:1 can't be reached within 5 s: ";
        assert!(!is_well && told.contains(expected), "{told}");
    }
    assert_eq!(server.events(), Vec::<Value>::new());
}
