//! How long `podwire node init` takes on a fresh machine, and for how long each item is away that
//! somebody removes, beside the same steps done by commands as ovn-kubernetes' node process does
//! them (ovs-vsctl, ip, iptables), which looks for what is gone each 15 s (flows) or 30 s (the
//! management port; go-controller/pkg/node).
//!
//! With `move`, for how long a machine whose NIC is moved into br-ex is not reached ([`moves`]).
//!
//! Times are of one machine and one run: what counts is the ratio. Prints a table.

mod moves;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use podwire_tests::machine::await_well;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Failure, NodeRun};

const ROUNDS: usize = 10;
/// Longer than anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

/// The steps of ovn-kubernetes' node for the same machine, each a command.
const COMMANDS: &str = r#"
ovs-vsctl --timeout=15 set Open_vSwitch . external_ids:hostname=node-a external_ids:ovn-encap-type=geneve
ovs-vsctl --timeout=15 set Open_vSwitch . external_ids:ovn-encap-ip=172.31.0.2
ovs-vsctl --timeout=15 set Open_vSwitch . external_ids:ovn-remote=tcp:172.31.0.1:6642
ovs-vsctl --timeout=15 set Open_vSwitch . external_ids:ovn-remote-probe-interval=100000
ovs-vsctl --timeout=15 set Open_vSwitch . external_ids:ovn-openflow-probe-interval=180
ovs-vsctl --timeout=15 set Open_vSwitch . external_ids:ovn-monitor-all=true external_ids:ovn-enable-lflow-cache=true
ovs-vsctl --timeout=15 -- --may-exist add-port br-int ovn-k8s-mp0 -- set interface ovn-k8s-mp0 type=internal mtu_request=1400 external-ids:iface-id=k8s-node-a
ovs-vsctl --timeout=15 --if-exists get interface ovn-k8s-mp0 mac_in_use
ovs-vsctl --timeout=15 set interface ovn-k8s-mp0 mac=\"0a:58:0a:80:01:02\"
ip link set ovn-k8s-mp0 up
ip address add 10.128.1.2/24 dev ovn-k8s-mp0
ip address add fd00:10:128:1::2/64 dev ovn-k8s-mp0 nodad
ip neighbour replace 10.128.1.1 lladdr 0a:58:0a:80:01:01 dev ovn-k8s-mp0
ip -6 neighbour replace fd00:10:128:1::1 lladdr 0a:58:0a:80:01:01 dev ovn-k8s-mp0
ip route replace 10.128.0.0/14 via 10.128.1.1 dev ovn-k8s-mp0
ip route replace 10.96.0.0/16 via 10.128.1.1 dev ovn-k8s-mp0
ip -6 route replace fd00:10:128::/48 via fd00:10:128:1::1 dev ovn-k8s-mp0
ip -6 route replace fd00:10:96::/112 via fd00:10:128:1::1 dev ovn-k8s-mp0
sysctl -qw net.ipv4.conf.ovn-k8s-mp0.forwarding=1
sysctl -qw net.ipv4.conf.br-phy.forwarding=1
sysctl -qw net.ipv6.conf.all.forwarding=1
for t in iptables ip6tables; do $t -t nat -N OVN-KUBE-SNAT-MGMTPORT; $t -t nat -C POSTROUTING -o ovn-k8s-mp0 -j OVN-KUBE-SNAT-MGMTPORT 2>/dev/null || $t -t nat -I POSTROUTING -o ovn-k8s-mp0 -j OVN-KUBE-SNAT-MGMTPORT; done
iptables -t nat -C OVN-KUBE-SNAT-MGMTPORT -o ovn-k8s-mp0 -j SNAT --to-source 10.128.1.2 2>/dev/null || iptables -t nat -I OVN-KUBE-SNAT-MGMTPORT -o ovn-k8s-mp0 -j SNAT --to-source 10.128.1.2
ip6tables -t nat -C OVN-KUBE-SNAT-MGMTPORT -o ovn-k8s-mp0 -j SNAT --to-source fd00:10:128:1::2 2>/dev/null || ip6tables -t nat -I OVN-KUBE-SNAT-MGMTPORT -o ovn-k8s-mp0 -j SNAT --to-source fd00:10:128:1::2
"#;

/// Back to a machine that is no node.
const UNDO: &str = r#"
ovs-vsctl del-port ovn-k8s-mp0
for key in hostname ovn-encap-type ovn-encap-ip ovn-remote ovn-remote-probe-interval ovn-openflow-probe-interval ovn-monitor-all ovn-enable-lflow-cache; do ovs-vsctl --no-wait remove Open_vSwitch . external_ids $key; done
sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv4.conf.br-phy.forwarding=0
for t in iptables ip6tables; do $t -t nat -F; $t -t nat -X; done
"#;

/// What is removed, and what is there when it is back; both for the shell.
const DEEDS: [(&str, &str, &str); 8] = [
    (
        "address deleted",
        "ip address del 10.128.1.2/24 dev ovn-k8s-mp0",
        "ip -o address show dev ovn-k8s-mp0 | grep -q 10.128.1.2/24 && ip route show 10.96.0.0/16 \
         | grep -q mp0",
    ),
    (
        "route deleted",
        "ip route del 10.96.0.0/16",
        "ip route show 10.96.0.0/16 | grep -q mp0",
    ),
    (
        "neighbour deleted",
        "ip neighbour del 10.128.1.1 dev ovn-k8s-mp0",
        "ip neighbour show 10.128.1.1 | grep -q PERMANENT",
    ),
    (
        "link set down",
        "ip link set ovn-k8s-mp0 down",
        "ip route show 10.96.0.0/16 | grep -q mp0",
    ),
    (
        "forwarding off",
        "echo 0 >/proc/sys/net/ipv4/conf/br-phy/forwarding",
        "grep -q 1 /proc/sys/net/ipv4/conf/br-phy/forwarding",
    ),
    (
        "nft flush ruleset",
        "nft flush ruleset",
        "nft list table inet podwire-node >/dev/null 2>&1",
    ),
    (
        "key of external_ids removed",
        "ovs-vsctl --no-wait remove open_vswitch . external_ids ovn-remote",
        "ovs-vsctl --no-wait get open_vswitch . external_ids:ovn-remote >/dev/null 2>&1",
    ),
    (
        "port deleted",
        "ovs-vsctl --no-wait del-port ovn-k8s-mp0",
        "ip route show 10.96.0.0/16 | grep -q mp0 && ip -o address show dev ovn-k8s-mp0 | grep -q \
         10.128.1.2/24",
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let measured = match &arguments[..] {
        [] => measure(),
        ["move"] => moves::measure(),
        _ => {
            eprintln!("usage: podwire-bench-node [move]");
            return ExitCode::from(2);
        }
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("podwire-bench-node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Failure> {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    let mut init = Vec::new();
    let mut again = Vec::new();
    let mut commands = Vec::new();
    for _ in 0..ROUNDS {
        init.push(time(|| podwire(&node, "init"))?);
        again.push(time(|| podwire(&node, "init"))?);
        podwire(&node, "cleanup")?;
        commands.push(time(|| shell(&node, COMMANDS))?);
        shell(&node, UNDO)?;
    }
    println!("a machine made a node, {ROUNDS} rounds          median   longest");
    line("podwire node init", &mut init);
    line("the same steps by commands", &mut commands);
    line("podwire node init, nothing to do", &mut again);

    println!("\naway under `podwire node run`              median   longest");
    for (what, deed, is_back) in DEEDS {
        // Each by a process of its own: more than ten of one item within a minute are a fight.
        let run = NodeRun::start(&node, node.host_arguments("run", None));
        let mut away = Vec::new();
        for _ in 0..ROUNDS / 2 {
            await_well(&node, node.host_arguments("show", None));
            let line = format!("{deed}; until {is_back}; do :; done");
            away.push(time(|| shell(&node, &line))?);
        }
        run.stop();
        line(what, &mut away);
    }
    println!("\neach time includes the commands that remove the item and look for it");
    Ok(())
}

fn podwire(node: &OvnNode, verb: &str) -> Result<(), Failure> {
    let mut line = node.host_arguments(verb, None);
    if verb == "cleanup" {
        line.truncate(2);
    }
    node.podwire(line).success("podwire node");
    Ok(())
}

fn shell(node: &OvnNode, line: &str) -> Result<(), Failure> {
    let limit = LIMIT.as_secs().to_string();
    node.run("timeout", [&limit, "sh", "-ec", line]);
    Ok(())
}

fn time(work: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

fn line(what: &str, times: &mut [Duration]) {
    times.sort();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{what:40} {:6.1} ms {:6.1} ms",
        median.as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3
    );
}
