use std::time::Duration;

use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use tokio::time::Instant;

use crate::fixture::{Server, soon};

#[tokio::test]
async fn a_daemon_is_found_by_its_pidfile_and_answers() {
    let server = Server::start();
    server.client().await; // by now the pidfile is written
    let control = Unixctl::for_daemon(server.path(), "ovsdb-server").unwrap();
    let version = control.call("version", &[], soon()).await.unwrap();
    assert!(
        version.starts_with("ovsdb-server (Open vSwitch)"),
        "{version}"
    );
    let list = control
        .call("ovsdb-server/list-dbs", &[], soon())
        .await
        .unwrap();
    assert!(list.contains("Open_vSwitch"), "{list}");
    assert!(control.is_alive(soon()).await);
}

#[tokio::test]
async fn a_refusal_comes_in_the_daemon_s_own_words() {
    let server = Server::start();
    server.client().await;
    let control = Unixctl::for_daemon(server.path(), "ovsdb-server").unwrap();
    let error = control
        .call("no/such \"command", &["an argument", "\u{1}"], soon())
        .await
        .unwrap_err();
    let UnixctlError::Refused { error: words, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(words.contains("not a valid command"), "{words}");
    let error = control.call("version", &["\0"], soon()).await.unwrap_err();
    assert!(matches!(error, UnixctlError::Argument(_)), "{error:?}");
}

#[tokio::test]
async fn a_stopped_daemon_is_told_from_a_dead_one() {
    let mut server = Server::start();
    server.client().await;
    let control = Unixctl::for_daemon(server.path(), "ovsdb-server").unwrap();
    server.freeze();
    let error = control
        .call("version", &[], Instant::now() + Duration::from_millis(30))
        .await
        .unwrap_err();
    assert!(matches!(error, UnixctlError::Timeout { .. }), "{error:?}");
    assert!(
        !control
            .is_alive(Instant::now() + Duration::from_millis(30))
            .await
    );
    server.kill();
    let error = control.call("version", &[], soon()).await.unwrap_err();
    assert!(matches!(error, UnixctlError::Connect { .. }), "{error:?}");
}

#[test]
fn without_a_pidfile_that_names_a_process_there_is_no_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let error = Unixctl::for_daemon(directory.path(), "ovs-vswitchd").unwrap_err();
    assert!(matches!(error, UnixctlError::Pidfile { .. }), "{error:?}");
    std::fs::write(directory.path().join("ovs-vswitchd.pid"), "nonsense\n").unwrap();
    let error = Unixctl::for_daemon(directory.path(), "ovs-vswitchd").unwrap_err();
    assert!(matches!(error, UnixctlError::NoPid { .. }), "{error:?}");
    std::fs::write(directory.path().join("ovs-vswitchd.pid"), "4711\n").unwrap();
    let control = Unixctl::for_daemon(directory.path(), "ovs-vswitchd").unwrap();
    assert_eq!(
        control.socket(),
        directory.path().join("ovs-vswitchd.4711.ctl")
    );
}
