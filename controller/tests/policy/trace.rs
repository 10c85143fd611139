//! The rows by OVN's own words: ovn-northd makes flows of them, and ovn-trace says what they let
//! pass.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::cases;
use crate::generated;
use crate::oracle::Oracle;
use crate::rows::Rows;
use crate::world::{OUTSIDE, Packet, World, probes};

/// The logical switch of everybody.
const SWITCH: &str = "everybody";

/// A logical port, with both its addresses.
struct Port {
    name: String,
    mac: String,
    addresses: [IpAddr; 2],
}

/// The logical ports of the pods, and of the machine outside.
fn ports(world: &World) -> Vec<Port> {
    let pods = world.pods.iter();
    let pods = pods.map(|pod| (format!("{}_{}", pod.namespace, pod.name), pod.addresses));
    let outside = OUTSIDE.map(|address| address.parse().unwrap());
    let all = pods.chain([("outside".to_owned(), outside)]).enumerate();
    let port = |(number, (name, addresses))| Port {
        name,
        mac: format!("0a:58:00:00:00:{number:02x}"),
        addresses,
    };
    all.map(port).collect()
}

/// The packet in OVN's words, and the output that lets it pass.
fn microflow(ports: &[Port], packet: &Packet) -> (String, String) {
    let of = |address: &IpAddr| {
        let mut ports = ports.iter();
        ports.find(|port| port.addresses.contains(address)).unwrap()
    };
    let (from, to) = (of(&packet.from), of(&packet.to));
    let ip = if packet.from.is_ipv4() { "ip4" } else { "ip6" };
    let protocol = packet.protocol.to_lowercase();
    let flow = format!(
        "inport == \"{}\" && eth.src == {} && eth.dst == {} && {ip}.src == {} && {ip}.dst == {} \
         && ip.ttl == 64 && {protocol}.src == 40000 && {protocol}.dst == {}",
        from.name, from.mac, to.mac, packet.from, packet.to, packet.port
    );
    (flow, format!("output to \"{}\"", to.name))
}

/// `make test-policy-traces` asks about all packets.
#[test]
fn ovn_lets_pass_of_each_case_what_the_api_says() {
    let every = match std::env::var_os("POLICY_TRACES") {
        Some(_) => 1,
        None => 53,
    };
    let central = Central::start();
    let ports = ports(&World::new(json!([])));
    let northbound = central.northbound();
    central.nbctl(format!("ls-add {SWITCH}"));
    for port in &ports {
        let [v4, v6] = port.addresses;
        let (name, mac) = (&port.name, &port.mac);
        central.nbctl(format!(
            "lsp-add {SWITCH} {name} -- lsp-set-addresses {name} '{mac} {v4} {v6}'"
        ));
    }
    let rows = northbound.rows("Logical_Switch_Port").unwrap();
    let uuids = rows.into_iter().map(|row| {
        let name = row["name"].as_str().unwrap().to_owned();
        (name, row["_uuid"].clone())
    });
    let uuids: BTreeMap<String, Value> = uuids.collect();
    let (mut traced, mut wrong) = (0, Vec::new());
    let by_hand = cases::all().into_iter();
    let by_hand = by_hand.map(|(name, policies)| (name.to_owned(), policies));
    // Of those that are generated, one of some.
    let generated = generated::all().into_iter().step_by(every.min(9));
    for (at, (name, policies)) in by_hand.chain(generated).enumerate() {
        let world = World::new(policies);
        let operations = Rows::of(&world).northbound(&uuids);
        northbound.transact(&operations).unwrap();
        central.nbctl("--wait=sb sync");
        let tracer = central.tracer();
        let oracle = Oracle::new(&world);
        // Others in each case.
        for probe in probes(&world).skip(at % every).step_by(every) {
            let (flow, output) = microflow(&ports, &probe);
            let passes = tracer.trace(SWITCH, &flow).contains(&output);
            traced += 1;
            if passes != oracle.passes(&probe) {
                wrong.push(format!("{name}: {probe:?} passes: {passes}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {traced}, as {}",
        wrong.len(),
        wrong[0]
    );
    assert!(traced > 1000, "{traced}");
}
