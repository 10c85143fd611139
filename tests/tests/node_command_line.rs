//! The node role by the old command line: `ovnkube --init-node` and `--cleanup-node`, and settings
//! from the files that are on ovn-kubernetes' nodes.

use std::os::unix::fs::symlink;
use std::process::Command;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::machine::{Machine, await_well};
use podwire_tests::{NodeRun, Words as _, agent_binary, without_own_variables};

/// The addresses and the database of every test, as ovnkube's flags.
const FLAGS: &str = "-cluster-subnets 10.244.0.0/16/24 -k8s-service-cidrs=10.96.0.0/16 \
                     -sb-address tcp:192.0.2.9:6642 -encap-ip=192.0.2.11 -nodeport \
                     -gateway-mode=local -lflow-cache-limit=1000 -mtu=1350";

/// An API server on the machine that has given the node its subnet.
fn api_server(machine: &Machine) -> ApiServer {
    let server = ApiServer::start_in(machine.node().place());
    let mut node = apiserver::node("node-a", "192.0.2.11");
    node["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] =
        r#"{"default":["10.244.1.0/24"]}"#.into();
    server.apply(node);
    server
}

/// ovnkube on the machine, with these flags.
fn ovnkube(directory: &tempfile::TempDir, flags: &str) -> Command {
    let program = directory.path().join("ovnkube");
    if !program.exists() {
        symlink(agent_binary(), &program).unwrap();
    }
    let mut command = Command::new(program);
    without_own_variables(&mut command);
    command.args(flags.words());
    command
}

/// The node role's process id, as the agent has logged it, which is the `count`th on this machine.
fn role(run: &NodeRun, count: usize) -> u32 {
    let line = run.await_log("started the node role", count);
    let (_, pid) = line
        .split_once("\"pid\":")
        .unwrap_or_else(|| panic!("{line}"));
    let digits = pid.find(|c: char| !c.is_ascii_digit()).unwrap_or(pid.len());
    pid[..digits].parse().unwrap()
}

#[test]
fn ovnkube_s_command_for_a_node_makes_it_one_keeps_it_and_removes_it() {
    let machine = Machine::new();
    let node = machine.node();
    let before = machine.snapshot();
    let server = api_server(&machine);
    let url = server.url();
    let directory = tempfile::tempdir().unwrap();
    let flags = format!("-init-node node-a -k8s-apiserver {url} {FLAGS} -k8s-token secret");
    let start = || NodeRun::launch_by(node, ovnkube(&directory, &flags));
    let run = start();
    run.await_state("READY=1");
    await_well(
        node,
        format!(
            "node show --mode ovn --node-name node-a --k8s-apiserver {url} \
             --cluster-subnet 10.244.0.0/16 \
             --service-cidr 10.96.0.0/16 --ovn-remote tcp:192.0.2.9:6642 --encap-ip 192.0.2.11 \
             --mtu 1350 --ovn-option ovn-limit-lflow-cache=1000"
        ),
    );
    let pid = role(&run, 1);
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(!arguments.contains("secret"), "{arguments}");
    let keys = node.ovsdb_rows("Open_vSwitch")[0]["external_ids"].clone();
    assert_eq!(keys["ovn-limit-lflow-cache"], "1000");
    assert_eq!(keys["ovn-encap-ip"], "192.0.2.11");
    // It is kept, and whoever stops one stops both.
    node.run("ip", "route del 10.96.0.0/16");
    run.await_log("restored route 10.96.0.0/16", 1);
    assert!(run.stop().success());
    machine.await_process_end(pid);

    // Neither lives on without the other.
    let run = start();
    run.await_state("READY=1");
    let pid = role(&run, 2);
    node.run("kill", format!("-9 {pid}"));
    assert_eq!(run.await_end().code(), Some(1));
    assert!(
        run.log()
            .contains("the node role, `podwire node run`, has ended"),
        "{}",
        run.log()
    );
    let run = start();
    run.await_state("READY=1");
    let pid = role(&run, 3);
    run.kill();
    machine.await_process_end(pid);

    let flags = format!("-cleanup-node=node-a -k8s-apiserver {url}");
    let done = machine.finish(ovnkube(&directory, &flags));
    assert!(
        done.stdout.contains("removed route 10.96.0.0/16"),
        "{done:?}"
    );
    assert!(
        done.stdout.contains("annotations of node node-a"),
        "{done:?}"
    );
    // No southbound database answers here.
    assert!(
        done.stderr.contains("ovn-sbctl chassis-del a-chassis"),
        "{done:?}"
    );
    before.assert_same(&machine.snapshot().without_notes_of_others());
}

#[test]
fn settings_come_from_the_files_that_are_there_and_a_bad_one_is_named_with_its_file() {
    let machine = Machine::new();
    let node = machine.node();
    let write = |path: &str, text: &str| std::fs::write(node.path(path), text).unwrap();
    write(
        "/run/ovn_k8s.conf",
        "[default]\nmtu=1350\nencap-ip=192.0.2.11\ncluster-subnets=10.244.0.0/16/24\n\
         [kubernetes]\nservice-cidrs=10.96.0.0/16\n[ovnsouth]\naddress=tcp:192.0.2.9:6642\n",
    );
    write(
        "/run/podwire.toml",
        "mtu = 1300\nsubnets = ['10.1.0.0/24']\n[node]\nnode-subnets = ['10.244.1.0/24']\n",
    );
    let files = "--config /run/podwire.toml --config-file /run/ovn_k8s.conf";
    let podwire = |verb: &str, more: &str| {
        node.podwire(format!(
            "node {verb} --mode ovn --node-name node-a {files} {more}"
        ))
    };
    let planned = podwire("plan", "").stdout;
    for said in [
        "+ external_ids:ovn-encap-ip = 192.0.2.11",
        "+ route 10.244.0.0/16 via 10.244.1.1",
        "+ route 10.96.0.0/16 via 10.244.1.1",
        "MTU of 1300 bytes",
    ] {
        assert!(planned.contains(said), "{said} is not in\n{planned}");
    }
    // What stands on the command line counts.
    let planned = podwire("plan", "--mtu=1280").stdout;
    assert!(planned.contains("MTU of 1280 bytes"), "{planned}");
    write("/run/ovn_k8s.conf", "[default]\nencap-ip=eth0\n");
    let refused = podwire("init", "");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = "--encap-ip eth0: expected IP addresses of this machine, as in 192.0.2.11 \
                (/run/ovn_k8s.conf, line 2: [default] encap-ip)";
    assert!(refused.stderr.contains(said), "{refused:?}");
}

#[test]
fn others_bridge_mappings_stay_and_ours_go_again() {
    let machine = Machine::new();
    let node = machine.node();
    let mappings = || {
        let keys = node.ovsdb_rows("Open_vSwitch")[0]["external_ids"].clone();
        keys["ovn-bridge-mappings"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let set = |value: &str| {
        let key = "external_ids:ovn-bridge-mappings";
        node.vsctl(format!("--no-wait set open_vswitch . {key}={value}"));
    };
    set("public:br-public");
    let before = machine.snapshot();
    let flags = "--bridge-mapping physnet1:br-data";
    let run = machine.start_run(flags);
    assert_eq!(mappings(), "physnet1:br-data,public:br-public");
    // One who knows nothing of ours writes the whole key.
    set("public:br-public,other:br-other");
    run.await_log("restored external_ids:ovn-bridge-mappings:physnet1", 1);
    await_well(node, machine.arguments("show", flags));
    assert_eq!(
        mappings(),
        "other:br-other,physnet1:br-data,public:br-public"
    );
    run.stop();
    let refused = machine.podwire_node("init", "--bridge-mapping public:br-data");
    let said = "external_ids:ovn-bridge-mappings:public: somebody else set it to br-public";
    assert!(refused.stderr.contains(said), "{refused:?}");
    machine.cleanup("");
    assert_eq!(mappings(), "other:br-other,public:br-public");
    set("public:br-public");
    before.assert_same(&machine.snapshot());
}

/// systemd reads that file for the unit; people's commands read it themselves.
#[test]
fn commands_at_a_terminal_read_the_unit_s_file_of_variables() {
    const FILE: &str = "/etc/default/podwire";
    let machine = Machine::new();
    let node = machine.node();
    // Of this machine's mount namespace alone.
    node.run("mount", "-t tmpfs tmpfs /etc/default");
    node.run("sh", ["-c", &format!("echo PODWIRE_ENCAP_PORT=x >{FILE}")]);
    for verb in ["plan", "show"] {
        let done = machine.podwire_node(verb, "");
        assert_ne!(done.status.code(), Some(0), "{verb}: {done:#?}");
        assert!(done.stderr.contains(FILE), "{verb}: {done:#?}");
    }
}
