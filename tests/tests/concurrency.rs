//! Many pods at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use podwire_tests::{AgentOptions, PluginRun, Pod, TestNode};

/// Runs `work` for every pod, so many at a time.
fn at_a_time(threads: usize, pods: &[Pod<'_>], work: impl Fn(&Pod<'_>) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(pod) = pods.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(pod);
                }
            });
        }
    });
}

#[test]
fn two_hundred_pods_sixteen_at_a_time_come_and_go() {
    const PODS: usize = 200;
    let node = TestNode::with_ovs();
    // 200 pods, the gateway, the network's and the broadcast address: as many as there must be.
    let subnet = "10.9.0.0/24,range=10.9.0.2-10.9.0.201";
    let _agent = node.start_agent(&AgentOptions::default().subnet(subnet).subnet("fd09::/64"));
    let pods: Vec<_> = (0..PODS)
        .map(|number| node.pod(&format!("pod{number}")))
        .collect();

    at_a_time(16, &pods, |pod| {
        pod.add().success();
    });
    let rows: Vec<_> = node
        .ovsdb_rows("Interface")
        .into_iter()
        .filter(|row| row["name"] != "br-int")
        .collect();
    assert_eq!(rows.len(), PODS);
    let distinct =
        |value: &dyn Fn(usize) -> String| (0..PODS).map(value).collect::<BTreeSet<_>>().len();
    assert_eq!(
        distinct(&|row| rows[row]["external_ids"]["ip_addresses"].to_string()),
        PODS
    );
    assert_eq!(
        distinct(&|row| rows[row]["external_ids"]["iface-id"].to_string()),
        PODS
    );
    assert_eq!(distinct(&|row| rows[row]["ofport"].to_string()), PODS);
    assert!(
        rows.iter()
            .all(|row| row["ofport"].as_i64().is_some_and(|ofport| ofport > 0))
    );

    at_a_time(16, &pods, |pod| {
        pod.del().success();
    });
    node.leftovers().assert_none();
}

#[test]
fn adds_and_dels_of_different_pods_interleave() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pods: Vec<_> = (0..32)
        .map(|number| node.pod(&format!("pod{number}")))
        .collect();
    at_a_time(8, &pods, |pod| {
        for _ in 0..3 {
            pod.add().success();
            pod.del().success();
        }
    });
    node.leftovers().assert_none();
}

#[test]
fn of_many_sandboxes_of_one_pod_one_wins_and_the_others_leave_nothing() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let first = node.pod("web");
    let mut sandboxes: Vec<_> = (0..7).map(|_| first.another_sandbox()).collect();
    sandboxes.push(first);
    at_a_time(8, &sandboxes, |sandbox| {
        let add: PluginRun = sandbox.add();
        // Superseded while it waited, or replaced after its success: both are right.
        if !add.succeeded() {
            assert_eq!(add.error().code, 100);
        }
    });
    let rows: Vec<_> = node
        .ovsdb_rows("Interface")
        .into_iter()
        .filter(|row| row["name"] != "br-int")
        .collect();
    assert_eq!(rows.len(), 1, "one port per pod and network: {rows:?}");
    at_a_time(8, &sandboxes, |sandbox| {
        sandbox.del().success();
    });
    node.leftovers().assert_none();
}
