//! What others change after the move.

use super::*;

/// The one that it had before is nobody's by then, or another machine's.
#[test]
fn a_machine_that_is_renumbered_on_the_bridge_goes_back_with_its_new_address() {
    let (machine, _lan) = machine();
    let node = machine.node();
    machine.init(BRIDGED);
    for line in [
        "address del 192.0.2.11/24 dev br-ex",
        "address add 192.0.2.99/24 dev br-ex",
        "route replace default via 192.0.2.20 dev br-ex metric 100",
    ] {
        node.run("ip", line);
    }
    machine.podwire_node("rollback", "").success("rollback");
    let there = addresses(&machine, "eth0");
    assert!(there.contains("192.0.2.99/24"), "{there}");
    assert!(!there.contains("192.0.2.11/24"), "{there}");
    let routes = node.run("ip", "-4 route show default");
    assert_eq!(
        routes.trim(),
        "default via 192.0.2.20 dev eth0 metric 100",
        "{routes}"
    );
    machine.cleanup("");
}
