//! podwire held to the CNI specification by the suite in conformance/, a test for each version.

use cni_conformance::spec::Version;
use cni_conformance::{Case, Kind, Outcome, Selection};
use podwire_tests::conformance::podwire;

fn assert_conforms(version: Version) {
    let selection = Selection {
        versions: vec![version],
        ..Selection::default()
    };
    let report = podwire(&selection, |_| {}).unwrap();
    let unexpected: Vec<String> = report
        .findings
        .iter()
        .filter(|finding| match &finding.outcome {
            Outcome::Pass => false,
            Outcome::NotApplicable(_) => !is_not_for_podwire(finding.case),
            Outcome::Fail(_) | Outcome::Skipped(_) => true,
        })
        .map(|finding| format!("{}: {:?}", finding.case.id, finding.outcome))
        .collect();
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    let asked = cni_conformance::cases().filter(|case| case.level(version).is_some());
    assert_eq!(report.findings.len(), asked.count());
}

/// It passes over members that it does not know, so there is nothing to say of one.
fn is_not_for_podwire(case: &Case) -> bool {
    case.id == "configuration/unsupported-field" || !case.kinds.contains(&Kind::Interface)
}

#[test]
fn podwire_conforms_to_0_3_0() {
    assert_conforms(Version::V0_3_0);
}

#[test]
fn podwire_conforms_to_0_3_1() {
    assert_conforms(Version::V0_3_1);
}

#[test]
fn podwire_conforms_to_0_4_0() {
    assert_conforms(Version::V0_4_0);
}

#[test]
fn podwire_conforms_to_1_0_0() {
    assert_conforms(Version::V1_0_0);
}

#[test]
fn podwire_conforms_to_1_1_0() {
    assert_conforms(Version::V1_1_0);
}
