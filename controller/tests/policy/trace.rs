//! The rows by OVN's own words: ovn-northd makes flows of them, and ovn-trace says what they let
//! pass.

use podwire_tests::ovn::Central;

use crate::oracle::Oracle;
use crate::ovn::{Case, SWITCH, Switch};
use crate::world::{Packet, probes};

/// The packet in OVN's words, and the output that lets it pass.
fn microflow(switch: &Switch<'_>, packet: &Packet) -> (String, String) {
    let (from, to) = (switch.with(packet.from), switch.with(packet.to));
    let ip = if packet.from.is_ipv4() { "ip4" } else { "ip6" };
    let protocol = packet.protocol.to_lowercase();
    let flow = format!(
        "inport == \"{}\" && eth.src == {} && eth.dst == {} && {ip}.src == {} && {ip}.dst == {} \
         && ip.ttl == 64 && {protocol}.src == 40000 && {protocol}.dst == {}",
        from.name,
        from.mac(),
        to.mac(),
        packet.from,
        packet.to,
        packet.port
    );
    (flow, format!("output to \"{}\"", to.name))
}

/// `make test-policy-traces` asks about all packets of each case that is written by hand, and about
/// one of seven of those that are generated.
#[test]
fn ovn_lets_pass_of_each_case_what_the_api_says() {
    let is_whole = std::env::var_os("POLICY_TRACES").is_some();
    let central = Central::start();
    let switch = Switch::make(&central);
    let (mut traced, mut wrong) = (0, Vec::new());
    let one_of = if is_whole { 1 } else { 9 };
    for (at, case) in switch.cases(one_of).into_iter().enumerate() {
        let every = case.every(is_whole);
        let Case { name, world, .. } = case;
        switch.apply(&world);
        let tracer = central.tracer();
        let oracle = Oracle::new(&world);
        // Others in each case.
        for probe in probes(&world).skip(at % every).step_by(every) {
            let (flow, output) = microflow(&switch, &probe);
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
    println!("{traced} packets traced");
}
