//! The rows by packets: two nodes with Open vSwitch and ovn-controller, a port for everybody, and
//! the first packet of every connection, sent as a frame. What arrives is answered, and the answer
//! arrives too, whatever its sender may begin himself.
//!
//! `make test-policy-packets` sends every packet of every case; `make test` those of some cases.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};
use podwire_tests::frames::socket_on;
use podwire_tests::ovn::{Central, OvnNode};

use crate::frames::{self, Kind, Mac, Tag, mark};
use crate::oracle::Oracle;
use crate::ovn::{Case, Switch};
use crate::world::{Packet, World, probes};

/// How often frames that did not arrive are sent again: a buffer may have been full.
const ATTEMPTS: usize = 5;
/// How long the last of some frames may take.
const PATIENCE: i64 = 1;
/// Room for all frames of a case.
const BUFFER: usize = 8 << 20;
/// As ovs-vswitchd's conntrack(8) of the userspace datapath knows them. SCTP's ports are none to
/// it; ovn-trace tells of those.
const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];

/// The ports of everybody, on two nodes.
struct Wires<'s> {
    switch: &'s Switch<'s>,
    nodes: [OvnNode; 2],
    /// Of each port in turn.
    sockets: Vec<OwnedFd>,
    marks: AtomicU32,
}

impl<'s> Wires<'s> {
    fn make(central: &'s Central, switch: &'s Switch<'s>) -> Self {
        let nodes = [("node-a", 1), ("node-b", 2)].map(|(name, number)| central.node(name, number));
        let sockets = switch.ports.iter().enumerate().map(|(number, port)| {
            let (node, link) = (&nodes[number % 2], format!("p{number}"));
            node.vsctl(format!(
                "add-port br-int {link} -- set interface {link} type=internal \
                 external_ids:iface-id={}",
                port.name
            ));
            node.run("ip", format!("link set {link} addrgenmode none up"));
            central.await_up(&port.name, true);
            let socket = socket_on(node.place(), &link).unwrap();
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).unwrap();
            setsockopt(
                &socket,
                sockopt::ReceiveTimeout,
                &TimeVal::seconds(PATIENCE),
            )
            .unwrap();
            socket
        });
        let sockets = sockets.collect();
        let wires = Self {
            switch,
            nodes,
            sockets,
            marks: AtomicU32::new(0),
        };
        // The first packet for another node waits for nothing while that one is looked up.
        for from in 0..wires.sockets.len() {
            wires.await_marks(from, wires.next_mark());
        }
        wires
    }

    fn next_mark(&self) -> u32 {
        self.marks.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until everything is in force, and nothing of the policies before is.
    fn settle(&self, central: &Central) {
        central.sync();
        for node in &self.nodes {
            node.await_revalidated();
            // Open vSwitch 3.1 keeps some cached flows that are wrong by then (docs/policy.md).
            node.appctl("revalidator/purge");
            node.appctl("dpctl/flush-conntrack");
        }
    }

    fn send(&self, port: usize, frame: &[u8]) {
        send(self.sockets[port].as_raw_fd(), frame, MsgFlags::empty()).unwrap();
    }

    /// Has a port send a mark to each other one, and reads of these what came before.
    fn await_marks(&self, from: usize, number: u32) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut left: Vec<usize> = (0..self.sockets.len()).filter(|to| *to != from).collect();
        for _ in 0..ATTEMPTS {
            for &to in &left {
                let macs = [from, to].map(|port| self.switch.ports[port].mac);
                self.send(from, &mark(macs, number));
            }
            left.retain(|to| !self.read(*to, number, &mut heard));
            if left.is_empty() {
                return heard;
            }
        }
        panic!("no mark from port {from} comes to {left:?}");
    }

    /// Reads what comes to a port before a mark; whether that came.
    fn read(&self, port: usize, number: u32, heard: &mut Vec<Heard>) -> bool {
        let mut frame = [0; 2048];
        let last = Tag {
            kind: Kind::Mark,
            number,
        };
        loop {
            let length = match recv(
                self.sockets[port].as_raw_fd(),
                &mut frame,
                MsgFlags::empty(),
            ) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return false,
                Err(error) => panic!("read frames of port {port}: {error}"),
            };
            match Tag::of(&frame[..length]) {
                Some(tag) if tag == last => return true,
                Some(tag) => heard.push((port, tag)),
                None => {}
            }
        }
    }

    fn place(&self, mac: Mac) -> usize {
        let mut ports = self.switch.ports.iter();
        ports.position(|port| port.mac == mac).unwrap()
    }
}

/// What a port heard.
type Heard = (usize, Tag);

/// What becomes of packets, by their numbers.
struct Seen {
    arrived: BTreeSet<u32>,
    /// Of these, those whose answer arrived.
    answered: BTreeSet<u32>,
}

impl Seen {
    /// Sends all of them, and answers to those that arrive.
    fn of(wires: &Wires<'_>, packets: &[Packet], expected: &BTreeSet<u32>) -> Self {
        let all = (0..).take(packets.len()).collect();
        let arrived = pass(wires, packets, Kind::Probe, &all, expected);
        let answered = pass(wires, packets, Kind::Answer, &arrived, &arrived);
        Self { arrived, answered }
    }
}

/// Sends packets of a kind, and again those of the expected that did not arrive; what did.
fn pass(
    wires: &Wires<'_>,
    packets: &[Packet],
    kind: Kind,
    sent: &BTreeSet<u32>,
    expected: &BTreeSet<u32>,
) -> BTreeSet<u32> {
    let mut arrived = BTreeSet::new();
    let mut pending = sent.clone();
    for _ in 0..ATTEMPTS {
        for from in 0..wires.sockets.len() {
            for &number in &pending {
                let packet = &packets[number as usize];
                let ends = match kind {
                    Kind::Answer => [packet.to, packet.from],
                    _ => [packet.from, packet.to],
                };
                let [sender, receiver] = ends.map(|it| wires.switch.with(it));
                if wires.place(sender.mac) == from {
                    let macs = [sender.mac, receiver.mac];
                    wires.send(from, &frames::frame(kind, macs, packet, number));
                }
            }
            for (port, tag) in wires.await_marks(from, wires.next_mark()) {
                let packet = &packets[tag.number as usize];
                let to = if tag.kind == Kind::Probe {
                    packet.to
                } else {
                    packet.from
                };
                let receiver = wires.switch.with(to);
                assert_eq!(wires.place(receiver.mac), port, "{packet:?}, {tag:?}");
                assert_eq!(tag.kind, kind, "{packet:?}");
                arrived.insert(tag.number);
            }
        }
        pending = expected.difference(&arrived).copied().collect();
        if pending.is_empty() {
            break;
        }
    }
    arrived
}

#[test]
fn packets_pass_of_each_case_as_the_api_says() {
    let is_whole = std::env::var_os("POLICY_PACKETS").is_some();
    let central = Central::start();
    let switch = Switch::make(&central);
    let wires = Wires::make(&central, &switch);
    let (mut sent, mut passed, mut wrong) = (0, 0, Vec::new());
    let all = switch.cases(1);
    let every = if is_whole { 1 } else { 41 };
    let cases: Vec<Case> = all.into_iter().step_by(every).collect();
    let count = cases.len();
    let packets: Vec<Packet> = probes(&World::new(serde_json::json!([])))
        .filter(|packet| PROTOCOLS.contains(&packet.protocol))
        .collect();
    for (at, Case { name, world, .. }) in cases.into_iter().enumerate() {
        switch.apply(&world);
        wires.settle(&central);
        let oracle = Oracle::new(&world);
        let passes = |number: &u32| oracle.passes(&packets[*number as usize]);
        let expected: BTreeSet<u32> = (0..).take(packets.len()).filter(passes).collect();
        let Seen { arrived, answered } = Seen::of(&wires, &packets, &expected);
        let differs = arrived.symmetric_difference(&expected);
        let not_answered = arrived.difference(&answered);
        for (number, what) in differs
            .map(|number| (number, "arrived"))
            .chain(not_answered.map(|number| (number, "was answered")))
        {
            let is_so = arrived.contains(number) && what == "arrived";
            let packet = &packets[*number as usize];
            wrong.push(format!("{name}: {packet:?} {what}: {is_so}"));
        }
        sent += packets.len();
        passed += arrived.len();
        if is_whole && at % 50 == 49 {
            println!("{} of {count} cases, {} wrong", at + 1, wrong.len());
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {sent}, as {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(10)]
    );
    assert!(sent / 10 < passed && passed < sent, "{passed} of {sent}");
    println!("{count} cases: {sent} packets sent, {passed} passed and were answered");
}
