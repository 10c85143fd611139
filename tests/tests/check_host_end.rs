//! What a pod's traffic needs on both ends of its pair: CHECK, `podwire check` and the doctor see
//! each thing that was changed by hand, and the commands that `podwire check` prints restore the
//! pod whole.

use podwire_tests::{Agent, AgentOptions, Pod, TestNode, traffic};
use serde_json::Value;

const GATEWAY: &str = "10.186.0.1";

struct Wired<'node> {
    node: &'node TestNode,
    _agent: Agent<'node>,
    pod: Pod<'node>,
    result: Value,
}

impl<'node> Wired<'node> {
    fn on(node: &'node TestNode) -> Wired<'node> {
        let agent = node.start_agent(&AgentOptions::default());
        let pod = node.pod("web");
        let result = pod.add().success();
        traffic::ping_until_answered(pod.place(), GATEWAY.parse().unwrap()).unwrap();
        Wired {
            node,
            _agent: agent,
            pod,
            result,
        }
    }

    fn port(&self) -> &str {
        self.pod.host_link()
    }

    /// Runs a line of shell on the node, with the port's name as `$H` and the pod's namespace as
    /// `$N`.
    fn shell(&self, line: &str) {
        let set = format!("H={} N={}; {line}", self.port(), self.pod.netns);
        let done = self.node.shell(&set);
        assert!(done.status.success(), "{line}: {}", done.stderr);
    }

    /// That CHECK, `podwire check` and the doctor all tell of it, the first in these words.
    fn is_seen(&self, words: &str) {
        let error = self.pod.check(&self.result).error();
        error.assert_names(&[words]);
        for tool in ["check", "doctor"] {
            let done = self.node.podwire(tool);
            assert_eq!(done.status.code(), Some(1), "{tool}: {}", done.stdout);
            let said = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(words), "{tool}: {words:?} is not in {said}");
        }
    }

    /// Runs the commands that `podwire check` prints, in their order, once.
    fn follow_fixes(&self) {
        let (_, list) = self.node.podwire_json("check -o json");
        for difference in list["attachments"][0]["differences"].as_array().unwrap() {
            let fix = difference["fix"].as_str();
            let fix = fix.unwrap_or_else(|| panic!("nothing fixes {difference}"));
            let done = self.node.shell(fix);
            assert!(done.status.success(), "{fix}: {}", done.stderr);
        }
    }

    fn is_whole(&self) {
        let done = self.node.podwire("check");
        assert_eq!(done.status.code(), Some(0), "{}", done.stdout);
        self.pod.check(&self.result).success();
        traffic::ping_until_answered(self.pod.place(), GATEWAY.parse().unwrap()).unwrap();
    }
}

#[test]
fn what_was_changed_by_hand_is_seen_and_the_printed_commands_restore_the_pod() {
    let node = TestNode::with_ovs();
    let wired = Wired::on(&node);
    let table = r#"
        ip link set $H mtu 900 => has MTU 900, and should have 1500
        ip link set $H address 02:00:00:00:00:77 => has MAC 02:00:00:00:00:77
        ip link set $H down => is down
        ip link set $H down; ip link set $H name other; ip link set other up => is called other
        ovs-vsctl set port $H tag=7 => has tag 7
        ovs-vsctl set port $H vlan_mode=access trunks=3,4 => has vlan_mode access, trunks 3-4
        ovs-vsctl set interface $H external_ids:iface-id=x => has iface-id "x"
        nsenter --net=$N ip addr flush dev eth0 scope global => has lost address
        nsenter --net=$N ip route del default => has lost the route to 0.0.0.0/0
        nsenter --net=$N ip link set eth0 down => interface eth0 is down
        nsenter --net=$N ip link set eth0 address 02:00:00:00:00:78 => has MAC 02:00:00:00:00:78
    "#;
    for case in table.trim().lines() {
        let (spoil, words) = case.trim().split_once(" => ").unwrap();
        wired.shell(spoil);
        wired.is_seen(words);
        wired.follow_fixes();
        wired.is_whole();
    }
}

/// As the plugin `tuning` does behind podwire, which also writes it into prevResult.
#[test]
fn a_mac_address_that_port_security_drops_is_seen_whoever_says_that_it_is_right() {
    let node = TestNode::with_ovs();
    let agent = node.start_agent(&AgentOptions::default());
    for (name, secured) in [("closed", true), ("open", false)] {
        let pod = node.pod(name);
        let mut conf = podwire_tests::conf();
        conf["portSecurity"] = Value::Bool(secured);
        let mut result = pod.exec("ADD", &conf).success();
        let mac = "0a:58:0a:ba:00:77";
        pod.run("ip", format!("link set eth0 address {mac}"));
        result["interfaces"][1]["mac"] = mac.into();
        conf["prevResult"] = result;
        let checked = pod.exec("CHECK", &conf);
        let gateway = GATEWAY.parse().unwrap();
        if secured {
            let error = checked.error();
            error.assert_names(&["eth0", mac, "port security"]);
            traffic::ping(pod.place(), gateway, 1).unwrap_err();
        } else {
            checked.success();
            traffic::ping_until_answered(pod.place(), gateway).unwrap();
        }
    }
    drop(agent);
}

#[test]
fn a_host_end_in_another_namespace_is_missed() {
    let node = TestNode::with_ovs();
    let wired = Wired::on(&node);
    wired.shell("ip netns add elsewhere && ip link set $H netns elsewhere");
    wired.is_seen("the host has no link");
}

#[test]
fn another_link_of_the_host_ends_name_is_not_taken_for_it() {
    let node = TestNode::with_ovs();
    let wired = Wired::on(&node);
    wired.shell(
        "M=$(cat /sys/class/net/$H/address); ip link set $H down; ip link set $H name other; \
         ip link add $H address $M type veth peer name another; ip link set $H up",
    );
    wired.is_seen("is not the one that was created for it");
}

/// A new link of the same name, whose row comes anew in the same turn of ovs-vswitchd's main loop:
/// it keeps its socket on the old one, and says that all is well.
#[test]
fn a_port_that_carries_no_packets_is_seen_and_its_printed_command_opens_it_again() {
    let node = TestNode::with_ovs();
    let wired = Wired::on(&node);
    node.deafen_port(&wired.pod.container, |line| wired.shell(line));
    wired.is_seen("carries no packets");
    let done = node.podwire("ports --state failed");
    assert!(done.stdout.contains("tests/web"), "{}", done.stdout);
    wired.follow_fixes();
    node.await_ofport_of(&wired.pod.container);
    wired.is_whole();
}
