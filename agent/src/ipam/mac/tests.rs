use std::collections::HashSet;

use super::*;

#[test]
fn a_generated_mac_is_the_same_in_every_run_and_version() {
    let mac = generate(&["pods", "4f1c", "eth0"]);
    assert_eq!(mac, generate(&["pods", "4f1c", "eth0"]));
    assert_eq!(mac.to_string(), "82:69:B3:D2:F5:E4");
}

#[test]
fn a_generated_mac_is_unicast_local_and_never_of_the_ipv4_form() {
    for n in 0..10_000 {
        let first = generate(&["pods", &n.to_string(), "eth0"]).into_array()[0];
        assert_eq!(first & 0x0f, 0x02);
    }
}

#[test]
fn different_attachments_get_different_macs() {
    let macs: HashSet<_> = (0..100_000)
        .map(|n| generate(&["pods", &n.to_string(), "eth0"]))
        .collect();
    assert_eq!(macs.len(), 100_000);
    assert_ne!(generate(&["a", "bc"]), generate(&["ab", "c"]));
}

#[test]
fn an_ipv4_address_names_the_mac_wherever_it_stands_in_the_list() {
    let addresses = ["fd00::5".parse().unwrap(), "10.244.0.9".parse().unwrap()];
    assert_eq!(
        choose(&addresses, &["seed"]),
        MacAddr6::new(0x0a, 0x58, 10, 244, 0, 9)
    );
    assert_eq!(choose(&addresses[..1], &["seed"]), generate(&["seed"]));
}
