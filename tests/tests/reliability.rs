//! The agent dies, or fails, at each named step of ADD and DEL: what was interrupted is whole or
//! gone, and nothing hinders what comes after.

use std::net::IpAddr;

use podwire_tests::annotation::{entry, ipv4};
use podwire_tests::{AgentOptions, Leftovers, Pod, TestNode, traffic};

/// The steps of an ADD, in order, as agent/src/fault.rs lists them. Without ipam it has neither
/// `add-delegated` nor `add-leased`: see delegated_ipam.rs and dhcp.rs.
const ADD_STEPS: [&str; 7] = [
    "add-begun",
    "add-planned",
    "add-noted",
    "add-linked",
    "add-rows",
    "add-ofport",
    "add-live",
];

/// The steps of a DEL.
const DEL_STEPS: [&str; 5] = [
    "del-begun",
    "del-rows",
    "del-links",
    "del-released",
    "del-forgotten",
];

fn options() -> AgentOptions {
    AgentOptions::for_numbered_pods()
}

fn address() -> IpAddr {
    ipv4(11).parse().unwrap()
}

fn pod<'node>(node: &'node TestNode, name: &str) -> Pod<'node> {
    node.pod(name).on_default_network(&entry(11))
}

/// A later sandbox of the same pod, with the same address, is wired and talks.
fn assert_unhindered(node: &TestNode, sandbox: &Pod<'_>) {
    let next = sandbox.another_sandbox();
    next.add().success();
    traffic::ping(node.place(), address(), 1).unwrap();
    next.del().success();
}

#[test]
fn an_agent_killed_at_any_step_of_an_add_leaves_it_whole_or_gone() {
    let node = TestNode::with_ovs();
    for step in ADD_STEPS {
        let agent = node.start_agent(&options().killed_at(step));
        let sandbox = pod(&node, step);
        assert_eq!(sandbox.add().error().code, 11, "{step}");
        agent.await_end();

        let agent = node.start_agent(&options());
        if step == "add-live" {
            traffic::ping(node.place(), address(), 1).unwrap();
        } else {
            assert_eq!(node.leftovers(), Leftovers::default(), "{step}");
        }
        assert_unhindered(&node, &sandbox);
        sandbox.del().success();
        assert_eq!(node.leftovers(), Leftovers::default(), "{step}");
        agent.stop();
    }
}

#[test]
fn a_step_of_an_add_that_fails_takes_back_all_those_before_it() {
    let node = TestNode::with_ovs();
    for step in ADD_STEPS {
        let agent = node.start_agent(&options().failing_at(step));
        let sandbox = pod(&node, step);
        let error = sandbox.add().error();
        assert!(error.msg.contains(step), "{error:?}");
        assert_eq!(node.leftovers(), Leftovers::default(), "{step}");
        assert_unhindered(&node, &sandbox);
        assert_eq!(node.leftovers(), Leftovers::default(), "{step}");
        agent.stop();
    }
}

/// A sandbox whose agent dies at a step of its DEL.
fn killed_in_del<'node>(node: &'node TestNode, step: &str) -> Pod<'node> {
    let agent = node.start_agent(&options().killed_at(step));
    let sandbox = pod(node, step);
    sandbox.add().success();
    // The connection is lost in mid-DEL: the plugin leaves the DEL in the spool, and it counts as
    // done.
    sandbox.del().success();
    agent.await_end();
    sandbox
}

#[test]
fn an_agent_killed_at_any_step_of_a_del_is_followed_by_one_that_ends_it() {
    let node = TestNode::with_ovs();
    for step in DEL_STEPS {
        let sandbox = killed_in_del(&node, step);
        let agent = node.start_agent(&options());
        assert_eq!(node.leftovers(), Leftovers::default(), "{step}");
        assert_unhindered(&node, &sandbox);
        agent.stop();
    }
}

#[test]
fn a_del_whose_agent_and_plugin_were_both_killed_is_ended_by_the_next_agent_once_it_had_begun() {
    let node = TestNode::with_ovs();
    for step in DEL_STEPS {
        let sandbox = killed_in_del(&node, step);
        std::fs::remove_dir_all(node.path("/run/podwire/spool")).unwrap();

        let agent = node.start_agent(&options());
        if step == "del-begun" {
            traffic::ping(node.place(), address(), 1).unwrap();
            sandbox.del().success();
        }
        assert_eq!(node.leftovers(), Leftovers::default(), "{step}");
        agent.stop();
    }
}
