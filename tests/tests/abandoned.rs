//! Attachments for which no DEL comes: removed by the agent itself after the grace, and never one
//! whose pod may live.

use podwire_tests::annotation::{default_network, entry};
use podwire_tests::apiserver::{ApiServer, Hostile, pod_on};
use podwire_tests::scrape::Scrape;
use podwire_tests::{Agent, AgentOptions, Pod, TestNode};

const GRACE: [&str; 2] = ["--gc-grace", "1"];

fn collected(agent: &Agent<'_>) -> f64 {
    let (_, page) = agent.get("/metrics");
    let page = Scrape::parse(&page).unwrap();
    page.value("podwire_repairs_total", &[("what", "abandoned")])
        .unwrap()
}

/// Waits until the agent has removed a pod of itself, which it says last of all.
fn await_removed(agent: &Agent<'_>, pod: &Pod<'_>) {
    let removed = format!(
        r#""removed, because no DEL came for it","attachment":"eth0 of container {}"#,
        pod.container
    );
    agent.await_log(&removed);
}

/// A pod that was wired with the API server knowing it.
fn known_pod<'node>(node: &'node TestNode, server: &ApiServer, number: u8) -> Pod<'node> {
    let pod = node.pod(&format!("web-{number}"));
    server.apply(pod_on("n1", &pod, default_network(&entry(number))));
    pod.add().success();
    pod
}

#[test]
fn a_port_whose_namespace_is_gone_for_good_is_removed_after_the_grace_and_one_only_unmounted_stays()
{
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::for_numbered_pods().with(GRACE));
    let (mut hidden, mut gone) = (node.wired_pod(11), node.wired_pod(12));
    // Somebody still has it open, as a process in it would.
    let held = hidden.place().clone();
    hidden.remove_netns();
    gone.remove_netns();
    await_removed(&agent, &gone);
    assert_eq!(collected(&agent), 1.0);
    assert!(node.interface_of(&hidden.container).is_some());
    drop(held);
    await_removed(&agent, &hidden);
    node.leftovers().assert_none();
}

#[test]
fn a_pod_that_the_api_server_no_longer_has_is_removed_and_one_that_it_never_had_stays() {
    let (node, server) = ApiServer::beside_a_node();
    let options = server.watched_by("n1", "30").with(GRACE);
    let agent = node.start_agent(&options.with("--annotations optional"));
    let gone = known_pod(&node, &server, 11);
    let stays = known_pod(&node, &server, 12);
    // Of the container runtime's own tools: no API server knows it.
    let foreign = node.numbered_pod(13);
    foreign.add().success();
    server.delete(&gone.namespace, &gone.name);
    await_removed(&agent, &gone);
    assert_eq!(collected(&agent), 1.0);
    for pod in [&stays, &foreign] {
        assert!(node.interface_of(&pod.container).is_some());
        pod.del().success();
    }
    gone.del().success();
    node.leftovers().assert_none();
}

#[test]
fn nothing_goes_while_the_api_server_is_away_or_answers_from_an_older_state() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = node.start_agent(&server.watched_by("n1", "30").with(GRACE));
    let pod = known_pod(&node, &server, 11);
    let mut others = [12, 13].map(|number| known_pod(&node, &server, number));
    // Each time another one's grace passes meanwhile.
    let mut pass_a_grace = |other: usize| {
        others[other].remove_netns();
        await_removed(&agent, &others[other]);
        assert!(node.interface_of(&pod.container).is_some());
    };

    server.misbehave(Some(Hostile::OlderList));
    server.delete(&pod.namespace, &pod.name);
    pass_a_grace(0);
    server.misbehave(None);
    server.apply(pod_on("n1", &pod, default_network(&entry(11))));
    server.go_away(true);
    server.break_connections();
    server.delete(&pod.namespace, &pod.name);
    pass_a_grace(1);

    server.go_away(false);
    await_removed(&agent, &pod);
    assert_eq!(collected(&agent), 3.0);
    node.leftovers().assert_none();
}

#[test]
fn a_pod_that_went_while_no_agent_ran_is_removed_and_a_static_one_stays() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = node.start_agent(&server.watched_by("n1", "30").with(GRACE));
    let gone = known_pod(&node, &server, 11);
    // A static pod's sandbox lives by its manifest, whatever becomes of its mirror.
    let fixed = node.pod("static");
    let mut annotations = default_network(&entry(12));
    annotations["kubernetes.io/config.mirror"] = fixed.uid.as_str().into();
    let mut mirror = pod_on("n1", &fixed, annotations);
    mirror["metadata"]["uid"] = "mirror".into();
    server.apply(mirror);
    fixed.add().success();
    let agent = agent.kill_and_restart_with(|| {
        server.delete(&fixed.namespace, &fixed.name);
        server.delete(&gone.namespace, &gone.name);
    });
    await_removed(&agent, &gone);
    assert_eq!(collected(&agent), 1.0);
    assert!(node.interface_of(&fixed.container).is_some());
    fixed.del().success();
    node.leftovers().assert_none();
}
