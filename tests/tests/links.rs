//! The promise "a link is born where it lives", as the kernel tells it.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::collections::BTreeMap;

use podwire_tests::links::{Change, LinkEvent, LinkRecorder};
use podwire_tests::{AgentOptions, TestNode};

#[test]
fn an_add_deletes_moves_and_renames_no_link() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node
        .start_agent(&AgentOptions::for_numbered_pods())
        .unwrap();
    let pods: Vec<_> = (11..15)
        .map(|number| node.numbered_pod(number).unwrap())
        .collect();
    let on_node = LinkRecorder::start(node.place()).unwrap();
    let in_pods: Vec<_> = pods
        .iter()
        .map(|pod| LinkRecorder::start(pod.place()).unwrap())
        .collect();
    for pod in &pods {
        pod.add().unwrap().success().unwrap();
    }

    let events = on_node.events().unwrap();
    for pod in &pods {
        let host = &pod.container[..15];
        assert!(
            events.iter().any(|event| event.name == host),
            "no word of {host}: {events:?}"
        );
    }
    only_born(&events);
    for recorder in &in_pods {
        let events = recorder.events().unwrap();
        assert!(
            events.iter().any(|event| event.name == "eth0"),
            "no word of eth0: {events:?}"
        );
        only_born(&events);
    }
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
