//! The second gateway bridge, on a spare NIC.

use super::*;

fn mappings(machine: &Machine) -> String {
    let get = "get open_vswitch . external_ids:ovn-bridge-mappings";
    machine.node().vsctl(get)
}

#[test]
fn a_second_bridge_has_a_spare_nic_that_is_chosen_once() {
    let (machine, lan) = machine();
    let node = machine.node();
    for (spare, far) in [("eth1", "far1"), ("eth2", "far2")] {
        node.run("ip", format!("link add {spare} type veth peer name {far}"));
        for link in [spare, far] {
            node.run("ip", format!("link set {link} addrgenmode none"));
            node.run("ip", format!("link set {link} up"));
        }
    }
    let before = machine.snapshot();
    machine.init(format!("{BRIDGED} --extra-interface eth1"));
    assert_moved(&machine);
    assert_eq!(node.vsctl("list-ports br-ex1").trim(), "eth1");
    let both = "\"exgwphysnet:br-ex1,physnet:br-ex\"";
    assert_eq!(mappings(&machine).trim(), both);
    let again = machine.init(format!("{BRIDGED} --extra-interface eth1"));
    assert!(again.starts_with("0 steps: "), "{again}");
    for (spare, words) in [
        ("eth2", "--extra-interface eth2: eth1 is the NIC of br-ex1"),
        ("eth0", "--extra-interface eth0: eth1 is the NIC of br-ex1"),
    ] {
        let flags = format!("{BRIDGED} --extra-interface {spare}");
        let other = machine.podwire_node("init", flags);
        assert!(!other.status.success(), "{other:?}");
        let said = format!("{}{}", other.stdout, other.stderr);
        assert!(said.contains(words), "{said}");
        assert_eq!(node.vsctl("list-ports br-ex1").trim(), "eth1");
    }
    lan.assert_reached(&machine);
    machine.cleanup("");
    let bridges = node.vsctl("list-br");
    assert!(!bridges.contains("br-ex"), "{bridges}");
    // The gateway's own NIC is no spare one.
    let own = machine.podwire_node("init", format!("{BRIDGED} --extra-interface eth0"));
    own.assert_says(Some(1), &["--extra-interface eth0", "leads to the default"]);
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}
