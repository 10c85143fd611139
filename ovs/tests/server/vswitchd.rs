//! With a real ovs-vswitchd behind the database. Its dummy datapath keeps everything in its own
//! memory, so it needs no privilege.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use podwire_ovs::replica::Row;
use podwire_ovs::unixctl::Unixctl;
use podwire_ovs::vswitch::{self, PortSpec, StringMap};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixture::{Server, bridge, daemon, init, soon};

pub(crate) struct Vswitchd(Child);

impl Vswitchd {
    pub(crate) fn start(server: &Server) -> Self {
        let process = daemon("ovs-vswitchd")
            .arg(format!("unix:{}", server.socket().display()))
            .args([
                "--enable-dummy=override",
                "--disable-system",
                "--disable-system-route",
            ])
            .args(["--no-chdir", "--pidfile", "-vconsole:off", "-vsyslog:off"])
            .env("OVS_RUNDIR", server.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ovs-vswitchd of the package openvswitch-switch");
        Self(process)
    }
}

impl Drop for Vswitchd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What ends the wait for a port: the port's number, or why there is none.
fn ofport_or_error(row: Option<&Row<'_>>) -> Option<Result<i64, String>> {
    let Some(row) = row else {
        return Some(Err("the row is gone".to_owned()));
    };
    match (row.integer("ofport"), row.str("error")) {
        (Some(-1) | None, Some(error)) => Some(Err(error.to_owned())),
        (ofport, _) => ofport.filter(|number| *number > 0).map(Ok),
    }
}

#[tokio::test]
async fn ofport_ends_the_wait_and_so_does_an_error_in_the_row() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br-int").await;
    let _vswitchd = Vswitchd::start(&server);
    let spec = |name: &str, interface_type: &str| PortSpec {
        name: name.to_owned(),
        interface_type: Some(interface_type.to_owned()),
        external_ids: StringMap::from([("iface-id".to_owned(), name.to_owned())]),
        ..PortSpec::default()
    };
    for (name, interface_type, expected) in [
        ("good", "dummy", Ok(1)),
        (
            "bad",
            "patch",
            Err("patch type requires valid 'peer' argument"),
        ),
    ] {
        let add = vswitch::add_port(bridge, &spec(name, interface_type), &[]);
        let outcome = client.transact(&add.transaction, soon()).await.unwrap();
        let interface = outcome.uuid(add.interface).unwrap();
        let ofport = client
            .wait_row("Interface", interface, soon(), ofport_or_error)
            .await
            .unwrap();
        match expected {
            Ok(number) => assert_eq!(ofport, Ok(number)),
            Err(text) => assert!(
                ofport.as_ref().is_err_and(|error| error.contains(text)),
                "{ofport:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_stopped_vswitchd_shows_on_its_control_socket_only() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br-int").await;
    let vswitchd = Vswitchd::start(&server);
    client
        .wait("ovs-vswitchd to have begun", soon(), |db| {
            db.bridge_by_name("br-int")?
                .row()
                .str("datapath_id")
                .map(drop)
        })
        .await
        .unwrap();
    let control = Unixctl::for_daemon(server.path(), "ovs-vswitchd").unwrap();
    assert!(control.is_alive(soon()).await);
    let signal = |signal: &str| {
        assert!(
            Command::new("kill")
                .args([signal, &vswitchd.0.id().to_string()])
                .status()
                .unwrap()
                .success()
        )
    };
    signal("-STOP");
    let spec = PortSpec {
        name: "p0".to_owned(),
        ..PortSpec::default()
    };
    let add = vswitch::add_port(bridge, &spec, &[]);
    let interface = client
        .transact(&add.transaction, soon())
        .await
        .unwrap()
        .uuid(add.interface)
        .unwrap();
    let brief = Instant::now() + Duration::from_millis(30);
    client
        .wait_row("Interface", interface, brief, ofport_or_error)
        .await
        .unwrap_err();
    assert!(!control.is_alive(brief).await);
    signal("-CONT");
    client
        .wait_row("Interface", interface, soon(), ofport_or_error)
        .await
        .unwrap()
        .unwrap();
}

/// `cargo test --release -- --ignored --nocapture measure`: times for docs, in one run so that they
/// can be compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test"]
async fn measure_adding_ports() {
    for (group, label) in [
        (
            podwire_ovs::client::GroupCommit::OFF,
            "one transaction each",
        ),
        (Default::default(), "group commit"),
    ] {
        let server = Server::start();
        let config = podwire_ovs::client::ClientConfig {
            group,
            ..server.config()
        };
        let client = podwire_ovs::client::Client::start(config);
        let root = init(&client).await;
        let bridge = bridge(&client, root, "br-int").await;
        let _vswitchd = Vswitchd::start(&server);
        let mut replies = Vec::new();
        let mut ofports = Vec::new();
        for number in 0..50 {
            let (reply, ofport) = add_and_wait(&client, bridge, &format!("s{number}")).await;
            replies.push(reply);
            ofports.push(ofport);
        }
        replies.sort();
        ofports.sort();
        println!(
            "{label}: one at a time, median of 50: reply {:?}, ofport {:?}",
            replies[25], ofports[25]
        );
        let before = client.stats();
        let started = Instant::now();
        let mut adds = JoinSet::new();
        for number in 0..200 {
            let client = client.clone();
            adds.spawn(async move { add_and_wait(&client, bridge, &format!("p{number}")).await });
        }
        let mut last_reply = Duration::ZERO;
        while let Some(add) = adds.join_next().await {
            last_reply = last_reply.max(add.unwrap().0);
        }
        let requests = client.stats().requests - before.requests;
        println!(
            "{label}: 200 at once: last reply {last_reply:?}, last ofport {:?}, {requests} \
             requests",
            started.elapsed()
        );
    }
}

async fn add_and_wait(
    client: &podwire_ovs::client::Client,
    bridge: podwire_ovs::value::Uuid,
    name: &str,
) -> (Duration, Duration) {
    let started = Instant::now();
    let add = vswitch::add_port(
        bridge,
        &PortSpec {
            name: name.to_owned(),
            ..PortSpec::default()
        },
        &[],
    );
    let outcome = client.transact(&add.transaction, soon()).await.unwrap();
    let reply = started.elapsed();
    let interface = outcome.uuid(add.interface).unwrap();
    client
        .wait_row("Interface", interface, soon(), ofport_or_error)
        .await
        .unwrap()
        .unwrap();
    (reply, started.elapsed())
}
