//! Hostile settings against a machine that must stay reachable: whatever would take its own ways
//! out is refused before the first change, wherever it comes from.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::lan::{API_SERVER, DATABASE, Lan};
use podwire_tests::machine::{Machine, Snapshot};
use podwire_tests::process::Finished;
use podwire_tests::{NodeRun, Words, agent_binary, without_own_variables};
use serde_json::{Value, json};

/// Flags, and what the refusal says of each.
const HOSTILE: &[(&str, &[&str])] = &[
    // The machine's network, or a part of it.
    (
        "--node-subnet 192.0.2.0/25 --cluster-subnet 192.0.0.0/16",
        &[
            "--node-subnet 192.0.2.0/25: this machine itself needs gateway 192.0.2.1, 192.0.2.0/24 \
             of link eth0: name another network",
            "--cluster-subnet 192.0.0.0/16: this machine itself needs gateway 192.0.2.1, \
             192.0.2.0/24 of link eth0",
        ],
    ),
    (
        "--node-subnet 192.0.2.0/24 --cluster-subnet 192.0.2.0/24",
        &[
            "--node-subnet 192.0.2.0/24: this machine itself needs gateway 192.0.2.1, 192.0.2.0/24",
            "--cluster-subnet 192.0.2.0/24: this machine itself needs gateway 192.0.2.1, 192.0.2.0",
        ],
    ),
    (
        "--node-subnet 192.0.2.128/25 --cluster-subnet 192.0.2.128/25",
        &[
            "--node-subnet 192.0.2.128/25: this machine itself needs 192.0.2.0/24 of link eth0",
            "--cluster-subnet 192.0.2.128/25: this machine itself needs 192.0.2.0/24 of link eth0",
        ],
    ),
    (
        "--node-subnet 2001:db8::/96 --cluster-subnet 2001:db8::/48",
        &[
            "--node-subnet 2001:db8::/96: this machine itself needs gateway 2001:db8::1, \
             2001:db8::/64 of link eth0",
            "--cluster-subnet 2001:db8::/48: this machine itself needs gateway 2001:db8::1",
        ],
    ),
    (
        "--service-cidr 192.0.2.0/28",
        &["--service-cidr 192.0.2.0/28: this machine itself needs gateway 192.0.2.1"],
    ),
    (
        "--service-cidr 2001:db8::/112",
        &["--service-cidr 2001:db8::/112: this machine itself needs gateway 2001:db8::1"],
    ),
    // Gateways and networks that only a route shows.
    (
        "--cluster-subnet 10.244.0.0/16,100.65.0.0/24",
        &["--cluster-subnet 100.65.0.0/24: this machine itself needs gateway 100.65.0.1"],
    ),
    (
        "--service-cidr 198.18.0.0/15",
        &["--service-cidr 198.18.0.0/15: this machine itself needs 198.18.7.0/24 of link eth0"],
    ),
    (
        "--service-cidr 198.51.100.0/25",
        &["--service-cidr 198.51.100.0/25: this machine itself needs 198.51.100.0/24 of link eth0"],
    ),
    (
        "--cluster-subnet 10.244.0.0/16,203.0.113.128/25",
        &["--cluster-subnet 203.0.113.128/25: this machine itself needs gateway 203.0.113.129"],
    ),
    // Servers.
    (
        "--node-subnet 203.0.113.0/26 --cluster-subnet 203.0.113.0/26",
        &[
            "--node-subnet 203.0.113.0/26: this machine itself needs API server 203.0.113.5, name \
             server 203.0.113.53, southbound database 203.0.113.6",
            "--cluster-subnet 203.0.113.0/26: this machine itself needs API server 203.0.113.5, \
             name server 203.0.113.53, southbound database 203.0.113.6",
        ],
    ),
    (
        "--cluster-subnet 10.244.0.0/16,203.0.113.4/31",
        &["--cluster-subnet 203.0.113.4/31: this machine itself needs API server 203.0.113.5"],
    ),
    (
        "--cluster-subnet 10.244.0.0/16,203.0.113.6/32",
        &["--cluster-subnet 203.0.113.6/32: this machine itself needs southbound database 203"],
    ),
    (
        "--ovn-remote tcp:[2001:db8:113::6]:6642 --service-cidr 2001:db8:113::/112",
        &["--service-cidr 2001:db8:113::/112: this machine itself needs southbound database 2001"],
    ),
    (
        "--service-cidr 203.0.113.48/28",
        &["--service-cidr 203.0.113.48/28: this machine itself needs name server 203.0.113.53"],
    ),
    // Tunnels that would end nowhere.
    (
        "--encap-ip 198.51.100.7",
        &["--encap-ip 198.51.100.7: this machine does not have this address: name one of "],
    ),
    (
        "--encap-ip 192.0.2.11,192.0.2.20",
        &["--encap-ip 192.0.2.20: this machine does not have this address"],
    ),
    (
        "--mtu 1450",
        &["--mtu 1450: eth0 has an MTU of 1500 bytes and tunnels take 58: name 1442 at most"],
    ),
];

/// Flags that no machine can have.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("--node-subnet 0.0.0.0/1", "it contains 0.0.0.0/8"),
    ("--cluster-subnet 0.0.0.0/1,128.0.0.0/1", "it contains 0.0."),
    ("--cluster-subnet 128.0.0.0/1", "it contains 169.254.0.0/16"),
    ("--cluster-subnet ::/1", "it contains ::/96"),
    ("--cluster-subnet 8000::/1", "it contains fe80::/10"),
    (
        "--service-cidr 64.0.0.0/3",
        "larger than any private network",
    ),
    ("--service-cidr 2000::/3", "larger than any private network"),
    ("--node-subnet 127.0.0.0/8", "this host's own (loopback)"),
    ("--service-cidr 127.8.0.0/16", "this host's own (loopback)"),
    ("--node-subnet 169.254.0.0/16", "are link-local"),
    ("--node-subnet fe80::/64", "are link-local"),
    ("--service-cidr 224.0.0.0/8", "are for multicast"),
    ("--service-cidr ff02::/112", "are for multicast"),
    ("--cluster-subnet 240.0.0.0/8", "are reserved"),
    ("--cluster-subnet 255.255.255.0/24", "are reserved"),
    ("--cluster-subnet 0.0.0.0/8", "are unspecified"),
    ("--encap-ip 127.0.0.1", "this host's own (loopback)"),
    ("--encap-ip ::1", "unspecified, loopback"),
    ("--encap-ip 0.0.0.0", "are unspecified"),
    ("--encap-ip 224.0.0.1", "are for multicast"),
    ("--encap-ip 169.254.1.1", "are link-local"),
    ("--encap-ip fe80::1", "are link-local"),
    ("--encap-ip 255.255.255.255", "are reserved"),
];

/// A machine in its network, as it was before.
struct Scene {
    machine: Machine,
    lan: Lan,
    server: ApiServer,
    before: Snapshot,
}

impl Scene {
    fn new() -> Self {
        let machine = Machine::new();
        let lan = Lan::around(&machine);
        let server = ApiServer::start_at(lan.place(), API_SERVER.parse().unwrap());
        for line in [
            "rule add priority 100 lookup 100",
            "route add 198.51.100.0/24 dev eth0 table 100 metric 7",
            "route add 203.0.113.192/26 nexthop via 192.0.2.1 nexthop via 203.0.113.129 dev eth0 \
             onlink",
            "route add 100.66.0.0/16 via 100.65.0.1 dev eth0 onlink",
            "route add 198.18.7.0/24 dev eth0 scope link",
        ] {
            machine.node().run("ip", line);
        }
        lan.assert_reached(&machine);
        let before = machine.snapshot();
        Self {
            machine,
            lan,
            server,
            before,
        }
    }

    /// A command line with access to the API server, and all flags that are not given.
    fn line(&self, verb: &str, flags: impl Words) -> Vec<String> {
        let mut flags = flags.words();
        if !flags.contains(&"--ovn-remote".to_owned()) {
            flags.extend(["--ovn-remote".into(), format!("tcp:{DATABASE}:6642")]);
        }
        flags.extend(["--k8s-apiserver".into(), self.server.url()]);
        self.machine.arguments(verb, flags)
    }

    /// One that leaves the node's subnets and the cluster's to others.
    fn line_without_subnets(&self, verb: &str) -> Vec<String> {
        without(
            without(self.line(verb, ""), "--node-subnet"),
            "--cluster-subnet",
        )
    }

    fn assert_refused(&self, refused: &Finished, said: &str) {
        assert_ne!(refused.status.code(), Some(0), "{refused:#?}");
        assert!(refused.stderr.contains(said), "{said}\n{refused:#?}");
    }

    fn assert_untouched(&self) {
        self.before.assert_same(&self.machine.snapshot());
        self.lan.assert_reached(&self.machine);
    }
}

/// A command line without the flags of this name.
fn without(line: Vec<String>, flag: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = line.into_iter();
    while let Some(word) = words.next() {
        match word == flag {
            true => drop(words.next()),
            false => kept.push(word),
        }
    }
    kept
}

#[test]
fn flags_that_take_the_machine_s_ways_out_are_refused_and_nothing_changes() {
    let scene = Scene::new();
    let node = scene.machine.node();
    for (flags, said) in HOSTILE {
        let planned = node.podwire(scene.line("plan", *flags));
        let refused = node.podwire(scene.line("init", *flags));
        assert_eq!(planned.status.code(), Some(1), "{planned:#?}");
        assert_eq!(refused.status.code(), Some(1), "{flags}\n{refused:#?}");
        let begins = "podwire node: this machine can't join the network, so nothing was changed:";
        assert!(refused.stderr.starts_with(begins), "{refused:#?}");
        for said in *said {
            scene.assert_refused(&refused, &format!("\n  {said}"));
            assert!(
                planned.stdout.contains(&format!("\n! {said}")),
                "{planned:#?}"
            );
        }
        assert_eq!(
            refused.stderr.lines().count(),
            said.len() + 1,
            "{refused:#?}"
        );
        assert!(planned.stdout.ends_with("init would refuse: see above\n"));
        scene.before.assert_same(&scene.machine.snapshot());
    }
    for (flags, said) in IMPOSSIBLE {
        for verb in ["plan", "init"] {
            let refused = node.podwire(scene.line(verb, *flags));
            scene.assert_refused(&refused, said);
            assert_eq!(refused.status.code(), Some(2), "{refused:#?}");
        }
    }
    scene.assert_untouched();
    // A smaller link can't carry IPv6 through a tunnel.
    node.run("ip", "link set eth0 mtu 1300");
    let before = scene.machine.snapshot();
    let refused = node.podwire(scene.line("init", ""));
    scene.assert_refused(
        &refused,
        "--node-subnet 10.244.1.0/24, fd00:10:244:1::/64: eth0 has an MTU of 1300 bytes and \
         tunnels take 58, but pods need 1280: raise the link's to 1338 at least",
    );
    before.assert_same(&scene.machine.snapshot());
    node.run("ip", "link set eth0 mtu 1500");
    // And with what is usual, all stays reachable too, also the second time.
    for steps in ["", "0 steps"] {
        let done = node.podwire(scene.line("init", "")).success("init");
        assert!(done.contains(steps), "{done}");
        scene.lan.assert_reached(&scene.machine);
    }
    scene.machine.cleanup("");
    scene.assert_untouched();
}

/// A Node with subnets in ovn-kubernetes' annotation.
fn with_subnets(subnets: &[&str]) -> Value {
    let mut node = apiserver::node("node-a", "192.0.2.11");
    let annotation = json!({ "default": subnets }).to_string();
    node["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] = annotation.into();
    node
}

#[test]
fn an_annotation_a_file_and_a_variable_are_refused_like_a_flag_and_named() {
    let scene = Scene::new();
    let node = scene.machine.node();
    for (subnets, said) in [
        (
            &["192.0.2.0/25"][..],
            "k8s.ovn.org/node-subnets 192.0.2.0/25: this machine itself needs gateway 192.0.2.1, \
             192.0.2.0/24 of link eth0: have the control plane assign another subnet",
        ),
        (
            &["10.244.1.0/24", "2001:db8::/64"],
            "k8s.ovn.org/node-subnets 2001:db8::/64: this machine itself needs gateway 2001:db8::1",
        ),
        (
            &["203.0.113.0/26"],
            "k8s.ovn.org/node-subnets 203.0.113.0/26: this machine itself needs API server 203.0",
        ),
        (
            &["10.96.1.0/24"],
            "k8s.ovn.org/node-subnets 10.96.1.0/24: it overlaps --service-cidr 10.96.0.0/16",
        ),
        (
            &["127.0.1.0/24"],
            "k8s.ovn.org/node-subnets 127.0.1.0/24: addresses of 127.0.0.0/8 are this host's own",
        ),
        (
            &["128.0.0.0/1"],
            "k8s.ovn.org/node-subnets 128.0.0.0/1: it contains 169.254.0.0/16",
        ),
    ] {
        scene.server.apply(with_subnets(subnets));
        for verb in ["plan", "init"] {
            let mut refused = node.podwire(scene.line_without_subnets(verb));
            if verb == "plan" {
                refused.stderr.push_str(&refused.stdout);
            }
            scene.assert_refused(&refused, said);
        }
        scene.before.assert_same(&scene.machine.snapshot());
    }
    scene.assert_untouched();

    let file = "/run/hostile.toml";
    let text = "[node]\nnode-subnets = [\"192.0.2.0/25\"]\nservice-cidrs = [\"0.0.0.0/1\"]\n";
    std::fs::write(node.path(file), text).unwrap();
    let line = |verb, kept: &str| {
        let line = scene.line_without_subnets(verb);
        let mut line = without(line, "--service-cidr");
        line.extend(["--config".to_owned(), file.to_owned()]);
        line.extend(kept.words());
        line
    };
    let refused = node.podwire(line("init", ""));
    scene.assert_refused(
        &refused,
        "--service-cidr 0.0.0.0/1: it contains 0.0.0.0/8, whose addresses are unspecified \
         (/run/hostile.toml: [node] service-cidrs)",
    );
    let refused = node.podwire(line("init", "--service-cidr 10.96.0.0/16"));
    scene.assert_refused(
        &refused,
        "192.0.2.0/24 of link eth0: name another network (/run/hostile",
    );
    node.run("rm", file);
    let mut command = Command::new(agent_binary());
    without_own_variables(&mut command);
    command.args(without(
        scene.line_without_subnets("init"),
        "--service-cidr",
    ));
    command.env("PODWIRE_NODE_SUBNETS", "10.244.1.0/24");
    command.env("PODWIRE_SERVICE_CIDRS", "192.0.2.0/28");
    let refused = scene.machine.finish(command);
    scene.assert_refused(
        &refused,
        "--service-cidr 192.0.2.0/28: this machine itself needs gateway 192.0.2.1, 192.0.2.0/24 of \
         link eth0: name another network ($PODWIRE_SERVICE_CIDRS)",
    );
    scene.assert_untouched();
}

fn page(machine: &Machine, path: &str) -> String {
    machine.node().place().run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9477").unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    })
}

#[test]
fn run_sets_up_nothing_while_the_annotation_takes_the_machine_s_ways_out() {
    let scene = Scene::new();
    let node = scene.machine.node();
    scene.server.apply(with_subnets(&["192.0.2.0/25"]));
    let run = NodeRun::launch(node, scene.line_without_subnets("run"));
    let said = "k8s.ovn.org/node-subnets 192.0.2.0/25: this machine itself needs gateway 192.0.2.1";
    run.await_state(&format!("STATUS=nothing is set up: {said}"));
    run.await_log(&format!("conflict: {said}"), 1);
    scene.server.await_events("the conflict", |events| {
        let is_it = |event: &Value| {
            event["reason"] == "NetworkConflict"
                && event["message"]
                    .as_str()
                    .is_some_and(|it| it.starts_with(said))
        };
        events.iter().any(is_it)
    });
    scene
        .before
        .assert_same_but("files", &scene.machine.snapshot());
    scene.lan.assert_reached(&scene.machine);
    let (_, examined) = node.podwire_json("doctor -o json");
    assert!(examined.to_string().contains(said), "{examined:#}");
    // Another one is set up at once; and that stays when the annotation is hostile again.
    scene.server.apply(with_subnets(&["10.244.1.0/24"]));
    run.await_state("READY=1");
    scene.lan.assert_reached(&scene.machine);
    let address = || node.run("ip", "-o address show ovn-k8s-mp0");
    for (subnets, said) in [
        (
            &["192.0.2.0/25"],
            "conflict: k8s.ovn.org/node-subnets 192.0.2.0/25: this machine",
        ),
        (
            &["224.0.0.0/24"],
            "conflict: k8s.ovn.org/node-subnets 224.0.0.0/24: addresses of",
        ),
    ] {
        let count = run.count(said);
        scene.server.apply(with_subnets(subnets));
        run.await_log(said, count + 1);
        // Meanwhile the node is kept.
        let text = "restored address 10.244.1.2/24";
        let count = run.count(text);
        node.run("ip", "address flush dev ovn-k8s-mp0");
        run.await_log(text, count + 1);
        assert!(!address().contains("192.0.2."), "{}", address());
        scene.lan.assert_reached(&scene.machine);
    }
    run.stop();
    scene.machine.cleanup("");
    scene.assert_untouched();
}

#[test]
fn a_network_that_comes_later_is_told_of_and_takes_nothing_away() {
    let scene = Scene::new();
    let node = scene.machine.node();
    let ip = |line: &str| drop(node.run("ip", line));
    let run = NodeRun::start(node, scene.line("run", "--metrics-address 127.0.0.1:9477"));
    let ours = || {
        let all = [
            "-o address show ovn-k8s-mp0 scope global",
            "-4 route show proto 112",
            "-6 route show proto 112",
        ];
        all.map(|line| node.run("ip", line)).concat()
    };
    let before = ours();
    ip("link add vpn type veth peer name vpn-far");
    ip("link set vpn up");
    let said = "conflict: --cluster-subnet 10.244.0.0/16: this machine itself needs \
                10.244.7.0/24 of link vpn";
    ip("address add 10.244.7.7/24 dev vpn");
    run.await_log(said, 1);
    run.await_state("STATUS=--cluster-subnet 10.244.0.0/16: this machine itself needs 10.244.7.0");
    assert_eq!(ours(), before);
    let metrics = page(&scene.machine, "/metrics");
    assert!(metrics.contains("podwire_node_conflicts 1\n"), "{metrics}");
    assert!(page(&scene.machine, "/healthz").starts_with("HTTP/1.1 503 "));
    let (code, shown) = node.podwire_json(scene.line("show", "-o json"));
    assert_eq!(code, Some(1), "{shown:#}");
    assert!(
        shown["conflicts"][0]
            .as_str()
            .unwrap()
            .contains("10.244.7.0/24 of link vpn")
    );
    // What the operator takes away stays away, and what is in no conflict comes back.
    ip("route del 10.244.0.0/16");
    ip("route del 10.96.0.0/16");
    run.await_log("restored route 10.96.0.0/16", 1);
    let (_, shown) = node.podwire_json(scene.line("show", "-o json"));
    let items = shown["items"].as_array().unwrap();
    let refused: Vec<&Value> = items.iter().filter(|it| it["state"] != "ok").collect();
    assert_eq!(refused.len(), 1, "{shown:#}");
    assert_eq!(refused[0]["state"], "refused");
    assert!(
        refused[0]["item"]
            .as_str()
            .unwrap()
            .starts_with("route 10.244.0.0/16 via")
    );
    // A restart is no reason to take anything away or to make it, nor is init.
    let flushed = ours();
    assert!(run.stop().success());
    let refused = node.podwire(scene.line("init", ""));
    scene.assert_refused(
        &refused,
        "10.244.7.0/24 of link vpn: name another network\n",
    );
    assert_eq!(ours(), flushed);
    let run = NodeRun::launch(node, scene.line("run", ""));
    run.await_log(said, 2);
    run.await_state("STATUS=--cluster-subnet 10.244.0.0/16: this machine itself needs 10.244.7.0");
    assert_eq!(ours(), flushed);
    // A route without an address is noticed too.
    ip("route add 10.96.32.0/20 dev vpn");
    run.await_log(
        "conflict: --service-cidr 10.96.0.0/16: this machine itself needs 10.96.32.0/20",
        1,
    );
    ip("route del 10.96.32.0/20");
    run.await_log("no longer a conflict: --service-cidr 10.96.0.0/16", 1);
    // When it goes, all is as before.
    ip("link del vpn");
    run.await_log("no longer a conflict: --cluster-subnet 10.244.0.0/16", 1);
    run.await_state("READY=1");
    assert_eq!(ours(), before);
    run.stop();
    scene.machine.cleanup("");
    scene.assert_untouched();
}
