//! A DEL that no agent took succeeds and waits; everything else is as it was.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use podwire_cni::spool::{DIRECTORY, MAX_ENTRIES, Spool};
use podwire_cni::wire::Request;

use crate::call::{Call, Outcome};
use crate::fake_agent::{FakeAgent, await_close, reply, socket_in, take_post};

fn files(socket: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(socket.with_file_name(DIRECTORY));
    let files = listing.into_iter().flatten();
    files.map(|file| file.unwrap().path()).collect()
}

/// The one request that waits beside this socket.
fn waiting(socket: &Path) -> Request {
    let spool = Spool::open(socket).unwrap();
    let [name] = <[_; 1]>::try_from(spool.names().unwrap()).unwrap();
    let spooled = spool.read(&name).unwrap().unwrap();
    Request::decode(spooled.request.get().as_bytes()).unwrap()
}

#[test]
fn a_del_that_finds_nobody_waits_with_its_stdin_and_environment() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    Call::new("DEL").to(&socket).run().assert_answer(b"");
    let request = waiting(&socket);
    assert_eq!(request.invocation.container_id, "0a1b2c");
    assert_eq!(
        request.invocation.args,
        "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web"
    );
    assert_eq!(request.invocation.path, "/opt/cni/bin");
    assert!(request.config.get().contains("agentSocket"));
}

#[test]
fn a_del_whose_connection_is_lost_in_mid_reply_waits_too() {
    for cut in [0, 1, 40] {
        let agent = FakeAgent::new(move |mut stream| {
            take_post(&mut stream);
            let reply = reply(200, "{\"a\":1}");
            std::io::Write::write_all(&mut stream, &reply.as_bytes()[..cut]).unwrap();
        });
        let socket = agent.socket();
        Call::new("DEL").to(&socket).run().assert_answer(b"");
        waiting(&socket);
        agent.end();
    }
}

#[test]
fn a_del_that_was_spooled_and_then_served_after_all_waits_no_longer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    let listener = UnixListener::bind(&socket).unwrap();
    let call = Call::new("DEL").to(&socket).spawn();
    drop(listener.accept().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(files(&socket).len(), 1, "written before the second try");
    take_post(&mut stream);
    std::io::Write::write_all(&mut stream, reply(200, "").as_bytes()).unwrap();
    await_close(&mut stream);
    Outcome::of(call).assert_answer(b"");
    assert!(files(&socket).is_empty());
}

#[test]
fn an_answer_is_an_answer_and_other_verbs_are_never_spooled() {
    let agent = FakeAgent::answering(500, r#"{"cniVersion":"1.1.0","code":11,"msg":"busy"}"#);
    let socket = agent.socket();
    Call::new("DEL")
        .to(&socket)
        .run()
        .assert_error(11, &["busy"]);
    assert!(files(&socket).is_empty());
    agent.end();

    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    let calls = ["ADD", "CHECK", "GC"].map(|verb| Call::new(verb).to(&socket).spawn());
    for call in calls {
        Outcome::of(call).assert_error(11, &["not running"]);
    }
    assert!(files(&socket).is_empty());
}

#[test]
fn a_full_spool_is_code_11_and_names_agent_and_spool() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(directory.path());
    let spool = Spool::open(&socket).unwrap();
    for number in 0..MAX_ENTRIES {
        fs::write(spool.path().join(format!("{number}.del")), b"").unwrap();
    }
    Call::new("DEL")
        .to(&socket)
        .run()
        .assert_error(11, &["not running", "is full: 1024 requests"]);
    assert_eq!(files(&socket).len(), MAX_ENTRIES);
}
