//! What befalls single ports: a container id that comes again, a port removed by hand, a host end renamed or moved, a
//! database that hangs.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::thread;

use nix::sys::signal::Signal;
use podwire_tests::annotation::ipv4;
use podwire_tests::{AgentOptions, TestNode, traffic};

#[test]
fn a_container_id_that_comes_again_while_the_switch_stands_still_has_traffic() {
    let node = TestNode::with_ovs().unwrap();
    let _agent = node
        .start_agent(&AgentOptions::for_numbered_pods())
        .unwrap();
    let pod = node.wired_pod(11).unwrap();
    // Not the node: its kernel hears on the host end and would answer for the switch.
    let other = node.wired_pod(12).unwrap();
    let address = ipv4(11).parse().unwrap();
    traffic::ping(other.place(), address, 1).unwrap();
    for _ in 0..5 {
        // So ovs-vswitchd learns of both rows in one turn.
        node.signal_vswitchd(Signal::SIGSTOP).unwrap();
        pod.del().unwrap().success().unwrap();
        thread::scope(|scope| {
            let adding = scope.spawn(|| pod.add().unwrap().success().unwrap());
            node.await_port(&pod.container, true).unwrap();
            node.signal_vswitchd(Signal::SIGCONT).unwrap();
            adding.join().unwrap();
        });
        traffic::ping(other.place(), address, 1).unwrap();
    }
    for pod in [pod, other] {
        pod.del().unwrap().success().unwrap();
    }
    node.leftovers().unwrap().assert_none();
}
