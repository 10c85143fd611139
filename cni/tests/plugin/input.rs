//! Bad environments and bad configurations: each is an error object, and no agent hears of it.

use std::path::Path;

use nix::pty::openpty;
use serde_json::json;

use crate::call::{Call, Outcome, conf};

/// Nobody listens there; a call that gets that far says so.
const NOWHERE: &str = "/nonexistent/agent.sock";

fn good() -> Vec<u8> {
    conf(Path::new(NOWHERE), json!({}))
}

#[test]
fn a_missing_variable_is_code_4_and_named() {
    for verb in ["ADD", "CHECK"] {
        for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
            Call::new(verb)
                .without(name)
                .stdin(good())
                .run()
                .assert_error(4, &[verb, name]);
            Call::new(verb)
                .env(name, "")
                .stdin(good())
                .run()
                .assert_error(4, &[verb, name]);
        }
    }
    Call::new("DEL")
        .without("CNI_IFNAME")
        .stdin(good())
        .run()
        .assert_error(4, &["CNI_IFNAME"]);
    Call::new("")
        .run()
        .assert_error(4, &["CNI_COMMAND is missing"]);
    Call::new("ADD")
        .without("CNI_COMMAND")
        .run()
        .assert_error(4, &["CNI_COMMAND is missing"]);
}

#[test]
fn a_person_who_calls_it_is_told_what_it_is() {
    let terminal = openpty(None, None).unwrap();
    let outcome = Call::new("")
        .without("CNI_COMMAND")
        .stderr(terminal.slave)
        .run();
    outcome.assert_error(4, &["CNI_COMMAND is missing"]);
    let mut told = [0; 1024];
    let length = nix::unistd::read(&terminal.master, &mut told).unwrap();
    let told = String::from_utf8_lossy(&told[..length]);
    assert!(
        told.starts_with("podwire-cni: the CNI plugin of podwire"),
        "{told}"
    );
}

#[test]
fn an_invalid_or_over_long_variable_is_code_4_and_named() {
    let long = "a".repeat(5000);
    for (name, value) in [
        ("CNI_COMMAND", "add"),
        ("CNI_CONTAINERID", "../../etc"),
        ("CNI_CONTAINERID", &long),
        ("CNI_IFNAME", "eth0:1"),
        ("CNI_IFNAME", &long),
        ("CNI_NETNS", "netns"),
        ("CNI_NETNS", &format!("/{long}")),
        ("CNI_ARGS", &long.repeat(14)),
    ] {
        Call::new("ADD")
            .env(name, value)
            .stdin(good())
            .run()
            .assert_error(4, &[name]);
    }
}

#[test]
fn a_configuration_that_is_no_json_object_is_code_6() {
    let oversized = [good(), vec![b' '; 1 << 20]].concat();
    let cases: [(&[u8], &str); 8] = [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"cniVersion: 1.0.0", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (br#"{"cniVersion":"1.0.0""#, "not a JSON object"),
        (
            b"{\"cniVersion\":\"1.0.0\",\"name\":\"\xff\"}",
            "not UTF-8 from byte 30",
        ),
        (&oversized, "more than the 1048576 bytes allowed"),
    ];
    for (stdin, text) in cases {
        Call::new("ADD").stdin(stdin).run().assert_error(6, &[text]);
    }
}

#[test]
fn a_version_that_is_not_served_or_lacks_the_verb_is_code_1() {
    for version in ["", "0.1.0", "0.2.0", "1.2.0", "x"] {
        let conf = json!({"cniVersion": version, "name": "pods"}).to_string();
        Call::new("ADD")
            .stdin(conf)
            .run()
            .assert_error(1, &["cniVersion", "0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"]);
    }
    Call::new("DEL")
        .stdin("{}")
        .run()
        .assert_error(1, &["cniVersion is missing"]);
    for (verb, version) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")] {
        let conf = json!({"cniVersion": version, "name": "pods"}).to_string();
        Call::new(verb)
            .stdin(conf)
            .run()
            .assert_error(1, &[verb, version]);
    }
}

#[test]
fn a_wrong_member_that_the_plugin_acts_on_is_code_7_and_named() {
    for (name, value) in [
        ("agentSocket", json!("relative.sock")),
        ("agentSocket", json!(["/x"])),
        ("agentSocket", json!(format!("/{}", "s".repeat(120)))),
        ("timeoutSeconds", json!(0)),
        ("timeoutSeconds", json!("10")),
    ] {
        let outcome = Call::new("ADD")
            .stdin(conf(Path::new(NOWHERE), json!({name: value})))
            .run();
        let (code, msg, _) = outcome.error();
        assert_eq!(code, 7, "{msg}");
    }
}

#[test]
fn an_error_is_in_the_version_of_the_configuration_once_that_is_known() {
    let conf = conf(
        Path::new(NOWHERE),
        json!({"cniVersion": "0.3.1", "timeoutSeconds": 1}),
    );
    let (code, _, version) = Call::new("ADD").stdin(conf).run().error();
    assert_eq!((code, version.as_str()), (11, "0.3.1"));
    assert_eq!(Call::new("ADD").stdin("{").run().error().2, "1.1.0");
    let version = |call: Call, version: &str| {
        let conf = json!({"cniVersion": version, "name": "pods", "timeoutSeconds": 0});
        call.stdin(conf.to_string()).run().error().2
    };
    for verb in ["ADD", "CHECK", "GC", "STATUS"] {
        assert_eq!(version(Call::new(verb), "0.3.1"), "0.3.1", "{verb}");
        assert_eq!(version(Call::new(verb), "9.9.9"), "1.1.0", "{verb}");
    }
    for missing in ["CNI_COMMAND", "CNI_IFNAME"] {
        let call = Call::new("ADD").without(missing);
        assert_eq!(version(call, "0.4.0"), "0.4.0", "{missing}");
    }
}

#[test]
fn a_configuration_that_never_ends_is_not_waited_for_without_end() {
    let (mut child, _) = Call::new("STATUS").spawn_silent();
    let held_open = child.stdin.take();
    Outcome::of(child).assert_error(5, &["stdin did not end within 15 s", "0 bytes arrived"]);
    drop(held_open);
}
