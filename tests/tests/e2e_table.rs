//! What `make test-e2e` makes of Kubernetes' own reports: a spec that fails is a failure of the run
//! unless the list of known ones names it.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const KNOWN: &str = "# Those that fail.\n\n\
    [sig-network] Services should time out [Conformance]\n    OVN has\n    no time.\n";

/// The table of a report in which these specs passed and failed, beside that list.
fn table(passed: &[&str], failed: &[&str], known: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("conformance");
    fs::create_dir(&run).unwrap();
    let case = |name: &&str, inner: &str| format!("<testcase name=\"{name}\">{inner}</testcase>");
    let passed: String = passed.iter().map(|name| case(name, "")).collect();
    let failure = "<failure>a.go:7\nExpected | true</failure>";
    let failed: String = failed.iter().map(|name| case(name, failure)).collect();
    fs::write(run.join("output.txt"), "").unwrap();
    let report = format!("<testsuite>{passed}{failed}</testsuite>");
    fs::write(run.join("junit_01.xml"), report).unwrap();
    let list = directory.path().join("known");
    fs::write(&list, known).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/e2e-table");
    Command::new(script)
        .args([directory.path(), &list])
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_known_failure_is_shown_with_its_reason_and_fails_nothing() {
    let name = "[sig-network] Services should time out [LinuxOnly] [Conformance]";
    let output = table(&["[sig-network] Proxy should work"], &[name], KNOWN);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("| conformance | 2 | 1 | 1 | 0 |"), "{shown}");
    assert!(shown.contains("OVN has no time. (known)"), "{shown}");
}

#[test]
fn another_failure_fails_the_run_and_is_named() {
    let output = table(&[], &["[sig-network] Proxy should work"], KNOWN);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("is not a known failure: [sig-network] Proxy"),
        "{said}"
    );
    assert!(text(&output.stdout).contains(r"Expected \| true"));
}

#[test]
fn a_known_failure_that_passes_fails_the_run_and_is_named() {
    let output = table(&["[sig-network] Services should time out"], &[], KNOWN);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("take it from the list: [sig-network] Services"),
        "{said}"
    );
}

#[test]
fn a_spec_that_was_interrupted_has_not_passed() {
    let error = "\"><error>Interrupted</error></testcase><testcase name=\"other";
    let interrupted = format!("[sig-network] Proxy{error}");
    let output = table(&[interrupted.as_str()], &[], KNOWN);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("known failure: [sig-network] Proxy"),
        "{said}"
    );
}

#[test]
fn a_known_failure_needs_a_reason() {
    let output = table(&["[sig-network] Proxy"], &[], "[sig-network] Services\n");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("no reason below: [sig-network] Services"),
        "{said}"
    );
}

#[test]
fn the_list_of_known_failures_is_read() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/e2e-known-failures");
    let known = fs::read_to_string(list).unwrap();
    let names = known.lines().filter(|it| it.starts_with("[sig-network]"));
    let names: Vec<_> = names.collect();
    let output = table(&["[sig-network] Proxy"], &names, &known);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn what_fails_sometimes_may_pass() {
    let known = KNOWN.replace("OVN has", "Sometimes: OVN has");
    let name = "[sig-network] Services should time out";
    for (passed, failed) in [(&[name][..], &[][..]), (&[], &[name])] {
        let output = table(passed, failed, &known);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}
