//! What a runtime gets when everything works, and when the agent says no.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use podwire_cni::spec::Command;
use podwire_cni::wire::Request;
use serde_json::json;

use crate::call::{Call, Outcome, PATIENCE, conf};
use crate::fake_agent::{FakeAgent, Post, await_close, socket_in, take_post};

const ALL_VERSIONS: &str = r#"["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]"#;

#[test]
fn an_add_posts_all_it_was_given_and_prints_the_answer_byte_for_byte() {
    let answer = "{\"cniVersion\":\"1.1.0\",\n  \"ips\": [] }\n";
    let agent = FakeAgent::answering(200, answer);
    let conf = conf(&agent.socket(), json!({"runtimeConfig": {"mac": "é"}}));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let outcome = Call::new("ADD")
        .env("TRACEPARENT", trace)
        .stdin(conf.clone())
        .run();
    outcome.assert_answer(answer.as_bytes());

    let Post { head, body } = agent.end();
    assert!(head.starts_with("POST /v1/cni HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\npodwire-wire: 1"), "{head}");
    let request = Request::decode(&body).unwrap();
    let call = request.invocation;
    assert_eq!(call.command, Command::Add);
    assert_eq!(
        (call.container_id.as_str(), call.ifname.as_str()),
        ("0a1b2c", "eth0")
    );
    assert_eq!(
        (call.netns.as_str(), call.path.as_str()),
        ("/run/netns/pod", "/opt/cni/bin")
    );
    assert_eq!(call.args, "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web");
    assert_eq!(request.config.get().as_bytes(), conf);
    assert_eq!(request.traceparent.as_deref(), Some(trace));
}

#[test]
fn what_the_reply_has_for_stderr_goes_there_and_the_answer_alone_to_stdout() {
    for (status, answer) in [
        (200, r#"{"cniVersion":"1.1.0"}"#),
        (500, r#"{"cniVersion":"1.1.0","code":11,"msg":"later"}"#),
    ] {
        let remark = "no lease, asking é again\n";
        let reply = format!(
            "HTTP/1.1 {status} Some Words\r\ncontent-length: {}\r\npodwire-stderr: \
             {}\r\n\r\n{answer}{remark}",
            answer.len() + remark.len(),
            remark.len()
        );
        let agent = FakeAgent::raw(reply);
        let outcome = Call::new("ADD").to(&agent.socket()).run();
        assert_eq!(outcome.stdout, answer.as_bytes());
        assert_eq!(outcome.stderr, remark);
        assert_eq!(outcome.exit, Some(i32::from(status != 200)));
        assert!(Request::decode(&agent.end().body).unwrap().takes_stderr);
    }
}

#[test]
fn the_environment_is_posted_for_a_delegated_plugin_and_for_nobody_else() {
    for (extra, wanted) in [
        (json!({"ipam": {"type": "host-local"}}), Some("7")),
        (json!({}), None),
    ] {
        let agent = FakeAgent::answering(200, "{}");
        let conf = conf(&agent.socket(), extra);
        Call::new("ADD").env("PROBE", "7").stdin(conf).run();
        let request = Request::decode(&agent.end().body).unwrap();
        let seen = request.environment.get("PROBE").map(String::as_str);
        assert_eq!(seen, wanted);
        assert!(!request.environment.contains_key("CNI_COMMAND"));
    }
}

#[test]
fn a_verb_without_an_answer_prints_nothing() {
    for verb in ["DEL", "CHECK", "GC", "STATUS"] {
        let agent = FakeAgent::answering(200, "");
        Call::new(verb).to(&agent.socket()).run().assert_answer(b"");
        let request = Request::decode(&agent.end().body).unwrap();
        assert_eq!(request.invocation.command.as_str(), verb);
    }
}

#[test]
fn del_needs_no_namespace() {
    for call in [
        Call::new("DEL").without("CNI_NETNS"),
        Call::new("DEL").env("CNI_NETNS", ""),
    ] {
        let agent = FakeAgent::answering(200, "");
        call.to(&agent.socket()).run().assert_answer(b"");
        assert_eq!(
            Request::decode(&agent.end().body).unwrap().invocation.netns,
            ""
        );
    }
}

#[test]
fn an_error_of_the_agent_is_printed_byte_for_byte() {
    for status in [400, 409, 500, 503] {
        let error = r#"{ "cniVersion":"1.0.0", "code":100, "msg":"newer sandbox", "details":"d" }"#;
        let agent = FakeAgent::answering(status, error);
        let outcome = Call::new("ADD").to(&agent.socket()).run();
        assert_eq!(
            outcome.error(),
            (100, "newer sandbox".into(), "1.0.0".into())
        );
        assert_eq!(outcome.stdout, error.as_bytes());
        agent.end();
    }
}

#[test]
fn a_large_answer_comes_out_whole() {
    let answer = json!({"cniVersion": "1.1.0", "x": "é".repeat(300_000)}).to_string();
    let agent = FakeAgent::answering(200, &answer);
    Call::new("ADD")
        .to(&agent.socket())
        .run()
        .assert_answer(answer.as_bytes());
    agent.end();
}

#[test]
fn the_socket_comes_from_the_configuration_else_from_the_environment() {
    let agent = FakeAgent::answering(200, "");
    let plain = r#"{"cniVersion":"1.0.0","name":"pods","type":"podwire-cni"}"#;
    let socket = agent.socket().to_str().unwrap().to_owned();
    Call::new("DEL")
        .env("PODWIRE_SOCKET", &socket)
        .stdin(plain)
        .run()
        .assert_answer(b"");
    agent.end();

    let agent = FakeAgent::answering(200, "");
    let call = Call::new("DEL").env("PODWIRE_SOCKET", "/nowhere");
    call.to(&agent.socket()).run().assert_answer(b"");
    agent.end();
}

#[test]
fn version_needs_neither_agent_nor_stdin_nor_other_variables() {
    let cases: [(&[u8], &str); 7] = [
        (b"", "1.1.0"),
        (b"garbage", "1.1.0"),
        (b"\xff", "1.1.0"),
        (br#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
        (
            br#"{"cniVersion":"0.3.0","name":"pods","agentSocket":"/nowhere"}"#,
            "0.3.0",
        ),
        (br#"{"cniVersion":"0.2.0"}"#, "1.1.0"),
        (br#"{"cniVersion":"9.0.0"}"#, "1.1.0"),
    ];
    for (stdin, version) in cases {
        let expected =
            format!(r#"{{"cniVersion":"{version}","supportedVersions":{ALL_VERSIONS}}}"#);
        let bare = [
            "CNI_CONTAINERID",
            "CNI_NETNS",
            "CNI_IFNAME",
            "CNI_ARGS",
            "CNI_PATH",
        ]
        .into_iter()
        .fold(Call::new("VERSION"), Call::without);
        bare.stdin(stdin).run().assert_answer(expected.as_bytes());
        let dummies = Call::new("VERSION")
            .env("CNI_IFNAME", "dummy:0")
            .env("CNI_NETNS", "dummy");
        dummies
            .stdin(stdin)
            .run()
            .assert_answer(expected.as_bytes());
    }
}

#[test]
fn version_does_not_wait_for_the_end_of_stdin() {
    let (child, _) = Call::new("VERSION").spawn_silent();
    let mut child = child;
    let held_open = child.stdin.take();
    let expected = format!(r#"{{"cniVersion":"1.1.0","supportedVersions":{ALL_VERSIONS}}}"#);
    Outcome::of(child).assert_answer(expected.as_bytes());
    drop(held_open);
}

#[test]
fn it_works_under_the_incumbents_name() {
    let directory = tempfile::tempdir().unwrap();
    let original = Path::new(env!("CARGO_BIN_EXE_podwire-cni"));
    let link = directory.path().join("ovn-k8s-cni-overlay");
    symlink(original, &link).unwrap();
    let copy = directory.path().join("copy").join("ovn-k8s-cni-overlay");
    fs::create_dir(copy.parent().unwrap()).unwrap();
    fs::copy(original, &copy).unwrap();
    for binary in [&link, &copy] {
        let agent = FakeAgent::answering(200, "{}");
        Call::of(binary, "ADD")
            .to(&agent.socket())
            .run()
            .assert_answer(b"{}");
        agent.end();
        Call::of(binary, "FLY")
            .run()
            .assert_error(4, &["CNI_COMMAND", "\"FLY\""]);
    }
}

#[test]
fn a_trace_context_that_cannot_be_one_is_left_out() {
    let agent = FakeAgent::answering(200, "");
    let call = Call::new("DEL").env("TRACEPARENT", &"0".repeat(300));
    call.to(&agent.socket()).run().assert_answer(b"");
    assert_eq!(
        Request::decode(&agent.end().body).unwrap().traceparent,
        None
    );
}

#[test]
fn the_agent_sees_the_plugin_die() {
    let (seen, posted) = std::sync::mpsc::channel();
    let agent = FakeAgent::new(move |mut stream| {
        take_post(&mut stream);
        seen.send(()).unwrap();
        await_close(&mut stream);
    });
    let mut child = Call::new("ADD").to(&agent.socket()).spawn();
    posted.recv_timeout(PATIENCE).unwrap();
    child.kill().unwrap();
    agent.end();
    child.wait().unwrap();
}

#[test]
fn a_runtime_that_has_gone_is_no_reason_to_crash() {
    let agent = FakeAgent::answering(200, "{}");
    let mut child = Call::new("ADD").to(&agent.socket()).spawn();
    drop(child.stdout.take());
    let outcome = Outcome::of(child);
    assert_eq!(outcome.exit, Some(1), "an exit code, not a signal");
    assert!(
        outcome.stderr.contains("could not be written to stdout"),
        "{}",
        outcome.stderr
    );
    agent.end();
}

#[test]
fn without_a_stdout_nothing_is_asked_of_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let script = format!("exec {} >&-", env!("CARGO_BIN_EXE_podwire-cni"));
    let sh = Call::of(Path::new("/bin/sh"), "ADD").arguments(&["-c", &script]);
    let conf = conf(&socket, json!({"timeoutSeconds": 1}));
    assert_eq!(sh.stdin(conf).run().exit, Some(1));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nobody was to connect");
}
