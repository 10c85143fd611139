//! `podwire doctor` alone brings broken nodes to a state in which nothing is wrong: its own
//! commands are run as it prints them, in its order, until it finds nothing more.

mod agent;
mod attachments;
mod patient;
mod pods;
mod role;
mod runtime;
mod switch;

use podwire_tests::TestNode;

/// What the doctor can't be brought to say on a whole node, and why.
const NEVER_SAID: [(&str, &str); 4] = [
    (
        "no-port",
        "the agent makes a row again at once, and an attachment without link and row goes",
    ),
    (
        "other-ofport",
        "a port on a network's own bridge; the test of that bridge runs its fix",
    ),
    ("pod-mtu", "only CHECK compares the pod's MTU"),
    (
        "del-unfinished",
        "told as left-over; `podwire check` tells of it",
    ),
];

fn with_ovs() -> TestNode {
    TestNode::with_ovs()
}

/// The names of the unit variants that begin with a line, as serde writes them.
fn kinds(source: &str, begin: &str) -> Vec<String> {
    let (_, body) = source.split_once(&format!("{begin} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let lines = body
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','));
    let variants = lines.filter(|line| line.chars().all(|c| c.is_ascii_alphanumeric()));
    let kebab = |variant: &str| {
        let mut text = String::new();
        for c in variant.chars() {
            if c.is_ascii_uppercase() && !text.is_empty() {
                text.push('-');
            }
            text.push(c.to_ascii_lowercase());
        }
        text
    };
    variants.map(kebab).collect()
}

/// `healthy_after` fails unless the finding was there, its own commands were run and it is gone;
/// `complains_of` fails when the finding has a fix.
#[test]
fn every_kind_of_finding_has_a_test_that_runs_its_fix() {
    let findings = include_str!("../../../agent/tools/src/doctor/kind.rs");
    let faults = include_str!("../../../agent/src/attach/check/fault.rs");
    let mut all = kinds(findings, "kinds!");
    all.extend(kinds(faults, "enum Fault"));
    assert!(all.len() > 50, "{all:?}");
    let tests = [
        include_str!("agent.rs"),
        include_str!("attachments.rs"),
        include_str!("pods.rs"),
        include_str!("role.rs"),
        include_str!("runtime.rs"),
        include_str!("switch.rs"),
    ];
    all.retain(|kind| {
        let quoted = format!("\"{kind}\"");
        let is_tested = tests.iter().any(|test| test.contains(&quoted));
        !is_tested && !NEVER_SAID.iter().any(|(never, _)| never == kind)
    });
    assert_eq!(all, [""; 0], "no test of these findings");
}
