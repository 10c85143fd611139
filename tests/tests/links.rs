//! The promise "a link is born where it lives", as the kernel tells it.

use std::collections::BTreeMap;

use podwire_tests::links::{Change, LinkEvent, LinkRecorder};
use podwire_tests::{AgentOptions, Datapath, TestNode, datapath};

#[test]
fn an_add_deletes_moves_and_renames_no_link() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pods: Vec<_> = (11..15).map(|number| node.numbered_pod(number)).collect();
    let on_node = LinkRecorder::start(node.place());
    let in_pods: Vec<_> = pods
        .iter()
        .map(|pod| LinkRecorder::start(pod.place()))
        .collect();
    for pod in &pods {
        pod.add().success();
    }

    let events = on_node.events();
    for pod in &pods {
        let host = pod.host_link();
        assert!(
            events.iter().any(|event| event.name == host),
            "no word of {host}: {events:?}"
        );
    }
    only_born(&events);
    for recorder in &in_pods {
        let events = recorder.events();
        assert!(
            events.iter().any(|event| event.name == "eth0"),
            "no word of eth0: {events:?}"
        );
        only_born(&events);
    }
}

/// ovs-vswitchd works through all of its ports at each message about a link of its namespace.
#[test]
fn open_vswitch_is_told_as_seldom_of_a_pod_as_the_kernel_can() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    let on_node = LinkRecorder::start(node.place());
    let told = || {
        // What the switch itself does to the link is then done, and told.
        node.await_vswitchd();
        node.await_vswitchd();
        let events = on_node.events();
        let of_pod = events
            .into_iter()
            .filter(|event| event.name == pod.host_link());
        of_pod.map(|event| event.change).collect::<Vec<_>>()
    };
    pod.add().success();
    let of_add = told();
    pod.del().success();
    let of_del = told();
    // Born, and its carrier; down, and gone. Each end of a port's life on the kernel's datapath
    // takes two more, which nobody can avoid: for its master (`ovs_netdev_link`,
    // `ovs_netdev_detach_dev`), and for being one more who wants it promiscuous, which
    // `dev_set_promiscuity` tells even of a link that is and stays so.
    let of_datapath = match datapath() {
        Datapath::System => 2,
        Datapath::Netdev => 0,
    };
    assert_eq!(of_add, vec![Change::New; 2 + of_datapath]);
    // A DEL removes row and link at the same time: those two come if the switch is the first.
    let mut expected = vec![Change::New, Change::Gone];
    if of_del != expected {
        expected.splice(..0, vec![Change::New; of_datapath]);
    }
    assert_eq!(of_del, expected);
}

/// Fails when a link went (a move is that too) or bore two names.
fn only_born(events: &[LinkEvent]) {
    let mut names = BTreeMap::new();
    for event in events {
        assert_eq!(event.change, Change::New, "{event:?}");
        let name = names.entry(event.index).or_insert(&event.name);
        assert_eq!(*name, &event.name, "link {} was renamed", event.index);
    }
}
