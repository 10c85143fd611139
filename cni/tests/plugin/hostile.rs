//! Agents that are absent, late, silent or mad: the plugin always ends, with an error object
//! that names the socket and what happened.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use serde_json::json;

use crate::call::{Call, Outcome, conf};
use crate::fake_agent::{FakeAgent, await_close, reply, socket_in, take_post};

/// Calls ADD with a deadline of a second.
fn add<T: Send + 'static>(agent: &FakeAgent<T>) -> Outcome {
    Call::new("ADD")
        .stdin(conf(&agent.socket(), json!({"timeoutSeconds": 1})))
        .run()
}

#[test]
fn an_absent_agent_is_code_11_and_for_status_50() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    let path = socket.to_str().unwrap();
    let calls = ["ADD", "CHECK", "GC", "STATUS"].map(|verb| Call::new(verb).to(&socket).spawn());
    let ends = [(11, "15000"), (11, "15000"), (11, "15000"), (50, "12000")];
    for (call, (code, waited)) in calls.into_iter().zip(ends) {
        let waited = format!("for {waited} ms");
        Outcome::of(call).assert_error(code, &[path, "No such file", &waited, "podwire agent"]);
    }
}

#[test]
fn a_socket_that_a_dead_agent_left_behind_is_as_none() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    drop(UnixListener::bind(&socket).unwrap());
    for (verb, code) in [("STATUS", 50), ("ADD", 11)] {
        Call::new(verb)
            .stdin(conf(&socket, json!({"timeoutSeconds": 1})))
            .run()
            .assert_error(code, &["Connection refused", "not running"]);
    }
}

#[test]
fn an_agent_that_comes_late_is_found() {
    for verb in ["ADD", "STATUS"] {
        let directory = tempfile::tempdir().unwrap();
        let socket = socket_in(directory.path());
        let mut child = Call::new(verb).to(&socket).spawn();
        await_pause(&mut child);
        let agent = FakeAgent::at(directory, |mut stream| {
            take_post(&mut stream);
            stream.write_all(reply(200, "{}").as_bytes()).unwrap();
        });
        Outcome::of(child).assert_answer(b"{}");
        agent.end();
    }
}

/// Returns when the process is in clock_nanosleep(2): it has found nobody and pauses.
fn await_pause(child: &mut Child) {
    const CLOCK_NANOSLEEP: &str = "230 ";
    let pid = child.id();
    while !fs::read_to_string(format!("/proc/{pid}/syscall"))
        .unwrap()
        .starts_with(CLOCK_NANOSLEEP)
    {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended without a pause"
        );
        std::thread::yield_now();
    }
}

#[test]
fn an_agent_that_does_not_accept_is_said_to_be_busy() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_in(directory.path());
    let address = UnixAddr::new(&path).unwrap();
    let make = |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    let listener = make(SockFlag::SOCK_CLOEXEC);
    bind(listener.as_raw_fd(), &address).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let mut queued = Vec::new();
    loop {
        let client = make(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
        if connect(client.as_raw_fd(), &address).is_err() {
            break;
        }
        queued.push(client);
    }
    let calls = [("ADD", 11), ("STATUS", 50)].map(|(verb, code)| {
        (
            Call::new(verb)
                .stdin(conf(&path, json!({"timeoutSeconds": 1})))
                .spawn(),
            code,
        )
    });
    for (call, code) in calls {
        Outcome::of(call).assert_error(code, &[path.to_str().unwrap(), "busy"]);
    }
}

#[test]
fn an_agent_that_never_answers_is_waited_for_until_the_deadline() {
    for verb in ["ADD", "STATUS"] {
        let agent = FakeAgent::new(|mut stream| {
            take_post(&mut stream);
            await_close(&mut stream);
        });
        let outcome = Call::new(verb)
            .stdin(conf(&agent.socket(), json!({"timeoutSeconds": 1})))
            .run();
        let code = if verb == "STATUS" { 50 } else { 11 };
        outcome.assert_error(
            code,
            &[
                "no complete reply within 1 s (0 bytes arrived)",
                "agent.sock",
            ],
        );
        agent.end();
    }
}

#[test]
fn a_reply_that_trickles_does_not_move_the_deadline() {
    let agent = FakeAgent::new(|mut stream| {
        take_post(&mut stream);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n")
            .unwrap();
        // A byte whenever ten milliseconds have passed without the plugin closing its end.
        stream
            .set_read_timeout(Some(Duration::from_millis(10)))
            .unwrap();
        while stream.write_all(b" ").is_ok() && !matches!(stream.read(&mut [0]), Ok(0)) {}
    });
    add(&agent).assert_error(11, &["no complete reply within 1 s", "bytes arrived"]);
    agent.end();
}

#[test]
fn an_agent_that_does_not_read_does_not_hold_the_plugin() {
    let agent = FakeAgent::new(|stream| {
        // Its own read side stays untouched; poll tells when the plugin has gone.
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        poll(
            &mut [PollFd::new(stream.as_fd(), PollFlags::empty())],
            PollTimeout::NONE,
        )
        .unwrap();
    });
    let large = conf(
        &agent.socket(),
        json!({"timeoutSeconds": 1, "x": "a".repeat(1_000_000)}),
    );
    Call::new("ADD")
        .stdin(large)
        .run()
        .assert_error(11, &["no complete reply within 1 s"]);
    agent.end();
}

#[test]
fn a_refusal_before_the_request_was_read_is_still_printed() {
    let error = r#"{"cniVersion":"1.1.0","code":6,"msg":"too large"}"#;
    let agent = FakeAgent::new(move |mut stream| {
        stream.write_all(reply(413, error).as_bytes()).unwrap();
    });
    let large = conf(&agent.socket(), json!({"x": "a".repeat(1_000_000)}));
    let outcome = Call::new("ADD").stdin(large).run();
    assert_eq!(outcome.error().0, 6);
    assert_eq!(outcome.stdout, error.as_bytes());
    agent.end();
}

#[test]
fn a_connection_that_ends_too_early_is_code_11() {
    let whole = reply(200, "{\"cniVersion\":\"1.1.0\"}");
    for came in [0, 5, 17, 40, whole.len() - 1] {
        let agent = FakeAgent::raw(&whole.as_bytes()[..came]);
        add(&agent).assert_error(
            11,
            &["agent.sock", &format!("after {came} bytes of its reply")],
        );
        agent.end();
    }
    let agent = FakeAgent::new(|stream: UnixStream| drop(stream));
    add(&agent).assert_error(11, &["agent.sock", "log should have the reason"]);
    agent.end();
    let agent = FakeAgent::raw("");
    Call::new("STATUS")
        .to(&agent.socket())
        .run()
        .assert_error(50, &["after 0 bytes"]);
    agent.end();
}

#[test]
fn a_reply_that_is_not_the_agents_is_code_6_and_never_printed() {
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(20_000));
    let cases = [
        (
            "SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned(),
            "not an HTTP/1.1 status line",
        ),
        ("\r\n\r\n\r\n\r\n".to_owned(), "not an HTTP/1.1 status line"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            "transfer coding",
        ),
        ("HTTP/1.1 200 OK\r\n\r\n{}".to_owned(), "no Content-Length"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{}".to_owned(),
            "announces 1 bytes, but has 2",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n".to_owned(),
            "announces 99999999 bytes",
        ),
        (endless, "longer than 8192 bytes"),
        (reply(200, "<html>"), "status 200 has no CNI result"),
        (reply(200, "[]"), "status 200 has no CNI result"),
        (reply(200, "{} {}"), "status 200 has no CNI result"),
        (reply(200, ""), "status 200 has no CNI result"),
        (reply(404, "not found"), "status 404 has no CNI result"),
        (reply(500, ""), "status 500 has no CNI result"),
        (reply(500, "{}"), "status 500 has no CNI result"),
        (
            reply(302, r#"{"code":"x","msg":1}"#),
            "status 302 has no CNI result",
        ),
    ];
    for (bytes, text) in cases {
        let agent = FakeAgent::new(move |mut stream| {
            take_post(&mut stream);
            // The plugin may have seen enough before the end of it.
            let _ = stream.write_all(bytes.as_bytes());
            await_close(&mut stream);
        });
        add(&agent).assert_error(6, &["agent.sock", text]);
        agent.end();
    }
}
