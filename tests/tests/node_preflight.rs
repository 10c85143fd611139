//! What `podwire node plan` says of what is beside the machine: a southbound database behind TLS, a
//! clock that is off, no way to the outside.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use podwire_tests::machine::Machine;
use podwire_tests::ovn::Central;

/// A date far behind every machine's, as a server says it (RFC 9110 §5.6.7).
const LONG_AGO: &str = "HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                        Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// Serves this answer to whoever comes, while `work` is under way, which gets the port.
fn answering(machine: &Machine, answer: &str, work: impl FnOnce(u16)) {
    let place = machine.node().place();
    let listener = place.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let mut stream = stream.unwrap();
                scope.spawn(move || {
                    while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        work(port);
        is_over.store(true, Ordering::Release);
        place
            .run(|| TcpStream::connect(("127.0.0.1", port)))
            .unwrap();
    });
}

#[test]
fn a_clock_that_is_off_and_a_machine_without_a_way_out_are_told_of() {
    let machine = Machine::new();
    answering(&machine, LONG_AGO, |port| {
        let url = format!("http://127.0.0.1:{port}");
        let planned = machine
            .podwire_node("plan", format!("--k8s-apiserver {url}"))
            .stdout;
        let said = "s ahead of the API server's: certificates and leases go by it";
        assert!(planned.contains(said), "{planned}");
        assert!(!planned.contains("no default route"), "{planned}");
    });
    machine.node().run("ip", "route del default");
    let planned = machine.podwire_node("plan", "");
    let said = "there is no default route to find the uplink by: name it with --interface";
    assert!(planned.stderr.contains(said), "{planned:?}");
    let planned = machine.podwire_node("plan", "--interface eth0").stdout;
    let said = "note: there is no default route: pods can't reach the outside";
    assert!(planned.contains(said), "{planned}");
}

#[test]
fn a_southbound_database_behind_tls_is_asked_and_joined_by_the_keys_that_are_named() {
    let (central, files) = Central::with_tls();
    let node = central.node_without_controller("node-a", 1);
    node.make_bridge();
    let [key, certificate, ca] = files.of("node");
    let settings = [
        "--node-name",
        "node-a",
        "--mode",
        "ovn",
        "--interface",
        node.uplink(),
        "--node-subnet",
        "10.128.1.0/24",
        "--ovn-remote",
        "ssl:172.31.0.1:6643",
    ];
    let keys = [
        "--ovn-private-key",
        &key,
        "--ovn-certificate",
        &certificate,
        "--ovn-ca-cert",
        &ca,
    ];
    let podwire =
        |verb, keys: &[&str]| node.podwire(&[&["node", verb], &settings[..], keys].concat());
    let refused = podwire("init", &[]);
    let said = "ssl: needs keys, and Open vSwitch has none: name them by --ovn-private-key";
    assert!(refused.stderr.contains(said), "{refused:?}");
    // Whom it finds there, it finds by these keys.
    central.sbctl("chassis-add node-a geneve 172.31.0.99");
    central.sbctl("set chassis node-a hostname=other");
    let refused = podwire("init", &keys);
    let said = "system-id node-a is the chassis of other in the southbound database";
    assert!(refused.stderr.contains(said), "{refused:?}");
    central.sbctl("chassis-del node-a");
    podwire("init", &keys).success("podwire node init");
    node.start_controller();
    central.await_chassis("node-a");
    // And with them it leaves.
    let done = node.podwire("node cleanup --cluster");
    let done = done.success("podwire node cleanup");
    assert!(done.contains("removed TLS keys of Open vSwitch"), "{done}");
    assert!(
        done.contains("removed chassis node-a from the southbound"),
        "{done}"
    );
}
