//! What others change after the move: addresses, routes and the MTU of the NIC and of br-ex. It
//! stays, goes back with the NIC, and what was there before comes back with it.

use podwire_tests::lan::Dhcp;
use podwire_tests::managers::Manager;

use super::*;

fn mtu(machine: &Machine, link: &str) -> String {
    let mtu = machine
        .node()
        .run("cat", format!("/sys/class/net/{link}/mtu"));
    mtu.trim().to_owned()
}

/// Waits until a link has this MTU.
#[track_caller]
fn await_mtu(machine: &Machine, link: &str, wanted: &str) {
    machine.await_set(&format!("MTU {wanted} of {link}"), || {
        let seen = mtu(machine, link);
        (seen == wanted).then_some(()).ok_or(seen)
    });
}

#[test]
fn what_others_change_on_the_bridge_goes_back_with_the_nic() {
    let (machine, lan) = machine();
    let node = machine.node();
    let before = machine.snapshot();
    machine.init(BRIDGED);
    let run = machine.start_run(BRIDGED);
    for line in [
        "address add 192.0.2.78/24 dev br-ex",
        // Without this flag the kernel removes a route of the network with it, whoever made it.
        "address add 2001:db8::78/64 dev br-ex nodad noprefixroute",
        "route add 198.51.100.0/24 via 192.0.2.20 dev br-ex",
        "-6 route add 2001:db8:114::/64 via 2001:db8::20 dev br-ex",
        "rule add iif br-ex priority 101 lookup 8",
    ] {
        node.run("ip", line);
    }
    machine.podwire_node("rollback", "").success("rollback");
    assert!(run.stop().success());
    let there = addresses(&machine, "eth0");
    for address in ["192.0.2.11/24", "192.0.2.78/24", "2001:db8::78/64"] {
        assert!(there.contains(address), "{address}: {there}");
    }
    for (family, route) in [
        ("-4", "198.51.100.0/24 via 192.0.2.20 dev eth0"),
        ("-6", "2001:db8:114::/64 via 2001:db8::20 dev eth0"),
    ] {
        let routes = node.run("ip", format!("{family} route"));
        assert!(routes.contains(route), "{route}: {routes}");
    }
    let rules = node.run("ip", "rule show priority 101");
    assert!(rules.contains("iif eth0 lookup 8"), "{rules}");
    lan.assert_reached(&machine);
    for line in [
        "rule del priority 101",
        "route del 198.51.100.0/24",
        "-6 route del 2001:db8:114::/64",
        "address del 192.0.2.78/24 dev eth0",
        "address del 2001:db8::78/64 dev eth0",
    ] {
        node.run("ip", line);
    }
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

/// The kernel lets a route stay whose gateway it would no longer take.
#[test]
fn a_route_of_others_that_the_nic_can_not_have_holds_up_no_way_back() {
    let (machine, lan) = machine();
    let node = machine.node();
    let before = machine.snapshot();
    for verb in ["rollback", "cleanup"] {
        machine.init(BRIDGED);
        for line in [
            "route add 198.51.100.0/24 dev br-ex",
            "route add 203.0.114.0/24 via 198.51.100.1 dev br-ex",
            "route del 198.51.100.0/24",
        ] {
            node.run("ip", line);
        }
        let said = machine.podwire_node(verb, "");
        said.assert_says(Some(0), &["out of br-ex"]);
        let named = "route 203.0.114.0/24 is not moved back: ";
        assert!(verb == "cleanup" || said.stderr.contains(named), "{said:?}");
        assert_moved_back(&machine, &lan);
    }
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

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

/// Nobody renews anything then: what the kernel drops with a link would be gone.
#[test]
fn a_nic_that_loses_its_link_has_all_as_before_when_it_is_back() {
    let (machine, lan) = machine();
    let node = machine.node();
    let before = machine.snapshot();
    machine.init(BRIDGED);
    let run = machine.start_run(BRIDGED);
    await_own_addresses(&machine);
    let moved = machine.snapshot();
    // Each link has a route for multicast, and the kernel lists the link's last that was up last.
    let routes = || {
        let shown = node.run("ip", "-6 route show table all");
        let mut routes: Vec<String> = shown.lines().map(str::to_owned).collect();
        routes.sort();
        routes
    };
    let routes_before = routes();
    let (mut client, mut server) = connection(&machine, &lan);
    let set = |state: &str| drop(node.run("ip", format!("link set eth0 {state}")));
    let cable: [&dyn Fn(); 2] = [&|| lan.unplug(), &|| lan.plug()];
    let person: [&dyn Fn(); 2] = [&|| set("down"), &|| set("up")];
    for [cut, mend] in [cable, person] {
        let show = || node.run("ip", "-o link show dev eth0");
        cut();
        machine.await_network("state DOWN", show);
        // It comes when it is sent again.
        client.write_all(b"ping").unwrap();
        mend();
        machine.await_network("state UP", show);
        server.read_exact(&mut [0; 4]).unwrap();
        moved.assert_same_but("IPv6 routes", &machine.snapshot());
        assert_eq!(routes(), routes_before);
        lan.assert_reached(&machine);
    }
    assert_eq!(run.count("restored"), 0);
    assert!(run.stop().success());
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

#[test]
fn the_bridge_follows_the_mtu_of_its_nic() {
    let (machine, lan) = machine();
    let before = machine.snapshot();
    machine.init(BRIDGED);
    let run = machine.start_run(BRIDGED);
    for size in ["1450", "1500"] {
        machine
            .node()
            .run("ip", format!("link set eth0 mtu {size}"));
        await_mtu(&machine, "br-ex", size);
        machine.await_set("an MTU that was noticed", || {
            let (code, shown) = {
                let mut show = machine.arguments("show", BRIDGED);
                show.extend(["-o".to_owned(), "json".to_owned()]);
                machine.node().podwire_json(show)
            };
            (code == Some(0)).then_some(()).ok_or(shown.to_string())
        });
        lan.assert_reached(&machine);
    }
    assert!(run.stop().success());
    machine.cleanup("");
    before.assert_same(&machine.snapshot());
}

/// What another program sets on br-ex stays through a reload and a flap, and goes back; the bridge
/// follows its NIC's MTU.
fn others_change_it<'m>(machine: &'m Machine, lan: &Lan, manager: Manager<'m>, reload: [&str; 2]) {
    let node = machine.node();
    machine.init(BRIDGED);
    let run = machine.start_run(BRIDGED);
    for line in [
        "address add 192.0.2.78/24 dev br-ex",
        "-6 address add 2001:db8::78/64 dev br-ex nodad noprefixroute",
        "route add 203.0.114.0/24 via 192.0.2.20 dev br-ex",
        "link set eth0 mtu 1450",
    ] {
        node.run("ip", line);
    }
    await_mtu(machine, "br-ex", "1450");
    node.run(reload[0], reload[1]);
    lan.flap();
    for (link, verb) in [("br-ex", None), ("eth0", Some("rollback"))] {
        if let Some(verb) = verb {
            machine.podwire_node(verb, "").success(verb);
        }
        let there = addresses(machine, link);
        for address in ["192.0.2.11/24", "192.0.2.78/24", "2001:db8::78/64"] {
            assert!(there.contains(address), "{address}: {there}");
        }
        let route = format!("203.0.114.0/24 via 192.0.2.20 dev {link}");
        machine.await_network(&route, || node.run("ip", "-4 route"));
        lan.assert_reached(machine);
    }
    assert_eq!(mtu(machine, "eth0"), "1450");
    assert!(run.stop().success());
    drop(manager);
}

#[test]
fn what_others_change_under_networkd_stays_and_goes_back() {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let manager = Lan::networkd(&machine, super::networkd::OWN);
    others_change_it(&machine, &lan, manager, ["networkctl", "reload"]);
}

#[test]
fn what_others_change_under_network_manager_stays_and_goes_back() {
    let (machine, lan) = machine();
    let _dhcp = Dhcp::start(&machine, &lan);
    let manager = Lan::network_manager(&machine, super::network_manager::OWN);
    Lan::await_renewed(&machine, "eth0");
    others_change_it(&machine, &lan, manager, ["nmcli", "connection reload"]);
}
