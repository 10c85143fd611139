//! `kubectl podwire`: a cluster of real agents, which are asked by pods/exec as a kubelet serves
//! it.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use podwire_tests::apiserver::{self, ApiServer, Ended};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::process::{Finished, finish};
use podwire_tests::schema::assert_valid;
use podwire_tests::traffic::Requests;
use podwire_tests::{
    AgentOptions, NodeRun, Place, TestNode, agent_binary, controller_binary, plugin_binary,
};
use serde_json::{Value, json};

/// Longer than any of the tool's own limits in these tests.
const LIMIT: Duration = Duration::from_secs(60);

/// The runtime's directories, which a node of a test has not at their usual places.
const CONF_DIR: &str = "/run/cni/net.d";
const BIN_DIR: &str = "/run/cni/bin";

/// A node with Open vSwitch, the plugin and its network configuration.
fn installed_node() -> Arc<TestNode> {
    let node = TestNode::with_ovs();
    install(&node);
    Arc::new(node)
}

/// The plugin and its network configuration.
fn install(node: &TestNode) {
    for directory in [CONF_DIR, BIN_DIR] {
        fs::create_dir_all(node.path(directory)).unwrap();
    }
    let plugin = node.path(&format!("{BIN_DIR}/podwire-cni"));
    fs::copy(plugin_binary(), plugin).unwrap();
    let conf = r#"{"name":"pods","type":"podwire-cni"}"#;
    fs::write(node.path(&format!("{CONF_DIR}/10-podwire.conf")), conf).unwrap();
}

/// Runs a program of an agent's pod on its node.
fn exec_on(place: &Place, words: &[String]) -> Result<Ended, String> {
    assert_eq!(words[0], "podwire");
    let mut command = Command::new(agent_binary());
    command.args(&words[1..]);
    if ["doctor", "bundle"].contains(&&*words[1]) {
        command.args(["--conf-dir", CONF_DIR, "--bin-dir", BIN_DIR]);
    }
    let output = place.run(|| command.output());
    let output = output.map_err(|error| error.to_string())?;
    Ok(Ended {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: output.stderr,
    })
}

/// One of podwire's own pods, as a DaemonSet makes it.
fn own_pod(node: &str, app: &str) -> Value {
    let name = format!("{app}-{node}");
    let mut pod = apiserver::pod(node, "podwire-system", &name, &name, json!({}));
    pod["metadata"]["labels"] = json!({ "app.kubernetes.io/name": app });
    pod["status"] = json!({ "phase": "Running" });
    pod
}

fn ready_node(name: &str, address: &str) -> Value {
    let mut node = apiserver::node(name, address);
    node["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
    node
}

/// A cluster of these nodes, each with an agent's pod whose programs run on it.
fn cluster(nodes: &[(&'static str, &Arc<TestNode>)]) -> ApiServer {
    let server = ApiServer::start();
    for (number, (name, _)) in nodes.iter().enumerate() {
        server.apply(ready_node(name, &format!("192.0.2.{}", number + 1)));
        server.apply(own_pod(name, "podwire"));
    }
    let nodes: Vec<_> = nodes
        .iter()
        .map(|(name, node)| (*name, Arc::clone(node)))
        .collect();
    server.runs(move |exec| {
        if (exec.namespace.as_str(), exec.container.as_str()) != ("podwire-system", "agent") {
            return Err(format!("no container {}", exec.container));
        }
        let node = nodes
            .iter()
            .find(|(name, _)| exec.pod == format!("podwire-{name}"));
        let (_, node) = node.ok_or_else(|| format!("no pod {}", exec.pod))?;
        exec_on(node.place(), &exec.command)
    });
    server
}

/// `podwire-controller cluster …`, as an operator runs it.
#[track_caller]
fn kubectl(server: &ApiServer, line: &str) -> Finished {
    let mut command = Command::new(controller_binary());
    command
        .arg("cluster")
        .args(line.split(' '))
        .args(["--k8s-apiserver", &server.url()]);
    finish(command, b"", LIMIT).unwrap()
}

/// The answer as JSON, which is as docs/tools.schema.json says.
#[track_caller]
fn answered(server: &ApiServer, definition: &str, line: &str) -> (Option<i32>, Value) {
    let done = kubectl(server, &format!("{line} -o json"));
    // Of several answers, the first.
    let mut answers = serde_json::Deserializer::from_str(&done.stdout).into_iter();
    let json = answers
        .next()
        .unwrap_or_else(|| panic!("no answer: {done:?}"));
    let json = json.unwrap_or_else(|error| panic!("not JSON ({error}): {done:?}"));
    assert_valid(definition, &json);
    (done.status.code(), json)
}

#[test]
fn status_shows_every_node_and_never_says_well_of_one_that_it_could_not_ask() {
    let (a, b) = (installed_node(), installed_node());
    let (_on_a, on_b) = (
        a.start_agent(&AgentOptions::default()),
        b.start_agent(&AgentOptions::default()),
    );
    let _pod = a.added_pod("web");
    let server = cluster(&[("a", &a), ("b", &b)]);
    server.apply(own_pod("a", "podwire-controller"));

    // No controller answers there: that alone is wrong.
    let (code, view) = answered(&server, "clusterStatus", "status");
    assert_eq!((code, &view["isWell"]), (Some(1), &json!(false)), "{view}");
    let nodes = &view["nodes"];
    assert_eq!(
        (&nodes[0]["name"], &nodes[1]["name"]),
        (&json!("a"), &json!("b"))
    );
    assert_eq!(nodes[0]["status"]["attachments"]["live"], 1, "{view}");
    for node in 0..2 {
        assert_eq!(nodes[node]["problems"], json!([]), "{view}");
    }
    let why = view["controller"]["problems"].to_string();
    assert!(why.contains("podwire-controller-a"), "{why}");
    // In plain mode, and beside another control plane, there is none.
    server.delete_object("Pod", "podwire-system", "podwire-controller-a");
    let (code, view) = answered(&server, "clusterStatus", "status");
    assert_eq!((code, &view["isWell"]), (Some(0), &json!(true)), "{view:#}");

    on_b.stop();
    let done = kubectl(&server, "status");
    done.assert_says(
        Some(1),
        &[
            "NODE  AGENT      NODE ROLE",
            "a     ready",
            "b     no answer",
            "b: no agent answers on /run/podwire/agent.sock",
            "something is wrong on 1 of 2 nodes",
        ],
    );
    a.kill_vswitchd();
    let done = kubectl(&server, "status");
    done.assert_says(
        Some(1),
        &[
            "a     not ready",
            "a: ",
            "ovs-vswitchd",
            "fix, on the node: ",
        ],
    );

    server.apply(ready_node("c", "192.0.2.3"));
    let mut waits = own_pod("c", "podwire");
    waits["status"] = json!({ "phase": "Pending", "containerStatuses": [{
        "name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ImagePullBackOff", "message": "not found" } },
    }] });
    server.apply(waits);
    let done = kubectl(&server, "status");
    done.assert_says(
        Some(1),
        &["c: pod podwire-c waits: ImagePullBackOff: not found"],
    );
}

/// Each tool with its exit code, and what it says.
#[track_caller]
fn say(node: &TestNode, server: &ApiServer) -> [(Option<i32>, String); 3] {
    let status = node.podwire("status");
    let doctor = node.podwire(format!("doctor --conf-dir {CONF_DIR} --bin-dir {BIN_DIR}"));
    let whole = kubectl(server, "status");
    [status, doctor, whole].map(|it| (it.status.code(), it.stdout + &it.stderr))
}

#[test]
fn no_tool_says_that_all_is_well_while_a_daemon_hangs() {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    install(&node);
    let run = NodeRun::start(&node, node.host_arguments("run", None));
    node.start_controller();
    central.await_chassis("node-a");
    let agent = node.start_agent(&OvnNode::agent_options());
    let server = ApiServer::start();
    server.apply(ready_node("a", "192.0.2.1"));
    server.apply(own_pod("a", "podwire"));
    let place = node.place().clone();
    server.runs(move |exec| exec_on(&place, &exec.command));
    let await_well = || {
        let until = Instant::now() + LIMIT;
        loop {
            let said = say(&node, &server);
            if said.iter().all(|(code, _)| *code == Some(0)) && !said[0].1.contains("\n! ") {
                return;
            }
            assert!(Instant::now() < until, "{said:#?}");
        }
    };
    await_well();

    let signals: [(&str, &dyn Fn(Signal)); 5] = [
        ("ovsdb-server", &|it| node.signal_ovsdb_server(it)),
        ("ovs-vswitchd", &|it| node.signal_vswitchd(it)),
        ("ovn-controller", &|it| node.signal_controller(it)),
        ("agent", &|it| agent.signal(it)),
        ("node run", &|it| run.signal(it)),
    ];
    for (daemon, signal) in signals {
        signal(Signal::SIGSTOP);
        let [status, doctor, whole] = say(&node, &server);
        // Its code says whether pods are served: they are without the node role.
        assert!(
            status.0 != Some(0) || status.1.contains("\n! "),
            "{daemon}: {status:?}"
        );
        assert_eq!(doctor.0, Some(1), "{daemon}: {doctor:?}");
        assert_eq!(whole.0, Some(1), "{daemon}: {whole:?}");
        for said in [&doctor.1, &whole.1] {
            let names = |line: &str| line.contains(daemon) || line.contains("database");
            assert!(said.lines().any(names), "{daemon}: {said}");
        }
        signal(Signal::SIGCONT);
        await_well();
    }
    for (daemon, kill) in [
        ("ovs-vswitchd", &(|| node.kill_vswitchd()) as &dyn Fn()),
        ("database", &|| node.kill_ovsdb_server()),
    ] {
        kill();
        for (code, said) in say(&node, &server) {
            assert_ne!(code, Some(0), "{daemon}: {said}");
        }
    }
}

#[test]
fn a_server_that_does_not_answer_is_named_with_a_code_of_its_own() {
    let server = ApiServer::start();
    server.hold(true);
    let done = kubectl(&server, "status --timeout 1");
    let url = server.url();
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    assert!(done.stderr.contains(&url), "{done:?}");
    assert!(
        done.stderr.contains("no answer within 1 s (--timeout)"),
        "{done:?}"
    );
    server.hold(false);
    kubectl(&server, "status").assert_says(Some(1), &["the cluster has no nodes"]);
}

#[test]
fn trace_follows_a_packet_by_the_pods_names() {
    let node = installed_node();
    let _agent = node.start_agent(&AgentOptions::default());
    let pods = ["a", "b"].map(|name| node.added_pod(name));
    let server = cluster(&[("n", &node)]);
    let mut addresses = Vec::new();
    for pod in &pods {
        let shown = pod.run("ip", "-j -4 addr show dev eth0");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let address = shown[0]["addr_info"][0]["local"].as_str().unwrap();
        addresses.push(address.to_owned());
        let mut object = apiserver::pod_on("n", pod, json!({}));
        object["status"] = json!({ "phase": "Running", "podIP": address });
        server.apply(object);
    }
    let line = format!(
        "trace {0}/{1} {0}/{2}",
        pods[0].namespace, pods[0].name, pods[1].name
    );
    let done = kubectl(&server, &line);
    done.assert_says(Some(0), &["Open vSwitch on n: passes", "it arrives"]);
    let to_b = format!(
        "add-flow br-int priority=65000,ip,nw_dst={},actions=drop",
        addresses[1]
    );
    node.run("ovs-ofctl", to_b);
    let done = kubectl(&server, &line);
    done.assert_says(Some(1), &["priority 65000", "it does not arrive"]);
    let (code, way) = answered(&server, "clusterTrace", &line);
    assert_eq!(
        (code, &way["steps"][0]["passes"]),
        (Some(1), &json!(false)),
        "{way}"
    );

    let done = kubectl(&server, "trace tests/none tests/b");
    assert_eq!(done.status.code(), Some(4), "{done:?}");
    assert!(
        done.stderr.contains("there is no pod tests/none"),
        "{done:?}"
    );
}

#[test]
fn a_sysdump_has_each_nodes_bundle_and_says_what_it_lacks() {
    let (a, b) = (installed_node(), installed_node());
    let options = AgentOptions::default().variable("K8S_TOKEN", "opensesame");
    let _on_a = a.start_agent(&options);
    let server = cluster(&[("a", &a), ("b", &b)]);
    server.apply(ready_node("c", "192.0.2.3"));
    // A node of which nothing answers any more has its bundle too, by its own limit.
    b.signal_vswitchd(Signal::SIGSTOP);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dump");
    let done = kubectl(&server, &format!("sysdump --timeout 4 {}", path.display()));
    let lacks = [
        "without nodes/c/bundle.json: no pod",
        "without nodes/b/agent/status.json: no agent answers",
        "did not answer version within",
        "without nodes/b/openvswitch/dpif-show.txt: not asked: ",
    ];
    done.assert_says(Some(1), &lacks);
    assert!(!done.stdout.contains("without nodes/a/"), "{done:?}");
    let read = |file: &str| fs::read_to_string(path.join(file)).unwrap();
    let status: Value = serde_json::from_str(&read("nodes/a/agent/status.json")).unwrap();
    assert_eq!(status["ready"], true);
    assert!(read("nodes/b/openvswitch/rows.txt").contains("Open_vSwitch"));
    assert!(read("nodes/b/machine/rules.txt").contains("lookup main"));
    assert_eq!(read("objects/nodes.json").lines().count(), 3);
    assert!(!read("objects/pods.json").contains("managedFields"));
    let all = Command::new("grep")
        .arg("-r")
        .arg("opensesame")
        .arg(&path)
        .status()
        .unwrap();
    assert!(!all.success(), "a secret is in the dump");
    let again = kubectl(&server, &format!("sysdump {}", path.display()));
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(again.stderr.contains("it exists"), "{again:?}");
    b.signal_vswitchd(Signal::SIGCONT);
}

#[test]
fn a_pods_packets_and_drops_are_shown_by_its_name_from_anywhere() {
    let node = installed_node();
    let _agent = node.start_agent(&AgentOptions::default());
    let pods = ["a", "b"].map(|name| node.added_pod(name));
    let server = cluster(&[("n", &node)]);
    for (pod, address) in pods.iter().zip(["10.186.0.2", "10.186.0.3"]) {
        let mut object = apiserver::pod_on("n", pod, json!({}));
        object["status"] = json!({ "phase": "Running", "podIPs": [{ "ip": address }] });
        server.apply(object);
    }
    let dropped = "add-flow br-int priority=65000,icmp,nw_dst=10.186.0.3,nw_src=10.186.0.2,\
                   actions=drop";
    node.run("ovs-ofctl", dropped);
    let _requests = Requests::send(pods[0].place(), "10.186.0.3");
    let (code, line) = answered(&server, "clusterDropped", "flows tests/b --seconds 2");
    assert_eq!(code, Some(1), "{line}");
    let ends = [
        &line["sourcePod"],
        &line["destinationPod"],
        &line["direction"],
    ];
    assert_eq!(
        ends,
        [&json!("tests/a"), &json!("tests/b"), &json!("to")],
        "{line}"
    );
    let done = kubectl(&server, "flows tests/a --seconds 2");
    let words = [
        "from tests/a: icmp tests/a > tests/b: table 0 of br-int",
        "priority 65000",
    ];
    done.assert_says(Some(1), &words);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    let line = format!("capture tests/a --packets 2 --write {}", path.display());
    let done = kubectl(&server, &line);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(done.stderr.contains("2 packets at port "), "{done:?}");
    let file = fs::read(&path).unwrap();
    assert_eq!(file[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    assert!(
        file.windows(8)
            .any(|it| it == [10, 186, 0, 2, 10, 186, 0, 3])
    );
    let done = kubectl(&server, "flows tests/none");
    assert!(
        done.stderr.contains("there is no pod tests/none"),
        "{done:?}"
    );
}

#[test]
fn a_persons_kubeconfigs_are_merged_and_their_program_is_started() {
    let server = ApiServer::start_tls();
    server.accept_tokens(Some(&["opensesame"]));
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    file("ca", server.ca());
    let first = file(
        "first",
        "{apiVersion: v1, kind: Config, current-context: other, contexts: [\
         {name: other, context: {cluster: none, user: me}},\
         {name: this, context: {cluster: this, user: me}}]}",
    );
    let credential = "{\\\"apiVersion\\\":\\\"client.authentication.k8s.io/v1\\\",\
                      \\\"kind\\\":\\\"ExecCredential\\\",\
                      \\\"status\\\":{\\\"token\\\":\\\"opensesame\\\"}}";
    let second = file(
        "second",
        &format!(
            "{{clusters: [{{name: this, cluster: {{server: '{}', certificate-authority: ca}}}}], \
             users: [{{name: me, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, \
             command: echo, args: [\"{credential}\"], interactiveMode: Never}}}}}}]}}",
            server.url()
        ),
    );
    let both = std::env::join_paths([&first, &directory.path().join("none"), &second]).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(controller_binary());
        command.args(["cluster", "status"]).args(arguments);
        command.env("KUBECONFIG", &both);
        finish(command, b"", LIMIT).unwrap()
    };
    run(&["--context", "this"]).assert_says(Some(1), &["the cluster has no nodes"]);
    let done = run(&[]);
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    assert!(done.stderr.contains("none"), "{done:?}");
    let done = run(&["--context", "nowhere"]);
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    assert!(done.stderr.contains("nowhere"), "{done:?}");
}
