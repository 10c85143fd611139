//! Selectors of pods by their places, compared with a look at all of them.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::collections::BTreeSet;

use podwire_cluster::api::{LabelRequirement, LabelSelector};
use podwire_cluster::{Labels, Name, Place, Selector, Selectors, Within};
use proptest::prelude::*;

const KEYS: [&str; 3] = ["app", "team", "tier"];
const VALUES: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 3] = ["x", "y", "z"];

fn labels() -> impl Strategy<Value = Labels> {
    let label = (0..KEYS.len(), 0..VALUES.len());
    proptest::collection::vec(label, 0..3).prop_map(|labels| {
        let text = |(key, value): (usize, usize)| (KEYS[key].to_owned(), VALUES[value].to_owned());
        labels.into_iter().map(text).collect()
    })
}

fn selector() -> impl Strategy<Value = Selector> {
    let operator = prop_oneof![
        Just("In"),
        Just("NotIn"),
        Just("Exists"),
        Just("DoesNotExist")
    ];
    let values = proptest::collection::btree_set(0..VALUES.len(), 1..3);
    let requirement = (0..KEYS.len(), operator, values).prop_map(|(key, operator, values)| {
        let values = values.into_iter().map(|it| VALUES[it].to_owned());
        LabelRequirement {
            key: KEYS[key].to_owned(),
            operator: operator.to_owned(),
            values: match operator {
                "In" | "NotIn" => values.collect(),
                _ => Vec::new(),
            },
        }
    });
    let requirements = proptest::collection::vec(requirement, 0..3);
    (labels(), requirements).prop_map(|(labels, requirements)| {
        let few = labels.into_iter().take(1).collect();
        let selector = LabelSelector {
            match_labels: few,
            match_expressions: requirements,
        };
        Selector::parse(&selector).unwrap()
    })
}

/// A selector of pods: of one namespace, or of those that another selects.
type Pods = (Result<usize, Selector>, Selector);

fn places((namespaces, pods): &Pods) -> Vec<Place> {
    match namespaces {
        Ok(number) => Place::of(Within::Namespace(&NAMESPACES[*number].into()), pods),
        Err(selector) => Place::of(Within::Matching(selector), pods),
    }
}

fn matches(
    (namespaces, pods): &Pods,
    (namespace, of_namespace): (usize, &Labels),
    own: &Labels,
) -> bool {
    let is_within = match namespaces {
        Ok(number) => *number == namespace,
        Err(selector) => selector.matches(of_namespace),
    };
    is_within && pods.matches(own)
}

proptest! {
    #[test]
    fn every_selector_that_matches_is_found_and_none_that_is_gone(
        selectors in proptest::collection::vec(
            (
                prop_oneof![(0..3_usize).prop_map(Ok), selector().prop_map(Err)],
                selector(),
                any::<bool>(),
            ),
            0..12,
        ),
        pods in proptest::collection::vec((0..3_usize, labels(), labels()), 1..12),
    ) {
        let mut index = Selectors::default();
        let all = selectors.into_iter();
        let all = all.map(|(namespaces, pods, stays)| ((namespaces, pods), stays));
        let all: Vec<(Pods, bool)> = all.collect();
        for (id, (selector, _)) in all.iter().enumerate() {
            index.insert(&id, places(selector));
        }
        for (id, (selector, _)) in all.iter().enumerate().filter(|(_, (_, stays))| !stays) {
            index.remove(&id, places(selector));
        }
        for (namespace, of_namespace, own) in &pods {
            let name: Name = NAMESPACES[*namespace].into();
            let candidates = index.candidates(&name, Some(of_namespace), own);
            prop_assert!(candidates.iter().all(|id| all[**id].1));
            let is = |id: &usize| matches(&all[*id].0, (*namespace, of_namespace), own);
            let found: BTreeSet<usize> = candidates.into_iter().copied().filter(is).collect();
            let naive = (0..all.len()).filter(|id| all[*id].1 && is(id)).collect();
            prop_assert_eq!(found, naive);
        }
    }
}

/// In a cluster of many applications a pod meets the selectors of its own, not those of all.
#[test]
fn a_pod_meets_few_of_many_selectors() {
    let of = |key: &str, value: &str| {
        let selector = LabelSelector {
            match_labels: [(key.to_owned(), value.to_owned())].into(),
            ..LabelSelector::default()
        };
        Selector::parse(&selector).unwrap()
    };
    let mut index = Selectors::default();
    for number in 0..1000 {
        let pods = of("app", &format!("app-{number}"));
        let all = Selector::default();
        index.insert(
            &(number, "everywhere"),
            Place::of(Within::Matching(&all), &pods),
        );
        let namespace: Name = format!("ns-{number}").into();
        index.insert(
            &(number, "own"),
            Place::of(Within::Namespace(&namespace), &all),
        );
        let team = of("team", &format!("team-{number}"));
        index.insert(&(number, "team"), Place::of(Within::Matching(&team), &all));
    }
    let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
    let of_namespace = labels("team", "team-7");
    let found = index.candidates(&"ns-7".into(), Some(&of_namespace), &labels("app", "app-7"));
    let found: Vec<&str> = found
        .into_iter()
        .map(|(number, what)| {
            assert_eq!(*number, 7);
            *what
        })
        .collect();
    assert_eq!(found, ["everywhere", "own", "team"]);
}
