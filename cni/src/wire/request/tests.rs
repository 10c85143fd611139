use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::spec::Command;

fn request(config: &str) -> Request {
    Request {
        invocation: Invocation {
            command: Command::Add,
            container_id: "0a1b".into(),
            netns: "/run/netns/a".into(),
            ifname: "eth0".into(),
            args: "K8S_POD_NAME=a\"b;X=é".into(),
            path: "/opt/cni/bin".into(),
        },
        config: RawValue::from_string(config.into()).unwrap(),
        environment: BTreeMap::new(),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        takes_stderr: true,
    }
}

fn refusal(body: &Value) -> (u16, u32, String) {
    let error = Request::decode(body.to_string().as_bytes()).unwrap_err();
    let status = error.status();
    let error: SpecError = error.into();
    (status, error.code.0, error.msg)
}

#[test]
fn a_request_has_this_form() {
    let body: Value = serde_json::from_slice(&request("{}").encode()).unwrap();
    let expected = json!({
        "version": 1, "command": "ADD", "container_id": "0a1b", "netns": "/run/netns/a",
        "ifname": "eth0",
        "args": "K8S_POD_NAME=a\"b;X=é", "path": "/opt/cni/bin", "config": {},
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "stderr": true,
    });
    assert_eq!(body, expected);
}

#[test]
fn the_configuration_passes_byte_for_byte() {
    let config = r#"{ "b" : 1.00, "a":"\u0041", "n": 123456789012345678901234567890 }"#;
    let sent = request(config);
    let got = Request::decode(&sent.encode()).unwrap();
    assert_eq!(got.config.get(), config);
    assert_eq!(got.invocation, sent.invocation);
    assert_eq!(got.traceparent, sent.traceparent);
    assert!(got.takes_stderr);
}

#[test]
fn the_environment_passes_as_it_is() {
    let mut sent = request("{}");
    sent.environment = BTreeMap::from([("A_B".into(), "c=\"d\"".into()), ("E".into(), "".into())]);
    let got = Request::decode(&sent.encode()).unwrap();
    assert_eq!(got.environment, sent.environment);
}

#[test]
fn a_version_we_do_not_speak_is_refused_whatever_else_is_in_the_request() {
    for body in [json!({"version": 2, "verb": ["?"]}), json!({"version": 0})] {
        let (status, code, msg) = refusal(&body);
        assert_eq!((status, code), (426, 1), "{msg}");
        assert!(msg.contains("wire version"), "{msg}");
    }
}

#[test]
fn unknown_members_are_passed_over_and_absent_ones_are_empty() {
    let body = json!({"version": 1, "command": "STATUS", "config": {}, "later": [1]});
    let request = Request::decode(body.to_string().as_bytes()).unwrap();
    assert_eq!(request.invocation, Invocation::bare(Command::Status));
    assert_eq!(request.traceparent, None);
    assert!(
        !request.takes_stderr,
        "a plugin that says nothing of it passes nothing on"
    );
}

#[test]
fn what_the_plugin_should_have_refused_is_refused_again() {
    let cases = [
        (
            json!({"version": 1, "command": "ADD", "config": {}}),
            400,
            4,
            "ADD needs the variables",
        ),
        (
            json!({"version": 1, "command": "NOPE", "config": {}}),
            400,
            4,
            "\"NOPE\" is not a CNI verb",
        ),
        (json!({"version": 1, "command": "GC"}), 400, 6, "config"),
        (json!({"command": "GC", "config": {}}), 400, 6, "version"),
        (
            json!({"version": "1", "command": "GC", "config": {}}),
            400,
            6,
            "not of wire version",
        ),
        (json!([]), 400, 6, "not of wire version"),
        (
            json!({"version": 1, "command": "DEL", "container_id": "../x", "ifname": "eth0",
                "config": {}}),
            400,
            4,
            "\"../x\" is not a container id",
        ),
        (
            json!({"version": 1, "command": "GC", "config": "a".repeat(MAX_CONFIG)}),
            413,
            6,
            "network configuration has",
        ),
        (
            json!({"version": 1, "command": "GC", "config": {}, "x": "a".repeat(MAX_REQUEST)}),
            413,
            6,
            "request has",
        ),
    ];
    for (body, status, code, text) in cases {
        let got = refusal(&body);
        assert_eq!((got.0, got.1), (status, code), "{}", got.2);
        assert!(got.2.contains(text), "{}", got.2);
    }
}

#[test]
fn the_largest_of_everything_still_fits() {
    let mut request = request(&format!("\"{}\"", "c".repeat(MAX_CONFIG - 2)));
    // The worst of UTF-8 for JSON: a control character takes six bytes.
    request.invocation.args = "\u{1}".repeat(crate::env::MAX_TEXT);
    request.invocation.path = "\u{1}".repeat(crate::env::MAX_TEXT);
    assert!(Request::decode(&request.encode()).is_ok());
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Request::decode(&bytes);
    }

    #[test]
    fn no_damage_to_a_request_makes_the_decoder_panic(at in any::<prop::sample::Index>(), byte: u8,
        cut: bool) {
        let mut bytes = request("{\"cniVersion\":\"1.0.0\"}").encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        let _ = Request::decode(&bytes);
    }
}
