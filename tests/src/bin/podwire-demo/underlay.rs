//! `make demo-underlay`: two machines with a spare NIC each on a switch with VLANs. The node role
//! makes a bridge of the NIC, pods on it are in VLAN 100 of the physical network and have addresses
//! of its DHCP server and its router, and a host outside talks to them, and takes an address of
//! theirs.

use std::net::IpAddr;
use std::path::PathBuf;

use podwire_tests::dhcp::Dhcp;
use podwire_tests::frames::{self, Capture};
use podwire_tests::machine::Machine;
use podwire_tests::{
    Agent, AgentOptions, Failure, Place, Pod, TestNode, addresses, links, run_in, traffic,
};
use serde_json::{Value, json};

use crate::proof::{Proof, expect};
use crate::stage::{self, Stage};
use crate::{TCP_BYTES, kept_logs, marks, nothing_left, parsed};

const BRIDGE: &str = "--data-bridge br-data:eth1:physnet1";
const VLAN: u16 = 100;
const OUTSIDE: &str = "198.51.100.1";
const OUTSIDE_IPV6: &str = "2001:db8:100::1";
const NAMES: [&str; 2] = ["node-a", "node-b"];

/// Leases of two minutes, which clients renew after three seconds; and router advertisements.
const LEASES: [&str; 6] = [
    "--enable-ra",
    "--dhcp-range=2001:db8:100::,ra-only,64,600",
    "--dhcp-range=198.51.100.50,198.51.100.99,120",
    "--dhcp-option=58,3",
    "--dhcp-option=59,60",
    "--no-ping",
];

/// What a pod of the other VLAN has, where no server is.
const STRANGER: &str = "198.51.100.13";

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let (switch, machines) = stage
        .step("two machines with a spare NIC each, a switch", || {
            Ok((
                (TestNode::new(), NAMES.map(|_| Machine::new())),
                String::new(),
            ))
        })
        .map_err(|()| None)?;
    let outside = switch.place().with_new_network();
    let all = [&switch, machines[0].node(), machines[1].node()];
    let marks = marks(&all);
    let mut namespaces: Vec<u64> = all.map(|it| it.place().network_inode()).into();
    namespaces.push(outside.network_inode());
    story(stage, &switch, &outside, &machines).map_err(|()| kept_logs(&all))?;
    drop((outside, machines, switch));
    nothing_left(stage, &proof, &marks, &namespaces)
}

fn story(
    stage: &Stage,
    switch: &TestNode,
    outside: &Place,
    machines: &[Machine; 2],
) -> Result<(), ()> {
    stage.step(
        "the switch carries VLANs; a host of VLAN 100 is at it",
        || {
            switch.start_ovsdb_server();
            switch.start_vswitchd();
            switch.add_bridge("br-wire");
            for (name, machine) in NAMES.iter().zip(machines) {
                plug(machine.node().place(), "eth1", switch, name)?;
            }
            plug(outside, "eth0", switch, "outside")?;
            let wires = NAMES.map(|name| format!("add-port br-wire {name}"));
            switch.vsctl(wires.join(" -- "));
            switch.vsctl(format!("add-port br-wire outside tag={VLAN}"));
            for net in [format!("{OUTSIDE}/24"), format!("{OUTSIDE_IPV6}/64 nodad")] {
                run_in(outside, "ip", format!("address add {net} dev eth0"))?;
            }
            Ok(((), format!("{OUTSIDE}/24, {OUTSIDE_IPV6}/64")))
        },
    )?;
    let dhcp = stage.step("a DHCP server and router runs on that host", || {
        let dhcp = Dhcp::dnsmasq(switch, outside, &LEASES);
        Ok((dhcp, "leases of 2 min, T1 after 3 s".to_owned()))
    })?;
    let runs = stage.step(&format!("podwire node run {BRIDGE}"), || {
        let runs = machines.each_ref().map(|machine| machine.start_run(BRIDGE));
        let bridges = machines[0].node().vsctl("list-ports br-data");
        expect("br-data", "eth1", bridges.trim() == "eth1", || {
            bridges.clone()
        })?;
        Ok((runs, "eth1 in br-data".to_owned()))
    })?;
    let agents = stage.step("podwire agent on both", || {
        let options = AgentOptions::default().with("--mode ovn --wait ofport");
        let agents = machines.each_ref().map(|machine| {
            let node = machine.node();
            // It is mapped for OVN, and also for pods of the plain kind.
            node.vsctl("br-set-external-id br-data podwire.io/attach true");
            node.start_agent(&options)
        });
        Ok((agents, String::new()))
    })?;
    let mut pods = Vec::new();
    for (machine, name, vlan) in [
        (&machines[0], "web", VLAN),
        (&machines[1], "db", VLAN),
        (&machines[1], "stranger", VLAN + 1),
    ] {
        let from = match vlan {
            VLAN => "addresses from server and router",
            _ => STRANGER,
        };
        let title = format!("ADD {name}, VLAN {vlan}, {from}");
        pods.push(stage.step(&title, || {
            let conf = conf(vlan);
            let pod = machine.node().pod(name);
            let add = pod.exec("ADD", &conf);
            let all = addresses(&add.success())?;
            let took = stage::milliseconds(add.duration());
            let shown: Vec<String> = all.iter().map(ToString::to_string).collect();
            Ok(((pod, conf, all), format!("{}, {took}", shown.join(", "))))
        })?);
    }
    let [(web, _, of_web), (db, _, of_db), (stranger, ..)] = &pods[..] else {
        unreachable!("three were wired")
    };
    let [web, db] = [(web, &**of_web), (db, &**of_db)];
    stage.say(&picture(web.1, db.1));
    talk(stage, outside, [web, db])?;
    take(stage, outside, web, &agents[0])?;
    stage.step("who is in another VLAN hears nobody", || {
        let silent = traffic::ping(stranger.place(), parsed(OUTSIDE)?, 1).is_err();
        expect("stranger", "no answer", silent, || "an answer".to_owned())?;
        Ok(((), format!("VLAN {}", VLAN + 1)))
    })?;
    let agents = stage.step(
        "the agents are replaced, and the new ones renew the leases",
        || {
            let agents = agents.map(|agent| agent.kill_and_restart());
            for (_, all) in [web, db] {
                let renewed = format!("DHCPACK(eth0) {} ", all[0]);
                dhcp.await_count(&renewed, dhcp.count(&renewed) + 1);
            }
            Ok((agents, "T1".to_owned()))
        },
    )?;
    stage.step(
        "somebody takes the NIC out of the bridge: it is put back",
        || {
            machines[0].node().vsctl("del-port br-data eth1");
            runs[0].await_log("restored NIC eth1 in br-data (was missing)", 1);
            traffic::ping_until_answered(web.0.place(), parsed(OUTSIDE)?)?;
            Ok(((), String::new()))
        },
    )?;
    stage.step("DEL, the agents and the node role end, cleanup", || {
        for (pod, conf, _) in &pods {
            pod.exec("DEL", conf).success();
        }
        let left = dhcp.clients();
        expect("leases", "none", left.is_empty(), || left.join(", "))?;
        let agents = agents.into_iter().map(|agent| agent.stop());
        let mut ended = agents.chain(runs.into_iter().map(|run| run.stop()));
        let well = ended.all(|status| status.success());
        expect("agents and node roles", "exit status 0", well, || {
            "another".to_owned()
        })?;
        for machine in machines {
            machine.cleanup("");
            let left = machine.node().vsctl("list-br");
            expect("bridges", "no br-data", !left.contains("br-data"), || {
                left.clone()
            })?;
        }
        Ok(((), String::new()))
    })
}

/// Each pod and the host outside, and the pods with each other.
fn talk(stage: &Stage, outside: &Place, pods: [(&Pod<'_>, &[IpAddr]); 2]) -> Result<(), ()> {
    let [(web, of_web), (db, of_db)] = pods;
    let mebibytes = TCP_BYTES >> 20;
    let across = "web and db, across the switch,";
    for (title, from, to, at) in [
        ("the host outside and web", outside, web.place(), of_web[0]),
        ("the host outside and db", outside, db.place(), of_db[0]),
        (across, web.place(), db.place(), of_db[1]),
    ] {
        let family = if at.is_ipv4() { "IPv4" } else { "IPv6" };
        let title = format!("{title} exchange {mebibytes} MiB by TCP over {family}");
        stage.step(&title, || {
            traffic::ping_until_answered(from, at)?;
            let started = std::time::Instant::now();
            traffic::tcp_echo(from, to, at, TCP_BYTES)?;
            Ok(((), stage::milliseconds(started.elapsed())))
        })?;
    }
    Ok(())
}

/// The host outside says that a pod's address is its own.
fn take(
    stage: &Stage,
    outside: &Place,
    (web, of_web): (&Pod<'_>, &[IpAddr]),
    agent: &Agent<'_>,
) -> Result<(), ()> {
    let title = "the host outside says that web's address is its own: the agent answers for web";
    stage.step(title, || {
        let IpAddr::V4(address) = of_web[0] else {
            unreachable!("its first address is of the family that is asked for first")
        };
        let heard = Capture::on(outside, "eth0")?;
        let claim = frames::arp_announcement([2, 0, 0, 0, 0, 9], address);
        frames::send(outside, "eth0", &[claim])?;
        agent.await_log("another host says that the pod's address is its own");
        let own = links::mac(web.place(), "eth0");
        heard.until(|frame| frame == frames::arp_announcement(own, address))?;
        traffic::ping_until_answered(outside, of_web[0])?;
        Ok(((), of_web[0].to_string()))
    })
}

fn conf(vlan: u16) -> Value {
    let ipam = match vlan {
        VLAN => json!({"type": "dhcp", "ipFamilies": ["IPv4", "IPv6"]}),
        _ => json!({"type": "static", "addresses": [{"address": format!("{STRANGER}/24")}]}),
    };
    json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "podwire-cni", "bridge": "br-data",
        "vlan": vlan, "ipam": ipam,
    })
}

fn picture(web: &[IpAddr], db: &[IpAddr]) -> String {
    let [web, db] = [web, db].map(|all| all[0].to_string());
    format!(
        "
                   switch
  host outside ──── VLAN 100
  {OUTSIDE}        ║
                      ╠══ eth1 ─ br-data ─ VLAN 100 ─ web       {web:15} node-a
                      ║
                      ╚══ eth1 ─ br-data ┬ VLAN 100 ─ db        {db:15} node-b
                                         └ VLAN 101 ─ stranger  {STRANGER:15}
"
    )
}

/// A cable from a new NIC of a place to a new port of the switch.
fn plug(place: &Place, nic: &str, switch: &TestNode, port: &str) -> Result<(), Failure> {
    let switch_s = switch.place().network_path();
    let peer = format!("type veth peer name {port} netns {switch_s}");
    run_in(place, "ip", format!("link add {nic} {peer}"))?;
    // The switch's packets have no checksums that hardware would add.
    run_in(place, "ethtool", format!("-K {nic} tx off"))?;
    run_in(place, "ip", format!("link set {nic} up"))?;
    run_in(switch.place(), "ip", format!("link set {port} up"))?;
    Ok(())
}
