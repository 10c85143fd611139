//! A configuration with an `ipam` section: the reference host-local and static plugins do what they
//! are asked, and are told of every end.

use podwire_tests::{
    Agent, AgentOptions, PluginRun, Pod, TestNode, child_of, conf, conf_of_version, links, traffic,
};
use serde_json::{Value, json};

const DATA_DIR: &str = "/run/host-local";

fn host_local() -> Value {
    // The reference plugins of Debian 12 speak up to 1.0.0.
    let mut conf = conf_of_version("1.0.0");
    conf["ipam"] = json!({
        "type": "host-local", "dataDir": DATA_DIR,
        "ranges": [[{"subnet": "10.55.0.0/24"}], [{"subnet": "fd55::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "198.51.100.0/24", "gw": "10.55.0.9"}],
    });
    conf
}

/// The addresses that host-local has on record as given.
fn reserved(node: &TestNode) -> Vec<String> {
    let entries = std::fs::read_dir(node.path(DATA_DIR).join("pods"))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut addresses: Vec<_> = names
        .filter(|name| name.starts_with("10.") || name.starts_with("fd"))
        .collect();
    addresses.sort();
    addresses
}

fn with_prev_result(conf: &Value, result: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    conf
}

fn wired<'node>(node: &'node TestNode, name: &str) -> (Pod<'node>, Value) {
    let pod = node.pod(name);
    let result = pod.exec("ADD", &host_local()).success();
    (pod, result)
}

#[test]
fn host_local_gives_addresses_and_routes_and_gets_them_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default().with("--no-gateway"));
    let (web, result) = wired(&node, "web");
    let (db, _) = wired(&node, "db");
    assert_eq!(result["cniVersion"], "1.0.0");
    assert_eq!(
        links::addresses(web.place(), "eth0"),
        ["10.55.0.2/24", "fd55::2/64"]
    );
    let given: Vec<_> = result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].clone())
        .collect();
    assert_eq!(given, ["10.55.0.2/24", "fd55::2/64"]);
    assert_eq!(result["ips"][0]["gateway"], "10.55.0.1");
    let routes = links::routes(web.place(), "-4");
    let by = |destination: &str| {
        routes
            .iter()
            .find(|it| it["dst"] == destination)
            .map(|it| it["gateway"].clone())
    };
    assert_eq!(
        by("default"),
        Some(json!("10.55.0.1")),
        "a route without gw goes by the range's gateway"
    );
    assert_eq!(by("198.51.100.0/24"), Some(json!("10.55.0.9")));
    traffic::ping(web.place(), "10.55.0.3".parse().unwrap(), 1).unwrap();

    assert_eq!(reserved(&node).len(), 4);
    for pod in [&web, &db] {
        for _ in 0..2 {
            pod.exec("DEL", &host_local()).success();
        }
    }
    assert!(reserved(&node).is_empty());
    node.leftovers().assert_none();
}

#[test]
fn an_add_that_fails_after_ipam_gives_the_address_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let pod = node.pod("web");
    pod.run("ip", "link add eth0 type veth peer name other");
    pod.exec("ADD", &host_local()).error();
    assert!(reserved(&node).is_empty());
    node.leftovers().assert_none();
}

#[test]
fn check_asks_the_ipam_plugin_too() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (pod, result) = wired(&node, "web");
    let conf = with_prev_result(&host_local(), &result);
    pod.exec("CHECK", &conf).success();
    std::fs::remove_file(node.path(DATA_DIR).join("pods/10.55.0.2")).unwrap();
    std::fs::remove_file(node.path(DATA_DIR).join("pods/fd55::2")).unwrap();
    let error = pod.exec("CHECK", &conf).error();
    assert!(
        format!("{} {}", error.msg, error.details).contains("host-local"),
        "{error:?}"
    );
}

#[test]
fn the_ipam_plugins_own_error_reaches_the_runtime() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let mut conf = host_local();
    conf["ipam"]["ranges"] = json!([[{"subnet": "10.55.0.0/30"}]]);
    let [first, second] = ["first", "second"].map(|name| node.pod(name));
    first.exec("ADD", &conf).success();
    let error = second.exec("ADD", &conf).error();
    let text = format!("{} {}", error.msg, error.details);
    assert!(
        text.contains("host-local") && text.contains("no IP addresses available"),
        "{error:?}"
    );
    assert_eq!(reserved(&node), ["10.55.0.2"]);
}

#[test]
fn static_gives_what_it_is_told() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let mut conf = conf_of_version("1.0.0");
    conf["ipam"] = json!({
        "type": "static",
        "addresses": [{"address": "10.56.0.5/24", "gateway": "10.56.0.1"},
        {"address": "fd56::5/64"}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["10.56.0.53"]},
    });
    let pod = node.pod("web");
    let result = pod.exec("ADD", &conf).success();
    assert_eq!(
        links::addresses(pod.place(), "eth0"),
        ["10.56.0.5/24", "fd56::5/64"]
    );
    assert_eq!(result["dns"]["nameservers"], json!(["10.56.0.53"]));
    pod.exec("DEL", &conf).success();
    node.leftovers().assert_none();
}

#[test]
fn an_ipam_plugin_that_is_not_there_is_named_and_nothing_is_made() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    for plugin in ["no-such-ipam", "../../bin/true"] {
        let mut conf = conf();
        conf["ipam"] = json!({"type": plugin});
        let pod = node.pod("web");
        let error = pod.exec("ADD", &conf).error();
        assert!(
            format!("{} {}", error.msg, error.details).contains(plugin),
            "{error:?}"
        );
        node.leftovers().assert_none();
    }
}

#[test]
fn a_program_outside_the_plugin_directories_is_not_run_though_cni_path_names_it() {
    let node = TestNode::with_ovs();
    let script = "#!/bin/sh\n>/run/plugins/ran\n";
    // Without the options by which this would be a plugin directory.
    let _ = script_of_ipam(&node, "stray-ipam", script);
    let _agent = node.start_agent(&AgentOptions::default());
    let mut conf = conf();
    conf["ipam"] = json!({"type": "stray-ipam"});
    for path in ["/run/plugins", "/opt/cni/bin/../../../run/plugins"] {
        let pod = node.pod("web");
        let error = pod
            .exec_with(
                "ADD",
                conf.to_string().as_bytes(),
                &[("CNI_PATH", Some(path))],
            )
            .error();
        error.assert_names(&["stray-ipam", path, "--cni-bin-dir"]);
        assert!(!node.path("/run/plugins/ran").exists(), "{path}");
    }
    node.leftovers().assert_none();
}

#[test]
fn the_error_of_an_ipam_plugin_that_knows_older_versions_alone_is_handed_on() {
    // What host-local of containernetworking-plugins 1.1.1 answers to a configuration of 1.1.0.
    let script = r#"#!/bin/sh
echo '{"cniVersion":"1.0.0","code":1,"msg":"incompatible CNI versions","details":"config is \"1.1.0\", plugin supports [\"1.0.0\"]"}'
exit 1
"#;
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&script_of_ipam(&node, "old-ipam", script));
    let mut conf = conf();
    conf["ipam"] = json!({"type": "old-ipam"});
    let pod = node.pod("web");
    let path = [("CNI_PATH", Some("/run/plugins"))];
    let error = pod
        .exec_with("ADD", conf.to_string().as_bytes(), &path)
        .error();
    assert_eq!(error.code, 1, "{error:?}");
    node.leftovers().assert_none();
}

#[test]
fn what_ipam_gave_to_an_agent_that_was_killed_is_given_back_by_the_next_one() {
    let node = TestNode::with_ovs();
    for step in ["add-delegated", "add-noted", "add-ofport"] {
        let options = AgentOptions::default();
        let agent = node.start_agent(&options.clone().killed_at(step));
        let pod = node.pod(step);
        let error = pod.exec("ADD", &host_local()).error();
        assert_eq!(error.code, 11, "{step}");
        agent.await_end();
        assert_eq!(reserved(&node).len(), 2, "{step}");

        let agent = node.start_agent(&options);
        agent.await_no_file(&deleting(&pod));
        assert!(reserved(&node).is_empty(), "{step}");
        node.leftovers().assert_none();
        agent.stop();
    }
}

/// The intent log's entry of a removal that is not finished.
fn deleting(pod: &Pod<'_>) -> String {
    format!(
        "/run/podwire/attachments/{}:eth0:pods.deleting",
        pod.container
    )
}

/// Calls the plugin with a configuration of `kind`, which is in /run/plugins.
fn exec_of(pod: &Pod<'_>, verb: &str, kind: &str) -> PluginRun {
    let mut conf = conf();
    conf["ipam"] = json!({ "type": kind });
    let path = [("CNI_PATH", Some("/run/plugins"))];
    pod.exec_with(verb, conf.to_string().as_bytes(), &path)
}

#[test]
fn an_ipam_plugin_that_hangs_at_del_keeps_no_new_agent_from_serving() {
    let node = TestNode::with_ovs();
    let script = r#"#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.57.0.2/24"}]}' ;;
DEL)
    >/run/plugins/runs
    while [ -e /run/plugins/hang ]; do sleep 0.1; done
    ;;
esac
"#;
    let options = script_of_ipam(&node, "hanging-ipam", script);
    let [adding, deleted, other] = ["adding", "deleted", "other"].map(|name| node.pod(name));
    let agent = node.start_agent(&options);
    exec_of(&deleted, "ADD", "hanging-ipam").success();
    agent.stop();
    let agent = node.start_agent(&options.clone().killed_at("add-noted"));
    exec_of(&adding, "ADD", "hanging-ipam").error();
    agent.await_end();
    exec_of(&deleted, "DEL", "hanging-ipam").success();

    std::fs::write(node.path("/run/plugins/hang"), "").unwrap();
    let agent = node.start_agent(&options);
    other.exec("ADD", &host_local()).success();
    assert!(node.interface_of(&deleted.container).is_none());
    agent.await_file("/run/plugins/runs");
    for pod in [&adding, &deleted] {
        assert!(node.path(&deleting(pod)).exists());
    }
    std::fs::remove_file(node.path("/run/plugins/hang")).unwrap();
    for pod in [&adding, &deleted] {
        agent.await_no_file(&deleting(pod));
    }
    other.exec("DEL", &host_local()).success();
    node.leftovers().assert_none();
}

#[test]
fn an_interrupted_add_is_undone_again_until_its_ipam_plugin_serves() {
    let node = TestNode::with_ovs();
    let script = r#"#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.57.0.2/24"}]}' ;;
DEL) [ ! -e /run/plugins/refuse ] ;;
esac
"#;
    let options = script_of_ipam(&node, "refusing-ipam", script);
    let pod = node.pod("web");
    let agent = node.start_agent(&options.clone().killed_at("add-noted"));
    exec_of(&pod, "ADD", "refusing-ipam").error();
    agent.await_end();
    std::fs::write(node.path("/run/plugins/refuse"), "").unwrap();
    let agent = node.start_agent(&options);
    agent.await_log("not finished; it is tried again");
    std::fs::remove_file(node.path("/run/plugins/refuse")).unwrap();
    agent.await_no_file(&deleting(&pod));
    node.leftovers().assert_none();
}

#[test]
fn an_add_that_waits_for_its_ipam_plugin_gives_way_to_a_newer_sandbox() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&slow_ipam(&node));
    let pod = node.pod("web");
    let newer = pod.another_sandbox();
    let code = code_of_an_add_during(&agent, &pod, || {
        newer.exec("ADD", &host_local()).success();
    });
    assert_eq!(code, 100, "superseded");
    newer.exec("DEL", &host_local()).success();
    node.leftovers().assert_none();
}

#[test]
fn status_names_the_ipam_plugin_that_does_not_answer_it() {
    let node = TestNode::with_ovs();
    let script = "#!/bin/sh\nexec sleep 1000\n";
    let _agent = node.start_agent(&script_of_ipam(&node, "mute-ipam", script));
    let error = exec_of(&node.pod("web"), "STATUS", "mute-ipam").error();
    error.assert_names(&["mute-ipam", "did not end within 5000 ms"]);
}

#[test]
fn what_ipam_gave_to_a_sandbox_that_a_newer_one_replaces_is_given_back() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let (older, _) = wired(&node, "web");
    let newer = older.another_sandbox();
    newer.exec("ADD", &host_local()).success();
    assert_eq!(reserved(&node).len(), 2, "those of the newer one");
    for pod in [&older, &newer] {
        pod.exec("DEL", &host_local()).success();
    }
    assert!(reserved(&node).is_empty());
    node.leftovers().assert_none();
}

/// A directory of the node with this plugin, a shell script.
fn script_of_ipam(node: &TestNode, name: &str, script: &str) -> AgentOptions {
    let path = node.path("/run/plugins");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join(name), script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path.join(name), mode).unwrap();
    AgentOptions::default().with("--cni-bin-dir /run/plugins")
}

/// With a plugin `slow-ipam` that says that it runs, and then waits.
fn slow_ipam(node: &TestNode) -> AgentOptions {
    let script = "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\necho >/run/plugins/runs\nexec \
                  sleep 1000\n";
    script_of_ipam(node, "slow-ipam", script)
}

/// The code of an ADD during which something happened, once its plugin ran.
fn code_of_an_add_during(agent: &Agent<'_>, pod: &Pod<'_>, happens: impl FnOnce()) -> u64 {
    std::thread::scope(|scope| {
        let add = scope.spawn(|| exec_of(pod, "ADD", "slow-ipam").error());
        agent.await_file("/run/plugins/runs");
        happens();
        add.join().unwrap().code
    })
}

#[test]
fn the_process_that_runs_plugins_is_replaced_when_it_dies() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&slow_ipam(&node));
    let pod = node.pod("web");
    let code = code_of_an_add_during(&agent, &pod, || kill(child_of(child_of(agent.pid()))));
    assert_eq!(code, 11, "the runtime is to try again");
    wired(&node, "db");
    agent.await_ready(true);
}

#[test]
fn an_agent_that_can_run_no_plugin_any_more_ends_so_that_a_new_one_is_started() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&slow_ipam(&node));
    let pod = node.pod("web");
    let code = code_of_an_add_during(&agent, &pod, || {
        let keeper = child_of(agent.pid());
        let worker = child_of(keeper);
        kill(keeper);
        kill(worker);
    });
    assert_eq!(code, 11);
    assert!(!agent.await_end().success());
}

fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}
