//! The longest gap of a TCP stream while `podwire node init --profile bridged` moves the machine's
//! only NIC, beside the least that gives the same end state: one transaction of the database, by
//! ovs-vsctl(8), and one `ip -batch`, without a guard, a record or a look whether anybody answers.

use std::time::Duration;

use podwire_tests::Failure;
use podwire_tests::gap::Stream;
use podwire_tests::lan::Lan;
use podwire_tests::machine::Machine;

const MOVES: usize = 50;
/// What SPECIFICATION.md promises of the longest gap, in times of the floor's.
const PROMISE: f64 = 1.5;

const ROUTED: &str = "--ovn-remote tcp:203.0.113.6:6642";
const BRIDGED: &str = "--profile bridged --ovn-remote tcp:203.0.113.6:6642";

/// What is moved from one link to another, for `ip -batch`.
fn batch(from: &str, to: &str) -> String {
    format!(
        "address flush dev {from} scope global
link set {to} addrgenmode none
link set {to} up
address add 192.0.2.11/24 dev {to} noprefixroute
address add 2001:db8::11/64 dev {to} noprefixroute nodad
route replace 192.0.2.0/24 dev {to} proto kernel metric 100
route replace default via 192.0.2.1 dev {to} metric 100
route replace 2001:db8::/64 dev {to} proto kernel metric 100
route replace ::/0 via 2001:db8::1 dev {to} metric 100
"
    )
}

fn line(what: &str, gaps: &mut [Duration]) -> f64 {
    super::line(what, gaps);
    gaps[gaps.len() - 1].as_secs_f64()
}

pub(crate) fn measure() -> Result<(), Failure> {
    let (machine, lan) = Lan::with_machine();
    let node = machine.node();
    // Everything but the move.
    machine.init(ROUTED);
    let mac = node.run("cat", "/sys/class/net/eth0/address");
    let kind = node.vsctl("get bridge br-int datapath_type");
    let (mac, kind) = (mac.trim(), kind.trim());
    let there = format!(
        "add-br br-ex -- set bridge br-ex datapath_type={kind} other_config:hwaddr={mac} -- \
         add-port br-ex eth0"
    );
    let [into, back] = [("eth0", "br-ex"), ("br-ex", "eth0")].map(|(from, to)| batch(from, to));
    let batched = |lines: &str| {
        let line = format!("printf '%s' '{lines}' | ip -batch -");
        drop(node.run("sh", ["-ec", &line]));
    };
    let stream = Stream::start(lan.place(), node.place(), ([192, 0, 2, 1], 7000).into())?;
    let mut gaps = [(); 4].map(|()| Vec::new());
    let [usual, moved, least, back_again] = &mut gaps;
    for _ in 0..MOVES {
        stream.longest()?;
        std::thread::sleep(Duration::from_millis(100));
        usual.push(stream.longest()?);
        moved_by(&machine);
        moved.push(stream.longest()?);
        machine.podwire_node("rollback", "").success("rollback");
        back_again.push(stream.longest()?);
        node.vsctl(&*there);
        batched(&into);
        least.push(stream.longest()?);
        node.vsctl("del-port br-ex eth0");
        batched(&back);
        node.vsctl("del-br br-ex");
        stream.longest()?;
    }
    drop(stream);
    machine.cleanup("");
    println!("longest gap of a TCP stream, {MOVES} rounds        median   longest");
    line("nothing happens", usual);
    let ours = line("podwire node init --profile bridged", moved);
    line("podwire node rollback", back_again);
    let floor = line("one transaction and one ip -batch", least);
    println!(
        "\nthe longest of a move is {:.2} times the floor's (promised: {PROMISE})",
        ours / floor
    );
    Ok(())
}

#[track_caller]
fn moved_by(machine: &Machine) {
    let said = machine.init(BRIDGED);
    assert!(said.contains("made uplink eth0 in br-ex"), "{said}");
}
