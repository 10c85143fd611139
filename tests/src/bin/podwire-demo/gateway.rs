//! `make demo-gateway`: a machine's only NIC, which systemd-networkd configures by DHCP, is moved
//! into br-ex and back while a TCP stream goes over it; then a move that can't succeed undoes
//! itself.

use std::path::PathBuf;
use std::time::Duration;

use podwire_tests::gap::Stream;
use podwire_tests::lan::{Dhcp, Lan};
use podwire_tests::machine::Machine;

use crate::proof::{Proof, expect};
use crate::stage::Stage;
use crate::{kept_logs, marks, nothing_left};

const OWN: &str = "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=yes\n\
                   Address=2001:db8::11/64\n[Route]\nDestination=203.0.113.0/24\n\
                   Gateway=192.0.2.1\nGatewayOnLink=yes\n";
const BRIDGED: &str = "--profile bridged --ovn-remote tcp:203.0.113.6:6642";

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    let proof = stage.silent(Proof::start).map_err(|()| None)?;
    let (machine, lan) = stage
        .step("a machine with one NIC, a gateway with DHCP", || {
            Ok((Lan::with_machine(), "eth0".to_owned()))
        })
        .map_err(|()| None)?;
    let node = machine.node();
    let marks = marks(&[node]);
    let namespaces = vec![node.place().network_inode(), lan.place().network_inode()];
    story(stage, &machine, &lan).map_err(|()| kept_logs(&[node]))?;
    drop(lan);
    drop(machine);
    nothing_left(stage, &proof, &marks, &namespaces)
}

fn story(stage: &Stage, machine: &Machine, lan: &Lan) -> Result<(), ()> {
    let node = machine.node();
    let dhcp = Dhcp::start(machine, lan);
    let networkd = stage.step(
        "systemd-networkd configures eth0 by DHCP and by file",
        || Ok((Lan::networkd(machine, OWN), address(machine, "eth0"))),
    )?;
    let stream = stage.step(
        "a TCP stream from the gateway, a byte each millisecond",
        || {
            let at = ([192, 0, 2, 1], 7000).into();
            let stream = Stream::start(lan.place(), node.place(), at)?;
            let usual = stream.longest()?;
            Ok((stream, gap(usual)))
        },
    )?;
    stage.step("podwire node init --profile bridged", || {
        let said = machine
            .podwire_node("init", BRIDGED)
            .success("podwire node init");
        expect(
            "init",
            "eth0 in br-ex",
            said.contains("made uplink eth0 in br-ex"),
            || said.clone(),
        )?;
        Ok(((), gap(stream.longest()?)))
    })?;
    stage.step("the lease and its client on br-ex", || {
        let clients = dhcp.clients();
        let is_one = clients.len() == 1 && !dhcp.log().contains("DHCPRELEASE");
        expect("the server's leases", "one, never released", is_one, || {
            dhcp.log()
        })?;
        Ok(((), address(machine, "br-ex")))
    })?;
    stage.step("podwire node rollback", || {
        let said = machine
            .podwire_node("rollback", "")
            .success("podwire node rollback");
        expect(
            "rollback",
            "moved",
            said.contains("moved eth0 out of br-ex"),
            || said.clone(),
        )?;
        Ok(((), gap(stream.longest()?)))
    })?;
    stage.step("the gateway answers once more, and then no longer", || {
        lan.answer_once();
        Ok(((), "1 answer".to_owned()))
    })?;
    stage.step(
        "podwire node init: refused after the move, and moved back",
        || {
            let said = machine.podwire_node("init", BRIDGED);
            lan.answer_all();
            let is_undone = said.stderr.contains("was moved back");
            expect("init", "moved back", is_undone, || said.stderr.clone())?;
            Ok(((), gap(stream.longest()?)))
        },
    )?;
    stage.step("everything reaches the machine at its old address", || {
        lan.assert_reached(machine);
        Ok(((), address(machine, "eth0")))
    })?;
    drop(stream);
    drop(networkd);
    Ok(())
}

fn gap(longest: Duration) -> String {
    format!("longest gap {:.1} ms", longest.as_secs_f64() * 1000.0)
}

fn address(machine: &Machine, link: &str) -> String {
    let show = ["-4", "-o", "address", "show", "dev", link];
    let shown = machine.node().run("ip", show);
    let mut words = shown.split_whitespace().skip_while(|word| *word != "inet");
    words.nth(1).unwrap_or("none").to_owned() + " on " + link
}
