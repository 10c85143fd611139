//! `kubectl podwire connectivity` on two nodes of OVN with podwire-controller and the node role:
//! what Kubernetes does for its objects (kubelets, endpoints, addresses of services) is done here,
//! by hand.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_tests::apiserver::{self, ApiServer, Ended, Request};
use podwire_tests::controller::Controller;
use podwire_tests::ovn::{BOTH_FAMILIES, Central, OvnNode};
use podwire_tests::process::{Finished, finish};
use podwire_tests::schema::assert_valid;
use podwire_tests::{Place, agent_binary, controller_binary};
use serde_json::{Value, json};

/// The nodes' addresses on the underlay.
const NODES: [[&str; 2]; 2] = [["172.31.0.2", "fd00:31::2"], ["172.31.0.3", "fd00:31::3"]];
/// A pod of the service and one on the node's network for each node, the stranger and the guarded
/// one.
const PODS: usize = 6;

/// Where a pod's programs run, and its server.
struct Running {
    name: String,
    place: Place,
    server: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn serve(place: &Place, object: &Value) -> Running {
    let line = object["spec"]["containers"][0]["command"]
        .as_array()
        .unwrap();
    assert_eq!(line[0], "/usr/bin/podwire");
    let mut command = Command::new(agent_binary());
    command
        .args(line[1..].iter().map(|it| it.as_str().unwrap()))
        .stdin(Stdio::null());
    Running {
        name: object["metadata"]["name"].as_str().unwrap().to_owned(),
        place: place.clone(),
        server: place.run(|| command.spawn()).unwrap(),
    }
}

fn agents_pod(node: &str) -> Value {
    let mut pod = apiserver::pod(
        node,
        "podwire-system",
        &format!("podwire-{node}"),
        node,
        json!({}),
    );
    pod["metadata"]["labels"] = json!({ "app.kubernetes.io/name": "podwire" });
    pod["spec"]["hostNetwork"] = true.into();
    pod["spec"]["containers"] = json!([{ "name": "agent", "image": "registry.test/podwire:1" }]);
    pod["status"] = json!({ "phase": "Running" });
    pod
}

/// What runs in pods' containers.
type Cluster = Arc<Mutex<Vec<Running>>>;

fn kubelets(server: &ApiServer) -> Cluster {
    let running = Cluster::default();
    let all = Arc::clone(&running);
    server.runs(move |exec| {
        let place = {
            let all = all.lock().unwrap();
            let pod = all.iter().find(|pod| pod.name == exec.pod);
            pod.ok_or_else(|| format!("no pod {}", exec.pod))?
                .place
                .clone()
        };
        let mut command = Command::new(agent_binary());
        command.args(&exec.command[1..]);
        let output = place
            .run(|| command.output())
            .map_err(|it| it.to_string())?;
        Ok(Ended {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    });
    running
}

/// What a cluster does for the objects of the test once they are all made.
fn carry_out(server: &ApiServer, nodes: &[OvnNode; 2], running: &Cluster) {
    let is_pod = |it: &Request| it.method == "POST" && it.path.ends_with("/pods");
    let made = server.await_requests("the pods of the test", |all| {
        all.iter().filter(|it| is_pod(it)).count() == PODS
    });
    let pods: Vec<_> = made.into_iter().filter(is_pod).collect();
    let namespace = pods[0].path.split('/').nth(4).unwrap().to_owned();
    // Its own answer to the last POST may be still to come.
    let object_of = |name: &str| server.await_object(("Pod", &namespace, name), |_| true);

    let mut service = server.await_object(("Service", &namespace, "connectivity"), |_| true);
    let spec = &mut service["spec"];
    spec["clusterIP"] = "10.96.0.77".into();
    spec["clusterIPs"] = json!(["10.96.0.77", "fd00:96::77"]);
    for (at, port) in spec["ports"].as_array_mut().unwrap().iter_mut().enumerate() {
        port["nodePort"] = json!(30_077 + at);
    }
    server.apply(service);
    let mut ends = Vec::new();
    for request in pods {
        let name = request.body.unwrap()["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        let mut object = object_of(&name);
        assert_eq!(
            object["spec"]["containers"][0]["image"],
            "registry.test/podwire:1"
        );
        let at = usize::from(object["spec"]["nodeName"] == nodes[1].name.as_str());
        let node = &nodes[at];
        let (addresses, server_of) = if object["spec"]["hostNetwork"] == true {
            (
                NODES[at].map(|it| it.parse().unwrap()).to_vec(),
                serve(node.place(), &object),
            )
        } else {
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            let (pod, addresses) = node.wired_as(server, (&namespace, &name, &uid));
            let served = serve(pod.place(), &object);
            // As a runtime holds the sandbox: to the end of the process.
            std::mem::forget(pod);
            (addresses, served)
        };
        running.lock().unwrap().push(server_of);
        let ips: Vec<Value> = addresses
            .iter()
            .map(|ip| json!({ "ip": ip.to_string() }))
            .collect();
        if object["metadata"]["labels"]["podwire.io/serves"] == "true" {
            ends.extend(addresses.iter().map(|ip| (*ip, node.name.clone())));
        }
        object = object_of(&name);
        object["status"] = json!({ "phase": "Running", "podIP": ips[0]["ip"], "podIPs": ips });
        server.apply(object);
        if ends.len() == 4 {
            slices(server, &namespace, &std::mem::take(&mut ends));
        }
    }
}

fn slices(server: &ApiServer, namespace: &str, ends: &[(IpAddr, String)]) {
    for v6 in [false, true] {
        let of_family: Vec<_> = ends.iter().filter(|(ip, _)| ip.is_ipv6() == v6).collect();
        let addresses: Vec<String> = of_family.iter().map(|(ip, _)| ip.to_string()).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut slice = apiserver::endpoints(namespace, "connectivity", &addresses, 8080);
        for (at, (_, node)) in of_family.iter().enumerate() {
            slice["endpoints"][at]["nodeName"] = node.as_str().into();
        }
        slice["ports"] = json!([
            { "name": "tcp", "protocol": "TCP", "port": 8080 },
            { "name": "udp", "protocol": "UDP", "port": 8080 },
        ]);
        if v6 {
            slice["addressType"] = "IPv6".into();
            slice["metadata"]["name"] = "connectivity-6".into();
        }
        server.apply(slice);
    }
}

fn command(server: &ApiServer) -> Command {
    let mut command = Command::new(controller_binary());
    command.args(["cluster", "connectivity", "--k8s-apiserver", &server.url()]);
    command
}

#[track_caller]
fn connectivity(server: &ApiServer, flags: &str) -> Finished {
    let mut command = command(server);
    command.args(flags.split_whitespace());
    finish(command, b"", Duration::from_secs(100)).unwrap()
}

fn namespaces(server: &ApiServer) -> Vec<String> {
    let posts = server.requests().into_iter();
    let posts = posts.filter(|it| it.method == "POST" && it.path == "/api/v1/namespaces");
    let name = |it: Request| {
        it.body.unwrap()["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    posts.map(name).collect()
}

#[test]
fn every_path_is_tried_and_what_a_policy_refuses_is_not_reached() {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| {
        let node = central.bare_node(name, number);
        node.start_controller();
        node
    });
    let server = ApiServer::start_at(central.machine().place(), "172.31.0.1".parse().unwrap());
    let controller = Controller::start(&central, &server, "one", BOTH_FAMILIES);
    controller.await_log("all rows are in sync");
    let _runs = nodes.each_ref().map(|node| node.join(&central, &server));
    let options = OvnNode::agent_options();
    let _agents = nodes.each_ref().map(|node| node.start_agent(&options));
    for node in &nodes {
        let mut object = server.object("Node", "", &node.name).unwrap();
        object["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
        server.apply(object);
        server.apply(agents_pod(&node.name));
    }
    let mut own = agents_pod("node-a");
    own["metadata"]["name"] = "podwire-controller-1".into();
    own["metadata"]["labels"] = json!({ "app.kubernetes.io/name": "podwire-controller" });
    server.apply(own);

    let running = kubelets(&server);
    let junit = central.machine().path("/run/junit.xml");
    let done = thread::scope(|scope| {
        scope.spawn(|| carry_out(&server, &nodes, &running));
        central
            .machine()
            .place()
            .run(|| connectivity(&server, "-o json --junit /run/junit.xml"))
    });
    let report: Value = serde_json::from_str(&done.stdout)
        .unwrap_or_else(|error| panic!("not JSON ({error}): {done:?}"));
    assert_valid("clusterConnectivity", &report);
    let attempts = report["attempts"].as_array().unwrap();
    let failed: Vec<_> = attempts.iter().filter(|it| it["isWell"] != true).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let paths: std::collections::BTreeSet<_> = attempts
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths.len(), 13, "{paths:#?}");
    let of = |path: &str| attempts.iter().filter(|it| it["path"] == path).count();
    // Both families by both protocols.
    assert_eq!(of("pod that a policy refuses"), 4);
    assert_eq!(of("pod to a service"), 8);
    assert_eq!(
        report["notTried"],
        json!([
            "the outside: no address is given by --external",
            "DNS: no service kube-system/kube-dns",
        ])
    );
    assert_eq!(
        (done.status.code(), &report["isWell"]),
        (Some(0), &json!(true))
    );
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(xml.contains("failures=\"0\" skipped=\"2\""), "{xml}");
    let made = namespaces(&server);
    assert_eq!(made.len(), 1);
    assert_eq!(server.object("Namespace", "", &made[0]), None);
}

fn with_a_ready_node() -> ApiServer {
    let server = ApiServer::start();
    let mut node = apiserver::node("a", "192.0.2.1");
    node["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    server.apply(node);
    server
}

/// All pods run, and what is asked in them has no answer.
fn run_pods(server: &ApiServer) {
    let is_pod = |it: &&Request| it.method == "POST" && it.path.ends_with("/pods");
    server.await_requests("the test's pods", |all| {
        all.iter().filter(is_pod).count() == 3
    });
    for request in server.requests().iter().filter(is_pod) {
        let namespace = request.path.split('/').nth(4).unwrap();
        let name = request.body.as_ref().unwrap()["metadata"]["name"]
            .as_str()
            .unwrap();
        let mut pod = server.await_object(("Pod", namespace, name), |_| true);
        let ip = "192.0.2.1";
        pod["status"] = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] });
        server.apply(pod);
    }
}

#[test]
fn whenever_it_is_interrupted_nothing_is_left() {
    let is_namespace = |it: &Request| it.method == "POST" && it.path.ends_with("/namespaces");
    let is_watch = |it: &Request| it.is_watch() && it.path.ends_with("/pods");
    // What is withheld, and what has been asked for when the signal comes.
    type Moment<'a> = (&'a str, Option<&'static str>, &'a dyn Fn(&Request) -> bool);
    let moments: [Moment; 5] = [
        ("nodes", Some("nodes"), &|it| it.path.ends_with("/nodes")),
        ("namespace", Some("pods"), &is_namespace),
        ("service", Some("services"), &|it| {
            it.path.ends_with("/services")
        }),
        ("pods' start", None, &is_watch),
        ("answers", Some("exec"), &|it| it.path.ends_with("/exec")),
    ];
    for (moment, withheld, has_come) in moments {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let server = with_a_ready_node();
            server.apply(agents_pod("a"));
            server.withhold(withheld);
            let mut command = command(&server);
            let command = command.args(["--timeout", "60"]).stdout(Stdio::piped());
            let child = command.stderr(Stdio::piped()).spawn().unwrap();
            match moment {
                // Those that are there are listed before.
                "namespace" => {
                    let is_last = |it: &Request| it.path.ends_with("/pods");
                    server.await_requests("the pods", |all| all.iter().any(is_last));
                    server.withhold(Some("namespaces"));
                }
                "answers" => run_pods(&server),
                _ => {}
            }
            server.await_requests(moment, |all| all.iter().any(has_come));
            kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
            // It is made although who asked for it may be gone.
            if moment == "namespace" {
                server.withhold(None);
            }
            let output = child.wait_with_output().unwrap();
            let told = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{moment}, {signal}: {told}");
            assert!(told.contains("interrupted"), "{moment}, {signal}: {told}");
            server.withhold(None);
            for name in namespaces(&server) {
                let left = server.object("Namespace", "", &name);
                assert_eq!(left, None, "{moment}, {signal}");
            }
        }
    }
}

#[test]
fn what_was_made_is_removed_when_pods_do_not_start_in_time() {
    let server = with_a_ready_node();
    let none = connectivity(&server, "");
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert!(
        none.stderr
            .contains("no pod of podwire's agent in namespace podwire-system")
    );
    server.apply(agents_pod("a"));
    let late = connectivity(&server, "--deadline 2");
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let why = "node a: node-0 not running in 1 s, half of --deadline: it is not seen by a kubelet";
    assert!(late.stdout.contains(why), "{late:?}");
    for name in namespaces(&server) {
        assert_eq!(server.object("Namespace", "", &name), None);
    }
}
