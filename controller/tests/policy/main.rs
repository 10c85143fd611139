//! NetworkPolicies and those of the whole cluster: what the rows let pass is what the API says, for
//! every pair of pods of three namespaces, by an evaluator and an interpreter of matches that share
//! no code with the controller; by ovn-trace; and by packets.
//!
//! What others test, and where it is here:
//!
//! | cyclonus | |
//! |---|---|
//! | targets, rules | `generated::targets`, `cases` (deny all, an empty rule) |
//! | peers: none, one, two | `generated::peers`, `pairs_of_peers` |
//! | ports: none, one, two; names and numbers that nobody has | `generated::written_ports` |
//! | conflicts, by pods and by addresses | `generated::contradictions` |
//! | namespaces by their default label | `generated::peers` |
//! | actions: objects come, change and go | `steps` |
//! | examples, upstream's end-to-end tests | `cases`, `steps` |
//!
//! | Kubernetes, test/e2e/network/netpol | |
//! |---|---|
//! | default deny, allow all, selectors, expressions, both directions | `cases` |
//! | stacked policies, one that allows takes precedence | `cases`, `generated::contradictions` |
//! | blocks, their exceptions, and what another block has of those | `cases`, `generated::peers` |
//! | ports, names, protocols mistaken for another; UDP, SCTP | `generated::written_ports` |
//! | updated policies, namespaces and pods | `steps` |
//! | objects of the API itself (create, list, patch, endPort) | not here: the API server's |
//!
//! | network-policy-api, conformance | |
//! |---|---|
//! | each tier, direction, protocol, action; order; both directions | `tiers::generated` |
//! | networks, named ports | `tiers`, `tiers::generated` |
//! | nodes as peers | `tiers::generated`: podwire does not know them, and fails closed |
//! | priorities, integration with NetworkPolicies | `tiers`, `tiers::generated::combinations` |

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

mod cases;
mod frames;
mod generated;
mod oracle;
mod ovn;
mod packets;
mod rows;
mod steps;
mod tiers;
mod trace;
mod world;

use oracle::Oracle;
use rows::Rows;
use serde_json::{Value, json};
use world::{Packet, World, probes};

/// What passes that should not, and what does not that should.
fn differences(world: &World) -> Vec<String> {
    let (oracle, rows) = (Oracle::new(world), Rows::of(world));
    let wrong = probes(world).filter(|probe| {
        let passes = oracle.passes(probe);
        rows.passes(probe) != passes || rows.explained(probe) != passes
    });
    wrong
        .map(|it| format!("{it:?} is to pass: {}", oracle.passes(&it)))
        .collect()
}

#[test]
fn the_rows_of_each_case_let_pass_what_the_api_says() {
    compare(cases::all().into_iter(), World::new);
}

/// With a newer OVN NetworkPolicies have a tier, and mean the same.
#[test]
fn the_rows_of_each_case_mean_the_same_in_a_tier() {
    compare(cases::all().into_iter(), World::tiered);
}

#[test]
fn the_rows_of_policies_of_the_whole_cluster_let_pass_what_the_api_says() {
    compare(tiers::all().into_iter(), World::tiered);
}

fn compare<N: std::fmt::Display>(
    cases: impl ExactSizeIterator<Item = (N, Value)>,
    world: fn(Value) -> World,
) {
    let most = cases.len() * probes(&World::new(json!([]))).count();
    let mut passes = 0;
    for (name, policies) in cases {
        let world = world(policies);
        let wrong = differences(&world);
        assert!(
            wrong.is_empty(),
            "{name}: {} of them, as {}",
            wrong.len(),
            wrong[0]
        );
        let oracle = Oracle::new(&world);
        passes += probes(&world).filter(|probe| oracle.passes(probe)).count();
    }
    // The cases differ in what they let pass, or the comparison would say little.
    assert!(
        (most / 10..most * 99 / 100).contains(&passes),
        "{passes} of {most}"
    );
}

/// Every way to combine a rule's parts.
#[test]
fn the_rows_of_generated_cases_let_pass_what_the_api_says() {
    let all = generated::all();
    assert!(all.len() > 500, "{}", all.len());
    let of_namespaces = all.into_iter().map(|(name, it)| (name, World::new(it)));
    let of_cluster = tiers::generated::all().into_iter();
    let of_cluster = of_cluster.map(|(name, it)| (name, World::tiered(it)));
    for (at, (name, world)) in of_namespaces.chain(of_cluster).enumerate() {
        let (oracle, rows) = (Oracle::new(&world), Rows::of(&world));
        // Others in each case; ovn-trace has all of them.
        for probe in probes(&world).skip(at % 29).step_by(29) {
            let passes = oracle.passes(&probe);
            assert_eq!(rows.passes(&probe), passes, "{name}: {probe:?}");
            assert_eq!(
                rows.explained(&probe),
                passes,
                "explained, {name}: {probe:?}"
            );
        }
    }
}

/// Written by hand, for the evaluator could be as wrong as the rows.
#[test]
fn some_cases_let_pass_what_is_written_here() {
    for (name, from, to, passes) in cases::BY_HAND {
        let all = cases::all();
        let (_, policies) = all.into_iter().find(|(it, _)| it == name).unwrap();
        by_hand(&World::new(policies), name, (from, to, *passes));
    }
    for (name, from, to, passes) in tiers::BY_HAND {
        let all = tiers::all();
        let (_, policies) = all.into_iter().find(|(it, _)| it == name).unwrap();
        by_hand(&World::tiered(policies), name, (from, to, *passes));
    }
}

fn by_hand(world: &World, name: &str, (from, to, passes): (&str, &str, bool)) {
    let packet = Packet::parse(world, from, to);
    let rows = Rows::of(world);
    assert_eq!(rows.passes(&packet), passes, "{name}: {from} to {to}");
    let oracle = Oracle::new(world);
    assert_eq!(
        oracle.passes(&packet),
        passes,
        "the evaluator, {name}: {from} to {to}"
    );
}

/// A history of changes ends in the rows and members of a fresh start.
#[test]
fn policies_that_change_leave_nothing_behind() {
    let mut world = World::new(json!([]));
    let mut rows = Rows::of(&world);
    let cases = cases::all().into_iter().map(|(_, policies)| policies);
    let tiered = tiers::all().into_iter().map(|(_, policies)| policies);
    let steps = cases
        .clone()
        .map(|it| (false, it))
        .chain(tiered.map(|it| (true, it)));
    for (has_tiers, policies) in steps.chain(cases.map(|it| (false, it))) {
        (world.policies, world.has_tiers) = (policies, has_tiers);
        rows.change(&world);
        assert_eq!(rows, Rows::of(&world), "{}", world.policies);
    }
    // Labels of a pod and of a namespace, and the numbers of a port.
    for step in 0..6 {
        world.relabel(step);
        rows.change(&world);
        assert_eq!(rows, Rows::of(&world), "step {step}");
        assert_eq!(differences(&world), [""; 0], "step {step}");
    }
}

/// What a pod costs is members: its coming and going changes no row.
#[test]
fn a_pod_costs_members_alone() {
    let tiered = tiers::all()
        .into_iter()
        .map(|(name, it)| (name, World::tiered(it)));
    let cases = cases::all().into_iter();
    let cases = cases.map(|(name, it)| (name.to_owned(), World::new(it)));
    for (name, mut world) in cases.chain(tiered) {
        let before = Rows::of(&world);
        world.pods.push(world.pods[0].again());
        let after = Rows::of(&world);
        assert_eq!(before.shapes(), after.shapes(), "{name}");
        assert!(before.is_lean(), "{name}: {:?}", before.shapes());
    }
}
