//! The tools for people, on a real agent and Open vSwitch: what each shows, and with which code it
//! ends.

use std::path::Path;

use nix::sys::signal::Signal;
use podwire_tests::{Agent, AgentOptions, TestNode, links};
use serde_json::{Value, json};

const WELL: Option<i32> = Some(0);
const UNWELL: Option<i32> = Some(1);
const BLIND: Option<i32> = Some(3);
const NOT_FOUND: Option<i32> = Some(4);

fn version_of_open_vswitch(node: &TestNode) -> String {
    // "ovs-vswitchd (Open vSwitch) 3.1.0"
    let switch = node.run("ovs-vswitchd", "--version");
    let words = switch.lines().next().unwrap().rsplit(' ');
    words.take(1).collect()
}

#[test]
fn status_tells_of_a_healthy_node_and_of_each_thing_that_is_not() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let _pods = ["a", "b"].map(|name| node.added_pod(name));
    let done = node.podwire("status");
    let version = version_of_open_vswitch(&node);
    let healthy = [
        "plain mode",
        ": ready",
        &format!("{version}, database connected and in sync, ovs-vswitchd answers"),
        "br-int: netdev datapath",
        "2 up, 0 waiting, 0 failed",
        "2 live",
        "10.186.0.0/22: 2 of 1021 used",
        "last errors   none",
    ];
    done.assert_says(WELL, &healthy);
    assert!(done.stdout.lines().count() <= 24, "{}", done.stdout);

    let failing = node.pod("c");
    let mut conf = podwire_tests::conf();
    conf["args"] = json!({"cni": {"ips": ["10.186.0.2/22"]}});
    failing.exec("ADD", &conf).error();
    node.kill_vswitchd();
    let done = node.podwire("status");
    let broken = [
        "not ready, and running pods may have lost their network",
        "ovs-vswitchd does not answer",
        "! last errors   ADD tests/c",
    ];
    done.assert_says(UNWELL, &broken);
    let (code, json) = node.podwire_json("status -o json");
    assert_eq!((code, &json["ready"]), (UNWELL, &false.into()));
    assert_eq!(json["failures"][0]["pod"], "tests/c");

    agent.stop();
    node.podwire("status")
        .assert_says(BLIND, &["no agent answers", "start it: ", "podwire doctor"]);
}

#[test]
fn every_tool_says_what_to_do_when_there_is_no_agent_or_no_right_to_ask() {
    let node = TestNode::with_ovs();
    for tool in ["status", "ports", "timings", "check", "gc"] {
        node.podwire(tool).assert_says(
            BLIND,
            &["no agent answers on /run/podwire", "podwire doctor"],
        );
    }
    let _agent = node.start_agent(&AgentOptions::default());
    // A user may have no right even to the path of the binary; what it is asked to run is a copy.
    let binary = podwire_tests::agent_binary();
    std::fs::copy(binary, node.path("/run/podwire-tool")).unwrap();
    for tool in ["status", "doctor"] {
        let line = format!("setpriv --reuid 65534 --clear-groups /run/podwire-tool {tool}");
        node.shell(&line).assert_says(BLIND, &["only root", "sudo"]);
    }
}

#[test]
fn ports_are_listed_filtered_and_told_as_failed_when_their_link_is_gone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [a, b] = ["a", "b"].map(|name| node.added_pod(name));
    let done = node.podwire("ports");
    let a_port = a.host_link().to_owned();
    done.assert_says(
        WELL,
        &[
            "POD",
            "tests/a",
            "eth0",
            "up",
            "10.186.0.",
            "0a:58:",
            &a_port,
        ],
    );
    let done = node.podwire("ports -o wide tests/b");
    done.assert_says(WELL, &["tests/b", "tests_b", "br-int", &b.netns, "1500"]);
    assert!(!done.stdout.contains("tests/a"), "{}", done.stdout);
    for (filter, count) in [("-nother", 0), ("-ntests", 2), ("-sfailed", 0), ("-sup", 2)] {
        let (_, json) = node.podwire_json(format!("ports -o json {filter}"));
        assert_eq!(json["ports"].as_array().unwrap().len(), count, "{filter}");
    }

    let done = node.podwire("ports --no-headers tests/b");
    let words: Vec<&str> = done.stdout.split_whitespace().collect();
    assert_eq!(words[..3], ["tests/b", "eth0", "up"]);
    let age = words[3]
        .strip_suffix('s')
        .and_then(|it| it.parse::<u32>().ok());
    assert!(age.is_some_and(|it| it < 120), "{}", done.stdout);

    let live = node.podwire_live("ports --watch");
    live.await_line(&["up", "tests/a"]);
    node.run("ip", format!("link del {a_port}"));
    live.await_line(&["failed", "tests/a", &a_port]);
    let done = node.podwire("ports --state failed");
    done.assert_says(UNWELL, &["tests/a", "failed", "the host has no link"]);
    assert!(!done.stdout.contains("tests/b"), "{}", done.stdout);
}

#[test]
fn watched_ports_come_and_go_by_themselves_until_the_agent_ends() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let live = node.podwire_live("ports --watch");
    let programs = node.podwire_live("ports --watch -o json -n tests");
    let first: Value = serde_json::from_str(&programs.await_line(&["current"])).unwrap();
    assert_eq!(first["changed"], Value::Array(Vec::new()));
    let web = node.added_pod("web");
    live.await_line(&["up", "tests/web"]);
    programs.await_line(&["\"state\":\"up\"", "tests/web"]);
    web.del().success();
    live.await_line(&["gone", "tests/web", web.host_link()]);
    agent.signal(Signal::SIGTERM);
    assert_eq!(live.await_end().code(), BLIND);
    assert_eq!(programs.await_end().code(), BLIND);
    let log = agent.log();
    assert!(
        !log.contains("still in progress"),
        "the agent waited for who watches: {log}"
    );
    assert!(agent.await_end().success());
}

#[test]
fn version_tells_the_agents_own_and_fails_without_one() {
    let node = TestNode::with_ovs();
    let version = env!("CARGO_PKG_VERSION");
    node.podwire("version").assert_says(
        BLIND,
        &[&format!("podwire       {version}"), "no agent answers"],
    );
    let agent = node.start_agent(&AgentOptions::default());
    let done = node.podwire("version");
    let running = format!("agent         {version} (pid {})", agent.pid());
    let switch = format!("Open vSwitch  {}", version_of_open_vswitch(&node));
    done.assert_says(WELL, &[&running, &switch]);
}

#[test]
fn dels_in_the_spool_are_told_while_they_wait() {
    let node = TestNode::new();
    let pod = node.pod("web");
    pod.del().success();
    let agent = Agent::launch(&node, &AgentOptions::default()).unwrap();
    let waiting = "1 DEL waits to be carried out";
    node.podwire("status").assert_says(UNWELL, &[waiting]);
    let told = "DELs in the spool that could not be carried out: 1";
    node.podwire("doctor").assert_says(UNWELL, &[told]);
    node.start_ovsdb_server();
    node.start_vswitchd();
    agent.await_ready(true);
    node.podwire("status")
        .assert_says(WELL, &["spool         empty"]);
}

#[test]
fn timings_show_every_step_as_text_page_and_json() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [a, _b] = ["a", "b"].map(|name| node.added_pod(name));
    a.del().success();
    let done = node.podwire("timings tests/a");
    let steps = [
        "ADD tests/a",
        "netlink queue",
        "make pair",
        "ovsdb: transaction",
        "█",
        "DEL tests/a",
        "link and rows",
    ];
    done.assert_says(WELL, &steps);
    assert!(!done.stdout.contains("tests/b"), "{}", done.stdout);
    let (_, json) = node.podwire_json("timings -o json --verbs add");
    let operations = json["operations"].as_array().unwrap();
    assert!(
        operations.len() == 2 && operations.iter().all(|it| it["verb"] == "ADD"),
        "{json}"
    );
    // The wait for the agent's thread lies between the netlink thread's last step and the
    // transaction, without a gap beyond what rounding makes.
    let phases = operations[0]["phases"].as_array().unwrap();
    let at = phases.iter().position(|it| it["name"] == "agent: queue");
    let [last, queue, transaction] = [0, 1, 2].map(|offset| {
        let phase = &phases[at.unwrap() - 1 + offset];
        let [start, took] = ["startMicros", "durationMicros"].map(|it| phase[it].as_f64().unwrap());
        (start, start + took)
    });
    assert!((last.1 - queue.0).abs() < 1.0, "{json}");
    assert!(queue.1 <= transaction.0 + 1.0, "{json}");
    let (_, json) = node.podwire_json("timings -o json --last 1");
    assert_eq!(json["operations"][0]["verb"], "DEL");
    node.podwire("timings -o html").assert_says(
        WELL,
        &[
            "<!doctype html>",
            "tests/a",
            "class=\"database\"",
            "</html>",
        ],
    );
    node.podwire("timings nobody")
        .assert_says(NOT_FOUND, &["no operation of a pod nobody"]);
}

#[test]
fn check_finds_what_was_changed_by_hand_and_its_commands_fix_it() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [a, b] = ["a", "b"].map(|name| node.added_pod(name));
    node.podwire("check --all")
        .assert_says(WELL, &["2 attachments: 2 as they should be"]);
    let address = links::addresses(a.place(), "eth0");
    let address = address.iter().find(|it| it.starts_with("10.186")).unwrap();

    node.run("ip", format!("link set {} down", b.host_link()));
    a.run("ip", format!("addr del {address} dev eth0"));
    a.run("ethtool", "-K eth0 tx on");
    let done = node.podwire("check");
    let found = [
        "tests/a eth0",
        "has lost address",
        "TX checksum",
        "tests/b eth0",
        "is down",
        "2 differ",
    ];
    done.assert_says(UNWELL, &found);
    node.podwire("check tests/b -v")
        .assert_says(UNWELL, &["1 attachment: 0 as they should be, 1 differ"]);

    let (_, json) = node.podwire_json("check -o json");
    for audit in json["attachments"].as_array().unwrap() {
        for difference in audit["differences"].as_array().unwrap() {
            let fix = difference["fix"].as_str().unwrap();
            let done = node.shell(fix);
            assert!(done.status.success(), "{fix}: {}", done.stderr);
        }
    }
    node.podwire("check")
        .assert_says(WELL, &["2 as they should be"]);
    node.podwire("check nobody")
        .assert_says(NOT_FOUND, &["no attachment of a pod nobody"]);
}

#[test]
fn a_port_that_somebody_removed_or_moved_is_found() {
    let node = TestNode::with_ovs();
    // In OVN mode nobody but ovn-controller brings a bridge back, and with it the ports.
    node.add_bridge("br-int");
    let options = AgentOptions::default().with("--mode ovn --wait ofport");
    let _agent = Agent::launch(&node, &options).unwrap();
    let pod = node.wired_pod(11);
    let host = pod.host_link();
    node.vsctl(format!("set interface {host} external_ids:iface-id=other"));
    node.podwire("check")
        .assert_says(UNWELL, &["has iface-id \"other\""]);
    node.vsctl("del-br br-int");
    node.podwire("check")
        .assert_says(UNWELL, &["Open vSwitch has no port for"]);
}

#[test]
fn gc_removes_what_has_neither_link_nor_namespace_and_nothing_else() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    node.podwire("gc")
        .assert_says(WELL, &["nothing is left over"]);
    let [living, unplugged, mut dead] =
        ["living", "unplugged", "dead"].map(|name| node.added_pod(name));
    let host_end = links::LinkRecorder::start(node.place());
    node.run("ip", format!("link del {}", unplugged.host_link()));
    dead.remove_netns();
    host_end.await_gone(dead.host_link());

    let done = node.podwire("gc --dry-run");
    done.assert_says(UNWELL, &["tests/dead", "would be removed", "podwire gc"]);
    for other in ["tests/living", "tests/unplugged"] {
        assert!(!done.stdout.contains(other), "{}", done.stdout);
    }
    assert!(node.interface_of(&dead.container).is_some());
    node.podwire("gc")
        .assert_says(WELL, &["tests/dead", "removed"]);
    assert!(node.interface_of(&dead.container).is_none());
    // Its runtime may still ask for it, and is told.
    assert!(node.interface_of(&unplugged.container).is_some());
    node.podwire("check").assert_says(
        UNWELL,
        &["tests/unplugged", "the host has no link", "1 differ"],
    );

    for pod in [&living, &unplugged] {
        pod.del().success();
    }
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn a_record_that_can_not_be_read_is_that_attachments_problem_alone() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let [broken, mut dead] = ["broken", "dead"].map(|name| node.added_pod(name));
    let record = format!(
        "/run/podwire/attachments/{}:eth0:pods.json",
        broken.container
    );
    std::fs::write(node.path(&record), "{").unwrap();
    let host_end = links::LinkRecorder::start(node.place());
    dead.remove_netns();
    host_end.await_gone(dead.host_link());
    node.podwire("check").assert_says(
        UNWELL,
        &[
            "tests/broken",
            "its record can't be read",
            "tests/dead",
            "2 differ",
        ],
    );
    let names = [
        "tests/broken",
        "stays: its record can't be read",
        "tests/dead",
    ];
    node.podwire("gc --dry-run").assert_says(UNWELL, &names);
    node.podwire("gc").assert_says(UNWELL, &names);
    assert!(node.interface_of(&dead.container).is_none());
    assert!(node.interface_of(&broken.container).is_some());
    broken.del().success();
    node.podwire("gc")
        .assert_says(WELL, &["nothing is left over"]);
    node.leftovers().assert_none();
}

#[test]
fn completions_manual_pages_and_help_come_from_one_source() {
    let node = TestNode::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        node.podwire(format!("completions {shell}"))
            .assert_says(WELL, &["podwire", "doctor", "watch"]);
    }
    node.shell("podwire completions bash | bash -n")
        .assert_says(WELL, &[]);
    node.podwire("man")
        .assert_says(WELL, &[".TH podwire 1", "doctor"]);
    let pages = node.path("/run/man");
    std::fs::create_dir(&pages).unwrap();
    node.podwire("man --dir /run/man").assert_says(WELL, &[]);
    for page in ["podwire.1", "podwire-agent.1", "podwire-doctor.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
    for page in std::fs::read_dir(&pages).unwrap() {
        assert_page(&node, &pages, &page.unwrap().path());
    }
    for tool in [
        "",
        "status",
        "ports",
        "timings",
        "trace",
        "flows",
        "capture",
        "check",
        "gc",
        "doctor",
        "bundle",
        "version",
        "completions",
        "man",
    ] {
        let done = node.shell(&format!("COLUMNS=80 podwire {tool} --help"));
        done.assert_says(WELL, &["Usage"]);
        let lines = done.stdout.lines().count();
        assert!(lines <= 30, "{tool} has {lines} lines:\n{}", done.stdout);
    }
    node.podwire("stats")
        .assert_says(Some(2), &["similar subcommand exists: 'status'"]);
}

/// A manual page has examples that podwire understands, files, and references to pages that are
/// there.
fn assert_page(node: &TestNode, pages: &Path, page: &Path) {
    let text = std::fs::read_to_string(page).unwrap();
    let place = page.display();
    for section in ["NAME", "SYNOPSIS", "EXAMPLES", "FILES", "\"SEE ALSO\""] {
        assert!(
            text.contains(&format!(".SH {section}\n")),
            "{place} lacks {section}:\n{text}"
        );
    }
    let (_, rest) = text.split_once(".SH EXAMPLES").unwrap();
    let (examples, rest) = rest.split_once(".SH FILES").unwrap();
    let examples = examples
        .lines()
        .filter_map(|it| it.strip_prefix("\\fBpodwire "));
    for example in examples {
        let example = example.replace("\\fR", "").replace("\\-", "-");
        let command = example.split(" > ").next().unwrap();
        let done = node.shell(&format!("podwire {command} --help"));
        assert_eq!(
            done.status.code(),
            WELL,
            "{place}: {example}: {}",
            done.stderr
        );
    }
    let (_, also) = rest.split_once(".SH \"SEE ALSO\"").unwrap();
    let also = also.replace("\\-", "-");
    let ours = also
        .split([',', ' ', '\n'])
        .filter(|it| it.starts_with("podwire"));
    for name in ours {
        let file = pages.join(name.replace("(1)", ".1"));
        assert!(file.exists(), "{place}: {name} has no page");
    }
}

#[test]
fn a_closed_pipe_and_a_query_that_is_none_are_no_drama() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    let done = node.shell("podwire man | true; podwire status | head -n 1");
    done.assert_says(WELL, &["ready"]);
    assert_eq!(done.stderr, "");
    for (path, status) in [
        ("/v1/ports?state=sleepy", 400),
        ("/v1/ports?color=red", 400),
        ("/v1/nothing", 404),
    ] {
        let (found, body) = agent.get(path);
        assert_eq!(found, status, "{path}: {body}");
    }
}

/// The connection stands until its probe fails, and none of them may wait for that.
#[test]
fn a_database_that_hangs_is_told_at_once_by_status_the_runtime_and_the_error_of_an_add() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let signal = |name: &str| {
        let line = format!("kill -{name} $(cat /run/openvswitch/ovsdb-server.pid)");
        assert!(node.shell(&line).status.success());
    };
    signal("STOP");
    let silent = "does not answer: no reply";
    node.podwire("status")
        .assert_says(UNWELL, &["not ready", silent, "database does not answer"]);
    let done = node.podwire("probe ready");
    assert_eq!(done.status.code(), UNWELL, "{}{}", done.stdout, done.stderr);
    let pod = node.pod("web");
    let status = pod.exec("STATUS", &podwire_tests::conf());
    let error = status.error();
    assert_eq!(error.code, 50);
    error.assert_names(&[silent]);
    let error = pod.add().error();
    assert!(!error.msg.contains("in sync"), "{}", error.msg);
    signal("CONT");
}

#[test]
fn the_step_in_which_an_add_failed_has_its_bar() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with("--add-timeout 1");
    let _agent = node.start_agent(&options);
    node.signal_vswitchd(Signal::SIGSTOP);
    node.pod("web").add().error();
    node.signal_vswitchd(Signal::SIGCONT);
    node.podwire("timings")
        .assert_says(WELL, &["! ovs-vswitchd: ofport", "failed, code"]);
    let (_, json) = node.podwire_json("timings -o json");
    let steps = json["operations"][0]["phases"].as_array().unwrap();
    let failed: Vec<&Value> = steps.iter().filter(|it| it["failed"] == true).collect();
    assert_eq!(failed.len(), 1, "{steps:#?}");
    assert_eq!(failed[0]["name"], "ovs-vswitchd: ofport");
}

#[test]
fn what_the_agent_knew_before_the_switch_was_gone_is_not_shown_as_the_present_state() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let _web = node.added_pod("web");
    for tool in ["ports", "check"] {
        let done = node.podwire(tool);
        done.assert_says(WELL, &["1"]);
    }
    node.kill_vswitchd();
    let before = ["ovs-vswitchd does not answer", "podwire doctor"];
    for tool in ["ports", "check", "ports -o json"] {
        node.podwire(tool).assert_says(BLIND, &before);
    }
    node.kill_ovsdb_server();
    let before = ["Open vSwitch's database: ", "podwire doctor"];
    node.podwire("ports").assert_says(BLIND, &before);
}

#[test]
fn an_agent_that_hangs_is_to_be_restarted_and_not_started() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    agent.signal(Signal::SIGSTOP);
    let restart = format!("kill -KILL {}; flock ", agent.pid());
    for tool in ["status", "ports --watch"] {
        let said = ["no answer within 5 s", "restart it: ", &restart];
        node.podwire(tool).assert_says(BLIND, &said);
    }
    let done = node.podwire("probe live");
    assert!(!done.status.success(), "{done:?}");
    assert!(done.stderr.contains("no answer within 5 s"), "{done:?}");
    agent.signal(Signal::SIGCONT);
    node.podwire("status").assert_says(WELL, &[": ready"]);
}

#[test]
fn a_verb_or_an_end_that_does_not_exist_is_refused() {
    let node = TestNode::new();
    for (line, said) in [
        ("timings --verbs FOO", "invalid value 'FOO' for '--verbs"),
        ("trace web", "<POD-B>"),
    ] {
        node.podwire(line).assert_says(Some(2), &[said]);
    }
}
