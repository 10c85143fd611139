//! The suite judged by a plugin that does everything right, and by the same with one fault at a
//! time.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Output};
use std::sync::Mutex;

use cni_conformance::{Case, Kind, cases};

const SUITE: &str = env!("CARGO_BIN_EXE_cni-conformance");
const PLUGIN: &str = env!("CARGO_BIN_EXE_faulty-cni");

/// Which fault turns which case red.
const FAULTS: &[(&str, &str)] = &[
    ("version/lists-versions", "version-without-list"),
    ("version/echoes-version", "version-not-echoed"),
    ("version/needs-command-only", "version-wants-path"),
    ("version/refuses-unknown", "any-version"),
    ("version/no-check-before-0.4.0", "verbs-of-every-version"),
    ("version/no-gc-before-1.1.0", "verbs-of-every-version"),
    ("environment/unknown-command", "unknown-command-ok"),
    ("environment/add-requires", "add-without-variables"),
    ("environment/del-requires", "del-without-variables"),
    ("environment/check-requires", "check-without-variables"),
    ("environment/optional-args", "wants-args"),
    ("environment/container-id", "any-container-id"),
    ("environment/unusable-ifname", "renames-bad-ifname"),
    ("environment/no-netns", "makes-do-without-netns"),
    ("environment/code-4", "code-999-for-environment"),
    ("environment/names-variables", "variables-not-named"),
    ("configuration/undecodable", "undecodable-ok"),
    ("configuration/name-required", "nameless-ok"),
    ("configuration/name", "any-name"),
    (
        "configuration/unsupported-field",
        "unsupported-field-not-named",
    ),
    ("configuration/del-with-less", "del-wants-prev-result"),
    ("error/exit-status", "exits-0-on-error"),
    ("error/structure", "errors-as-text"),
    ("error/version", "errors-without-version"),
    ("error/reserved-codes", "reserved-code"),
    ("error/code-5", "code-6-for-io"),
    ("error/code-6", "code-7-for-undecodable"),
    ("error/code-7", "code-6-for-invalid"),
    ("add/outputs-result", "no-result"),
    ("add/creates-interface", "no-interface"),
    ("add/honours-ifname", "always-eth0"),
    ("add/refuses-existing", "replaces-existing"),
    ("add/refuses-twice", "replaces-existing"),
    ("add/del-after-failure", "failed-add-leaves-link"),
    ("add/without-status", "wants-status"),
    ("result/version", "result-in-another-version"),
    ("result/container-interface", "interfaces-omitted"),
    ("result/host-interfaces", "host-interface-omitted"),
    ("result/sandbox", "sandbox-by-other-path"),
    ("result/no-sandbox-on-host", "sandbox-on-host"),
    ("result/mac", "wrong-mac"),
    ("result/mtu", "no-mtu"),
    ("result/ips-form", "ips-without-prefix"),
    ("result/ips-version", "ips-without-version"),
    ("result/ips-interface", "wrong-interface-index"),
    ("result/ips-assigned", "address-not-assigned"),
    ("result/ips-complete", "ips-omitted"),
    ("result/routes-form", "routes-without-prefix"),
    ("result/routes-made", "routes-not-made"),
    ("result/dns-form", "dns-as-list"),
    ("result/abbreviated", "ipam-names-interface"),
    ("attachment/two-interfaces", "one-interface-per-container"),
    ("attachment/del-of-one", "del-by-container"),
    ("attachment/others-untouched", "del-takes-all"),
    ("attachment/add-again", "never-again"),
    ("attachment/own-addresses", "one-address-for-all"),
    ("chain/prev-result-accepted", "refuses-prev-result"),
    ("chain/prev-result-echoed", "prev-result-dropped"),
    ("chain/prev-result-merged", "prev-result-dropped"),
    ("chain/interface-indexes", "indexes-not-shifted"),
    ("chain/earlier-untouched", "changes-others"),
    ("chain/equivalent-result", "prev-result-dropped"),
    ("chain/undone", "mtu-not-undone"),
    ("del/removes-interface", "del-does-nothing"),
    ("del/releases-all", "del-keeps-address"),
    ("del/repeated", "del-once"),
    ("del/never-added", "del-once"),
    ("del/interface-gone", "del-wants-interface"),
    ("del/without-prev-result", "del-wants-prev-result"),
    ("del/without-netns", "del-wants-netns"),
    ("del/empty-netns", "del-wants-netns"),
    ("del/netns-gone", "del-wants-netns-there"),
    ("del/repeated-after-netns", "del-wants-netns-there"),
    ("check/after-add", "check-always-fails"),
    ("check/nothing-or-error", "check-prints-result"),
    ("check/needs-prev-result", "check-always-passes"),
    ("check/consults-prev-result", "check-always-passes"),
    ("check/later-routes", "check-exact-routes"),
    ("check/later-address", "check-exact-addresses"),
    ("check/interface-missing", "check-always-passes"),
    ("check/address-missing", "check-always-passes"),
    ("check/route-missing", "check-always-passes"),
    ("check/host-interface-missing", "check-always-passes"),
    ("concurrency/adds", "refuses-company"),
    ("concurrency/distinct-addresses", "one-address-for-all"),
    ("concurrency/adds-and-dels", "refuses-company"),
    ("ipam/found-in-path", "ipam-ignored"),
    ("ipam/type-is-a-name", "ipam-by-path"),
    ("ipam/parameters", "ipam-own-parameters"),
    ("ipam/environment", "ipam-clean-environment"),
    ("ipam/configuration", "ipam-section-only"),
    ("ipam/stderr", "ipam-stderr-dropped"),
    ("ipam/applied", "address-not-assigned"),
    ("ipam/passed-on", "ipam-dns-dropped"),
    ("ipam/add-error", "ipam-error-ignored"),
    ("ipam/add-error-undone", "ipam-not-undone"),
    ("ipam/add-error-leaves-nothing", "failed-add-leaves-link"),
    ("ipam/released-after-failure", "ipam-leaks-on-failure"),
    ("ipam/del", "ipam-del-dropped"),
    ("ipam/del-without-netns", "ipam-del-needs-netns"),
    ("ipam/del-error", "ipam-error-ignored"),
    ("ipam/check", "ipam-check-dropped"),
    ("ipam/check-error", "ipam-error-ignored"),
    ("ipam/status", "ipam-status-dropped"),
    ("ipam/status-error", "ipam-error-ignored"),
    ("ipam/gc", "ipam-gc-dropped"),
    ("ipam/gc-error", "gc-stops-at-error"),
    ("ipam/at-once", "refuses-company"),
    ("status/ready", "never-ready"),
    ("status/optional-path", "status-wants-path"),
    ("status/not-ready", "always-ready"),
    ("status/codes", "code-999-for-status"),
    ("status/others-go-on", "outage-is-final"),
    ("gc/parameters", "gc-wants-container"),
    ("gc/removes-stale", "gc-does-nothing"),
    ("gc/keeps-valid", "gc-takes-all"),
    ("gc/by-ifname", "gc-by-container"),
    ("gc/own-network", "gc-of-all-networks"),
    ("gc/repeated", "gc-wants-something"),
    ("gc/del-afterwards", "del-once"),
];

#[test]
fn every_case_has_a_fault_that_turns_it_red() {
    let tabled: BTreeSet<&str> = FAULTS.iter().map(|(case, _)| *case).collect();
    let known: BTreeSet<&str> = cases().map(|case| case.id).collect();
    assert_eq!(tabled, known);
    let table = Mutex::new(FAULTS.iter());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let next = table.lock().unwrap().next();
                    let Some((case, fault)) = next else { return };
                    assert_red(case, fault);
                }
            });
        }
    });
}

fn assert_red(id: &str, fault: &str) {
    let case = cases().find(|case| case.id == id).unwrap();
    let version = newest(case);
    let arguments = ["--case", id, "--spec", version, "--format", "tap"];
    let output = judge(case.kinds[0], fault, &arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let red = format!("not ok 1 - {id} in {version}");
    let point = text.lines().find(|line| line.starts_with(&red));
    assert!(
        point.is_some_and(|point| !point.contains("# SKIP")),
        "{id} with the fault {fault}:\n{text}"
    );
}

/// The newest version that asks for it.
fn newest(case: &Case) -> &'static str {
    use cni_conformance::spec::Version;
    let all = Version::ALL.into_iter().rev();
    let mut asking = all.filter(|version| case.level(*version).is_some());
    asking.next().unwrap().as_str()
}

/// Runs the suite on the plugin in a role and with a fault; none is the empty name.
fn judge(kind: Kind, fault: &str, arguments: &[&str]) -> Output {
    let mut conf = tempfile::NamedTempFile::new().unwrap();
    let (kind, role) = match kind {
        Kind::Interface => ("interface", ""),
        Kind::Chained => ("chained", r#", "role": "chained""#),
        Kind::Ipam => ("ipam", r#", "role": "ipam""#),
    };
    write!(conf, r#"{{"name": "pods", "type": "faulty-cni"{role}}}"#).unwrap();
    Command::new(SUITE)
        .args([
            "--plugin", PLUGIN, "--kind", kind, "--ipam", "yes", "--conf",
        ])
        .arg(conf.path())
        .args(["--outage", "touch /run/faulty-cni-outage"])
        .args(["--recovery", "rm /run/faulty-cni-outage"])
        .args(arguments)
        .env("FAULTY_CNI", fault)
        .output()
        .unwrap()
}

/// All cases of one version on the plugin without a fault.
fn assert_faultless(version: &str) {
    assert_no_fault(judge(
        Kind::Interface,
        "",
        &["--spec", version, "--format", "tap"],
    ));
}

fn assert_no_fault(output: Output) {
    let text = String::from_utf8(output.stdout).unwrap();
    // It has no member that it does not support, so there is nothing to say of one.
    let may_be_skipped =
        |line: &str| line.contains("unsupported-field") || line.contains("not for plugins of this");
    let expected =
        |line: &&str| line.starts_with("ok ") && (!line.contains("# SKIP") || may_be_skipped(line));
    let points = text.lines().filter(|line| line.contains("ok "));
    let unexpected: Vec<&str> = points.filter(|line| !expected(line)).collect();
    assert!(unexpected.is_empty(), "{text}");
    assert!(output.status.success());
}

#[test]
fn a_chained_plugin_without_fault_passes() {
    assert_no_fault(judge(Kind::Chained, "", &["--format", "tap"]));
}

#[test]
fn an_ipam_plugin_without_fault_passes() {
    assert_no_fault(judge(Kind::Ipam, "", &["--format", "tap"]));
}

#[test]
fn a_plugin_without_fault_passes_in_0_3_0() {
    assert_faultless("0.3.0");
}

#[test]
fn a_plugin_without_fault_passes_in_0_3_1() {
    assert_faultless("0.3.1");
}

#[test]
fn a_plugin_without_fault_passes_in_0_4_0() {
    assert_faultless("0.4.0");
}

#[test]
fn a_plugin_without_fault_passes_in_1_0_0() {
    assert_faultless("1.0.0");
}

#[test]
fn a_plugin_without_fault_passes_in_1_1_0() {
    assert_faultless("1.1.0");
}
