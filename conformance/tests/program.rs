//! The program `cni-conformance`: what it prints, where, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SUITE: &str = env!("CARGO_BIN_EXE_cni-conformance");
const PLUGIN: &str = env!("CARGO_BIN_EXE_faulty-cni");

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        let bench = Bench(tempfile::tempdir().unwrap());
        bench.write("net.conf", r#"{"name": "pods", "type": "faulty-cni"}"#);
        bench
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn judge(&self, fault: &str, arguments: &[&str]) -> Output {
        Command::new(SUITE)
            .current_dir(self.0.path())
            .args(["--plugin", PLUGIN, "--conf", "net.conf"])
            .args(arguments)
            .env("FAULTY_CNI", fault)
            .output()
            .unwrap()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_exit_status_is_by_musts() {
    let bench = Bench::new();
    let status = |fault, case| {
        let output = bench.judge(fault, &["--case", case, "--spec", "1.0.0"]);
        output.status.code()
    };
    assert_eq!(status("", "result/version"), Some(0));
    assert_eq!(
        status("result-in-another-version", "result/version"),
        Some(1)
    );
    assert_eq!(
        status("errors-without-version", "error/version"),
        Some(0),
        "a SHOULD"
    );
}

#[test]
fn a_case_that_could_not_be_judged_ends_with_status_2() {
    let bench = Bench::new();
    let arguments = ["--case", "result/version", "--host-netns", "/no/such/path"];
    let output = bench.judge("", &arguments);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("/no/such/path"), "{told}");
}

#[test]
fn a_plugin_or_configuration_that_is_none_is_named() {
    let bench = Bench::new();
    bench.write("not-json.conf", "{");
    bench.write("nameless.conf", r#"{"type": "faulty-cni"}"#);
    for (plugin, conf, named) in [
        ("/no/such/plugin", "net.conf", "/no/such/plugin"),
        ("net.conf", "net.conf", "net.conf"),
        (PLUGIN, "absent.conf", "absent.conf"),
        (PLUGIN, "not-json.conf", "not a JSON object"),
        (PLUGIN, "nameless.conf", "`name` is missing"),
    ] {
        let output = Command::new(SUITE)
            .current_dir(bench.0.path())
            .args(["--plugin", plugin, "--conf", conf])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(named), "{told}");
    }
}

#[test]
fn the_list_has_every_case_with_its_sentence() {
    let output = Command::new(SUITE).arg("--list").output().unwrap();
    let listed = text(&output);
    let ids: BTreeSet<&str> = cni_conformance::cases().map(|case| case.id).collect();
    assert_eq!(
        ids.len(),
        cni_conformance::cases().count(),
        "each has its own"
    );
    for case in cni_conformance::cases() {
        assert!(listed.contains(case.id) && listed.contains(case.says));
    }
}

#[test]
fn a_pattern_selects_and_a_name_selects_one() {
    let select = |pattern: &str| {
        let output = Command::new(SUITE)
            .args(["--list", "--case", pattern])
            .output()
            .unwrap();
        let listed = text(&output);
        let ids = listed.lines().filter(|line| !line.starts_with(' '));
        ids.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(select("del/repeated"), ["del/repeated"]);
    assert_eq!(select("repeated-after"), ["del/repeated-after-netns"]);
    assert_eq!(
        select("del/rep*"),
        ["del/repeated", "del/repeated-after-netns"]
    );
    assert_eq!(select("*/rep*ed"), ["del/repeated", "gc/repeated"]);
}

#[test]
fn the_table_tells_what_is_broken_with_its_sentence() {
    let bench = Bench::new();
    let output = bench.judge("wrong-mac", &["--case", "result/m*", "--spec", "1.1.0"]);
    let table = text(&output);
    assert!(table.contains("result/mac  MUST    FAIL"), "{table}");
    assert!(table.contains("result/mtu  MUST    pass"), "{table}");
    assert!(
        table.contains("The hardware address of the interface"),
        "{table}"
    );
    assert!(table.contains("mac is \"02:00:00:00:00:01\""), "{table}");
    assert!(
        !table.contains('\x1b'),
        "colours where there is no terminal"
    );
}

#[test]
fn tap_has_a_point_for_each_case_and_version() {
    let bench = Bench::new();
    let output = bench.judge(
        "errors-without-version",
        &["--case", "error/*", "--format", "tap"],
    );
    let tap = text(&output);
    let mut lines = tap.lines();
    assert_eq!(lines.next(), Some("TAP version 14"));
    let points = tap
        .lines()
        .filter(|line| line.starts_with("ok ") || line.starts_with("not ok "));
    let plan: usize = lines
        .next()
        .unwrap()
        .strip_prefix("1..")
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(points.count(), plan);
    assert!(
        tap.contains("- error/version in 0.4.0 # TODO a SHOULD\n  ---\n"),
        "{tap}"
    );
    assert!(
        tap.contains("  found: \"ADD with a CNI_NETNS that is not there: cniVersion is missing\"")
    );
}

#[test]
fn junit_is_written_where_it_is_wanted_and_well_formed() {
    let bench = Bench::new();
    let arguments = [
        "--case",
        "result/*",
        "--format",
        "junit",
        "--output",
        "report.xml",
    ];
    let output = bench.judge("wrong-mac", &arguments);
    assert_eq!(text(&output), "");
    let xml = std::fs::read_to_string(bench.0.path().join("report.xml")).unwrap();
    assert!(
        xml.contains("<testsuite name=\"faulty-cni 1.1.0\""),
        "{xml}"
    );
    assert!(
        xml.contains("<failure message=\"mac is &quot;02:00:00:00:00:01&quot;"),
        "{xml}"
    );
    assert_eq!(xml.matches("<testcase ").count(), count_of_results());
    let opened = xml.matches("<testsuite ").count();
    assert_eq!(xml.matches("</testsuite>").count(), opened);
}

fn count_of_results() -> usize {
    use cni_conformance::spec::Version;
    let of_result = cni_conformance::cases().filter(|case| case.id.starts_with("result/"));
    let asked = |case: &cni_conformance::Case| {
        let all = Version::ALL.into_iter();
        all.filter(|version| case.level(*version).is_some()).count()
    };
    of_result.map(asked).sum()
}

#[test]
fn a_version_that_the_plugin_does_not_list_does_not_count() {
    // The reference plugin of Debian 12, where it is installed: it speaks up to 1.0.0.
    let plugin = Path::new("/usr/lib/cni/ptp");
    assert!(
        plugin.is_file(),
        "containernetworking-plugins is not installed"
    );
    let bench = Bench::new();
    bench.write(
        "ptp.conf",
        r#"{"name": "pods", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}"#,
    );
    let output = Command::new(SUITE)
        .current_dir(bench.0.path())
        .args(["--plugin", "/usr/lib/cni/ptp", "--conf", "ptp.conf"])
        .args(["--case", "gc/parameters", "--format", "tap"])
        .output()
        .unwrap();
    let tap = text(&output);
    assert!(
        tap.contains("ok 1 - gc/parameters in 1.1.0 # SKIP VERSION does not list 1.1.0"),
        "{tap}"
    );
    assert!(output.status.success());
}

#[test]
fn an_interrupt_ends_the_run_after_the_case_that_is_under_way() {
    let bench = Bench::new();
    // The first case's host sends it; one case, run in each version.
    let interrupt = "kill -INT $PPID";
    let arguments = [
        "--case",
        "result/version",
        "--format",
        "tap",
        "--prepare",
        interrupt,
    ];
    let output = bench.judge("", &arguments);
    assert_eq!(output.status.code(), Some(2));
    let tap = text(&output);
    assert!(tap.contains("not judged: the run was interrupted"), "{tap}");
}

#[test]
fn on_a_given_host_a_leak_is_seen_and_not_held_against_the_next_case() {
    let bench = Bench::new();
    let given = |fault: &str, case: &str| {
        // A host of our own to give: the plugin's files and links stay in it.
        let output = Command::new("unshare")
            .current_dir(bench.0.path())
            .args(["--mount", "--net", "sh", "-c"])
            .arg(
                "mount -t tmpfs none /run && mount -t sysfs none /sys && ip link set lo up \
                 && \"$@\"; ls /run; ip -o link show",
            )
            .args(["sh", SUITE, "--plugin", PLUGIN, "--conf", "net.conf"])
            .args([
                "--host-netns",
                "/proc/self/ns/net",
                "--state",
                "/run/faulty-cni",
            ])
            .args(["--spec", "1.0.0", "--format", "tap", "--case", case])
            .env("FAULTY_CNI", fault)
            .output()
            .unwrap();
        text(&output)
    };
    let whole = given("", "del/*");
    assert!(!whole.contains("not ok"), "{whole}");
    assert!(
        !whole.contains("vf") && !whole.contains("cni-conformance-"),
        "{whole}"
    );

    let leaky = given("del-keeps-address", "del/re*");
    assert!(
        leaky.contains("not ok 2 - del/releases-all in 1.0.0"),
        "{leaky}"
    );
    assert!(leaky.contains("ok 3 - del/repeated in 1.0.0\n"), "{leaky}");
    assert!(
        leaky.contains("ok 4 - del/repeated-after-netns in 1.0.0\n"),
        "{leaky}"
    );
}

#[test]
fn nothing_is_left_on_the_machine() {
    let before = seen();
    let bench = Bench::new();
    // A leak of the plugin's goes with the host that it was made on.
    let output = bench.judge(
        "del-does-nothing",
        &["--case", "del/re*", "--spec", "1.1.0"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(seen(), before);
}

/// Links and mounts of the machine that are of a kind that the suite makes.
fn seen() -> (Vec<String>, Vec<String>) {
    let links = Command::new("ip")
        .args(["-json", "link", "show"])
        .output()
        .unwrap();
    let links: Vec<Value> = serde_json::from_slice(&links.stdout).unwrap();
    let names = links.iter().map(|link| link["ifname"].to_string());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts
        .lines()
        .filter(|mount| mount.contains("cni-conformance"));
    (
        names.filter(|name| name.contains("vf")).collect(),
        mounts.map(str::to_owned).collect(),
    )
}
