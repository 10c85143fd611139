use proptest::prelude::*;

use super::*;

const WHOLE: &str = r#"{"ip_address":"192.168.1.5/24","mac_address":"0a:00:00:00:00:01","gateway_ip":"192.168.1.1",
    "routes":[{"dest":"10.96.0.0/16","nextHop":"192.168.1.2"}]}"#;

#[test]
fn the_flat_annotation_is_one_interface_on_the_default_network() {
    let interface = parse(WHOLE).unwrap();
    assert_eq!((&interface.nad, &interface.pod_ifname), (&None, &None));
    assert_eq!(interface.mac.unwrap().to_string(), "0A:00:00:00:00:01");
    assert_eq!(interface.addresses, ["192.168.1.5/24".parse().unwrap()]);
    assert_eq!(
        interface.gateways,
        ["192.168.1.1".parse::<std::net::IpAddr>().unwrap()]
    );
    assert_eq!(interface.routes.len(), 1);
}

#[test]
fn each_refusal_names_field_and_value() {
    let table = r#"
        7 => annotation ovn: 7: not an object
        {} => annotation ovn, mac_address: missing
        {"mac_address":"0a:00:00:00:00:01"} => annotation ovn, ip_address: missing
        {"mac_address":"0a:00:00:00:00:01","ip_address":"192.168.1.5"} => annotation ovn, ip_address: "192.168.1.5": not an address with a prefix length
        {"mac_address":"0a:00:00:00:00:01","ip_address":"192.168.1.5/24"} => annotation ovn, gateway_ip: missing
        {"mac_address":"0a:00:00:00:00:01","ip_address":"192.168.1.5/24","gateway_ip":"x"} => annotation ovn, gateway_ip: "x": not an IP address
        {"mac_address":"0a:00:00:00:00:01","ip_address":"192.168.1.5/24","gateway_ip":"192.168.1.1","routes":[{"dest":"0.0.0.0/0"}]} => annotation ovn, routes[0].dest: "0.0.0.0/0": a default route: it belongs in gateway_ip
        {"mac_address":"x"} => annotation ovn, mac_address: "x": not a MAC address of six bytes
    "#;
    for case in table.trim().lines() {
        let (annotation, expected) = case.trim().split_once(" => ").unwrap();
        assert_eq!(parse(annotation).unwrap_err().to_string(), expected);
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".*") {
        let _ = parse(&text);
    }

    #[test]
    fn a_damaged_annotation_is_read_or_refused(at in 0..WHOLE.len(), byte in " -~") {
        let mut text = WHOLE.to_owned();
        text.replace_range(at..=at, &byte);
        let _ = parse(&text);
    }
}
