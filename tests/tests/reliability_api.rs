//! The API server is gone for long, and comes back another one in all but its address; and the ways
//! there that nobody configures.

use std::thread;
use std::time::Duration;

use podwire_tests::annotation::{default_network, entry, mac};
use podwire_tests::apiserver::{self, ApiServer, Hostile};
use podwire_tests::tail;
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, links};
use serde_json::Value;

fn annotated(pod: &Pod<'_>, number: u8) -> Value {
    apiserver::pod_on("n1", pod, default_network(&entry(number)))
}

#[test]
fn while_the_api_is_gone_known_pods_are_served_and_after_it_everything_is_as_it_has_become() {
    let (node, server) = ApiServer::beside_a_node();
    server.accept_tokens(Some(&["before"]));
    std::fs::write(node.path("/run/token"), "before").unwrap();
    // Little for the waits that end in vain; while one that ends by an event is awaited, ample.
    node.configure("add-timeout = 1");
    let options = AgentOptions::for_numbered_pods()
        .watching(&server, "n1")
        .configured()
        .with("--k8s-token-file /run/token");
    let agent = node.start_agent(&options);
    let [known, unknown, deleted] = ["known", "unknown", "deleted"].map(|name| node.pod(name));
    server.apply(annotated(&deleted, 13));
    server.apply(annotated(&known, 11));
    known.add().success();
    known.del().success();

    server.go_away(true);
    agent.await_log("can't watch this node's pods");
    known.add().success();
    agent.await_ready(true);
    let error = unknown.add().error();
    assert_eq!(error.code, 11);
    for words in ["pod tests/unknown is not known to", "has been failing for"] {
        assert!(error.msg.contains(words), "{error:?}");
    }
    known.del().success();
    server.accept_tokens(Some(&["after"]));
    std::fs::write(node.path("/run/token"), "after").unwrap();
    server.apply(annotated(&unknown, 12));
    server.delete(&deleted.namespace, &deleted.name);
    server.compact();
    let before = server.requests().len();

    node.configure("add-timeout = 60");
    agent.await_log("add-timeout from 1 to 60");
    server.go_away(false);
    unknown.add().success();
    agent.await_log("are watched again");
    let requests = server.requests().split_off(before);
    let lists = requests.iter().filter(|request| !request.is_watch());
    assert_eq!(
        lists.count(),
        1,
        "what has expired is listed anew, once: {requests:?}"
    );
    for request in &requests {
        assert_eq!(request.authorization.as_deref(), Some("Bearer after"));
    }
    node.configure("add-timeout = 1");
    agent.await_log("add-timeout from 60 to 1");
    let error = deleted.add().error();
    assert!(
        error.msg.contains("pod tests/deleted is not known to"),
        "{error:?}"
    );
}

#[test]
fn within_a_cluster_the_service_account_is_all_that_is_needed() {
    let node = TestNode::with_ovs();
    let server = ApiServer::start_tls_in(node.place());
    server.accept_tokens(Some(&["of the service account"]));
    // /var/run leads to the node's own /run.
    let account = node.path("/run/secrets/kubernetes.io/serviceaccount");
    std::fs::create_dir_all(&account).unwrap();
    std::fs::write(account.join("token"), "of the service account\n").unwrap();
    std::fs::write(account.join("ca.crt"), server.ca()).unwrap();
    let options = AgentOptions::for_numbered_pods()
        .with("--node-name n1 --add-timeout 30")
        .variable("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .variable("KUBERNETES_SERVICE_PORT", &server.port().to_string());
    let agent = node.start_agent(&options);
    assert_is_watched(&node, &server);
    agent.stop();

    std::fs::remove_file(account.join("ca.crt")).unwrap();
    assert_is_not_believed(&Agent::launch(&node, &options).unwrap());
}

#[test]
fn without_a_ca_of_its_own_the_systems_are_believed() {
    let node = TestNode::with_ovs();
    let server = ApiServer::start_tls_in(node.place());
    let options = server.watched_by("n1", "30");
    assert_is_not_believed(&Agent::launch(&node, &options).unwrap());

    std::fs::write(node.path("/run/roots.pem"), server.ca()).unwrap();
    let roots = "/etc/ssl/certs/ca-certificates.crt";
    node.run("mount", format!("--bind /run/roots.pem {roots}"));
    let _agent = node.start_agent(&options);
    assert_is_watched(&node, &server);
}

#[test]
fn a_server_that_sends_without_end_costs_bounded_memory_and_is_reported_in_bounded_length() {
    /// The largest answer is held a few times over while it is parsed.
    const MOST_KILOBYTES: u64 = 256 << 10;
    const LONGEST_MESSAGE: usize = 2_000;
    const LONGEST_LINE: usize = 4_000;
    let (node, server) = ApiServer::beside_a_node();
    let agent = node.start_agent(&server.watched_by("n1", "1"));
    let [known, unknown] = ["known", "unknown"].map(|name| node.pod(name));
    server.apply(annotated(&known, 11));
    known.add().success();
    known.del().success();
    for (hostile, what) in [
        (Hostile::LongError, r#"code\":500"#),
        (Hostile::EndlessList, "the server's answer is larger than"),
        (Hostile::EndlessPages, "the server's list does not end"),
        (Hostile::NoJson, "expected"),
        (Hostile::EndlessLine, "a line of the server's watch"),
        (Hostile::EndlessPods, "there are more than 5000 pods"),
        (Hostile::LongVersion, "resourceVersion of 100000 bytes"),
    ] {
        server.misbehave(Some(hostile));
        // Lists are asked for only when the version has expired.
        server.compact();
        // An ADD that waits shortens the pause after a failure.
        let error = unknown.add().error();
        agent.await_log(what);
        let shown = tail(&error.msg);
        assert_eq!(error.code, 11, "{hostile:?}: {shown}");
        assert!(error.msg.len() < LONGEST_MESSAGE, "{hostile:?}: {shown}");
        known.add().success();
        known.del().success();
        server.misbehave(None);
        unknown.add().error();
        server.await_watches(1);
    }
    let log = agent.log();
    let longest = log.lines().map(str::len).max().unwrap();
    assert!(longest < LONGEST_LINE, "a log line of {longest} bytes");
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(peak < MOST_KILOBYTES, "the agent took {peak} kB");
}

/// Nobody that the agent believes has signed the server's certificate.
fn assert_is_not_believed(agent: &Agent<'_>) {
    agent.await_log("can't watch this node's pods");
    let log = agent.log();
    assert!(log.contains("certificate"), "{log}");
}

fn assert_is_watched(node: &TestNode, server: &ApiServer) {
    let pod = node.pod("web");
    server.apply(annotated(&pod, 11));
    pod.add().success();
    let eth0 = links::find(pod.place(), "eth0").unwrap();
    assert_eq!(eth0.mac, mac(11));
    pod.del().success();
}

#[test]
fn what_an_add_has_waited_for_its_annotation_is_not_waited_once_more_for_ovn() {
    const PATIENCE: Duration = Duration::from_secs(6);
    let (node, server) = ApiServer::beside_a_node();
    let seconds = PATIENCE.as_secs().to_string();
    // No ovn-controller runs, and so nobody ever reports the port.
    let options = server
        .watched_by("n1", &seconds)
        .with("--wait ovn-installed")
        .with("--log info,podwire::pods=debug");
    let agent = Agent::launch(&node, &options).unwrap();
    let pod = node.pod("web");
    thread::scope(|scope| {
        let add = scope.spawn(|| pod.add().error());
        agent.await_log("awaits its pod's annotation");
        // No event is awaited: that time passes is what the second wait is to be the shorter for.
        thread::sleep(PATIENCE / 2);
        server.apply(annotated(&pod, 11));
        let error = add.join().unwrap();
        assert_eq!(error.code, 11);
        let (_, rest) = error.msg.split_once("installed within ").unwrap();
        let (waited, _) = rest.split_once(':').unwrap();
        let waited = match waited.split_once(' ').unwrap() {
            (milliseconds, "ms") => Duration::from_millis(milliseconds.parse().unwrap()),
            (seconds, _) => Duration::from_secs_f64(seconds.parse().unwrap()),
        };
        assert!(waited < PATIENCE, "{error:?}");
    });
    node.leftovers().assert_none();
}
