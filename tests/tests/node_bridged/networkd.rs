//! A NIC that systemd-networkd configures: by a file, by DHCP, by router advertisements. The real
//! one, and a real DHCP server.

use podwire_tests::lan::Dhcp;
use podwire_tests::managers::Manager;

use super::*;

/// The NIC's own file: every way at once.
pub(super) const OWN: &str = "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=yes\n\
                   Address=2001:db8::11/64\n[Route]\nDestination=198.51.100.0/24\n\
                   Gateway=192.0.2.20\nGatewayOnLink=yes\n[Route]\nDestination=2001:db8:113::/64\n\
                   Gateway=2001:db8::1\n";

/// What systemd-networkd has made on a link, without lifetimes and the link's name.
pub(super) fn made(machine: &Machine, link: &str) -> Vec<String> {
    let mut made = Vec::new();
    for line in [
        format!("-o address show dev {link} scope global"),
        format!("-4 route show dev {link}"),
        format!("-6 route show dev {link}"),
    ] {
        let shown = machine.node().run("ip", line);
        for line in shown.replace('\\', " ").lines() {
            let words = line
                .split_whitespace()
                .skip_while(|word| word.ends_with(':'));
            let mut words: Vec<&str> = words.filter(|word| *word != link).collect();
            // That of an address counts for the route that the kernel makes for it.
            let kernel = words.contains(&"kernel") || words.contains(&"scope");
            let metric = if kernel { "metric" } else { "" };
            words.retain(|word| !["tentative", "nodad"].contains(word));
            for lifetime in ["valid_lft", "preferred_lft", "expires", metric] {
                if let Some(at) = words.iter().position(|word| *word == lifetime) {
                    words.drain(at..(at + 2).min(words.len()));
                }
            }
            made.push(words.join(" "));
        }
    }
    made.sort();
    made
}

/// Waits until it has made all of this on a link.
#[track_caller]
pub(super) fn await_made(machine: &Machine, link: &str, wanted: &[String]) {
    let awaited = format!("what a manager makes on {link}: {wanted:#?}");
    machine.await_set(&awaited, || {
        let made = made(machine, link);
        (made == wanted)
            .then_some(())
            .ok_or_else(|| format!("{made:#?}"))
    });
}

#[test]
fn networkd_goes_on_with_the_bridge_and_the_lease_is_kept() {
    let (machine, lan) = machine();
    let dhcp = Dhcp::start(&machine, &lan);
    let networkd = Lan::networkd(&machine, OWN);
    lan.assert_reached(&machine);
    let before = made(&machine, "eth0");
    let clients = dhcp.clients();
    assert!(
        before
            .iter()
            .any(|line| line.contains("dynamic mngtmpaddr")),
        "{before:#?}"
    );
    let snapshot = machine.snapshot().without_lifetimes();

    machine.init(BRIDGED);
    assert_moved(&machine);
    await_made(&machine, "br-ex", &before);
    let listed = machine
        .node()
        .run("networkctl", "list --no-pager --no-legend");
    for (link, state) in [("eth0", "unmanaged"), ("br-ex", "configured")] {
        let line = listed.lines().find(|line| line.contains(link));
        assert!(
            line.is_some_and(|line| line.contains(state)),
            "{link} is not {state}:\n{listed}"
        );
    }
    lan.assert_reached(&machine);
    // The server knows the same client with the same address, and was not told otherwise.
    assert_eq!(clients.len(), 1);
    assert_eq!(dhcp.clients(), clients);
    assert!(!dhcp.log().contains("DHCPRELEASE"), "{}", dhcp.log());
    assert!(machine.init(BRIDGED).starts_with("0 steps: "));

    // Renewals go on over the bridge.
    let asked = dhcp.count("DHCPREQUEST");
    machine.node().run("networkctl", "renew br-ex");
    dhcp.await_count("DHCPREQUEST", asked + 1);
    machine.node().run("networkctl", "reload");
    machine.node().run("networkctl", "reconfigure br-ex");
    lan.flap();
    Lan::await_renewed(&machine, "br-ex");
    await_made(&machine, "br-ex", &before);
    assert_moved(&machine);
    lan.assert_reached(&machine);

    machine.podwire_node("rollback", "").success("rollback");
    Lan::await_renewed(&machine, "eth0");
    await_made(&machine, "eth0", &before);
    assert_moved_back(&machine, &lan);
    machine.cleanup("");
    Lan::await_renewed(&machine, "eth0");
    await_own_addresses(&machine);
    // They are there in another order.
    let after = machine.snapshot().without_lifetimes();
    snapshot.assert_same_but("addresses", &after);
    drop(networkd);
}

#[test]
fn a_dhcp_server_that_no_longer_answers_undoes_the_move() {
    let (machine, lan) = machine();
    let dhcp = Dhcp::start(&machine, &lan);
    let _networkd = Lan::networkd(&machine, OWN);
    let before = made(&machine, "eth0");
    drop(dhcp);
    let refused = machine.podwire_node("init", BRIDGED);
    refused.assert_says(
        Some(1),
        &[
            "the network manager has not made on br-ex: address 192.0.2.11",
            "was moved back",
        ],
    );
    assert_moved_back(&machine, &lan);
    // A server that returns gives the same.
    let _dhcp = Dhcp::start(&machine, &lan);
    Lan::await_renewed(&machine, "eth0");
    await_made(&machine, "eth0", &before);
    let files = machine
        .node()
        .run("find", "/run/systemd/network -name 04-podwire*");
    assert_eq!(files, "");
}

#[test]
fn what_networkd_cannot_do_for_a_bridge_is_refused_with_its_reason() {
    let (machine, _lan) = machine();
    let own = "[Match]\nName=eth0\n[Network]\nAddress=192.0.2.11/24\nLinkLocalAddressing=no\n\
               IPv6AcceptRA=no\nKeepConfiguration=yes\n[DHCPServer]\nPoolSize=5\n";
    let _networkd = Manager::networkd(machine.node(), &[("03-eth0.network", own)]).unwrap();
    let index = machine.node().run("cat", "/sys/class/net/eth0/ifindex");
    let state = format!("/run/systemd/netif/links/{}", index.trim());
    machine.await_file(&state, |text| text.contains("STATE=configur"));
    let before = machine.snapshot();
    let said = machine.podwire_node("init", BRIDGED);
    said.assert_says(
        Some(1),
        &[
            "/run/systemd/network/03-eth0.network",
            "the section [DHCPServer]",
            "the name 03-eth0.network, before that of podwire's 04-podwire-uplink.network",
            "nothing was changed",
        ],
    );
    before.assert_same(&machine.snapshot());
}

#[test]
fn init_waits_until_networkd_has_configured_the_nic() {
    let (machine, lan) = machine();
    machine
        .node()
        .run("ip", "address flush dev eth0 scope global");
    for family in ["-4", "-6"] {
        machine
            .node()
            .run("ip", [family, "route", "flush", "dev", "eth0"]);
    }
    let networkd = Manager::networkd(machine.node(), &[("10-eth0.network", OWN)]).unwrap();
    let index = machine.node().run("cat", "/sys/class/net/eth0/ifindex");
    let state = format!("/run/systemd/netif/links/{}", index.trim());
    machine.await_file(&state, |text| text.contains("ADMIN_STATE=configuring"));
    let mut server = None;
    missing::init_during(&machine, || server = Some(Dhcp::start(&machine, &lan)));
    lan.assert_reached(&machine);
    drop(networkd);
}
