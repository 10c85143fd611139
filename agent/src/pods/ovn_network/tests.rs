use macaddr::MacAddr6;
use proptest::prelude::*;

use super::*;

const LIST: &str = r#"[{"name":"ovn-ls-25","interface":"net0","defaultGateway":"true"},
    {"name":"ovn-ls-26","interface":"*","ip_address":"172.16.26.3","mac_address":"0a:00:00:00:00:15"},
    {"name":"ovn-ls-24","interface":"net1","ipAddress":"172.16.24.55/24","macAddress":"0A:00:00:00:00:4E","gateway_ip":"172.16.24.1","mtu":"1400"}]"#;

fn request(name: &'static str, annotation: &str) -> Request {
    parse(name, annotation).unwrap().unwrap()
}

#[test]
fn both_spellings_and_both_kinds_of_address_are_read() {
    let named = |name: Option<&str>| InterfaceSpec {
        pod_ifname: name.map(str::to_owned),
        port_name: PortName::listed(name),
        ..InterfaceSpec::default()
    };
    let expected = [
        RequestedInterface {
            interface: named(Some("net0")),
            bare_address: None,
            default_gateway: true,
        },
        RequestedInterface {
            interface: InterfaceSpec {
                mac: Some(MacAddr6::new(0x0a, 0, 0, 0, 0, 0x15)),
                ..named(None)
            },
            bare_address: Some("172.16.26.3".parse().unwrap()),
            default_gateway: false,
        },
        RequestedInterface {
            interface: InterfaceSpec {
                addresses: vec!["172.16.24.55/24".parse().unwrap()],
                mac: Some(MacAddr6::new(0x0a, 0, 0, 0, 0, 0x4e)),
                mtu: Some(1400),
                ..named(Some("net1"))
            },
            bare_address: None,
            default_gateway: false,
        },
    ];
    assert_eq!(request(ANNOTATION, LIST).interfaces, expected);
    let asks = LIST.replace(r#""gateway_ip""#, r#""defaultGateway":true,"gateway_ip""#);
    let gateways = &request(ANNOTATION, &asks).interfaces[2].interface.gateways;
    assert_eq!(*gateways, ["172.16.24.1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn the_object_forms_say_the_same() {
    let list = request(ANNOTATION, LIST);
    assert_eq!(
        request(ANNOTATION, &format!(r#"{{"ovnNetwork":{LIST}}}"#)),
        list
    );
    assert_eq!(
        request(
            LATER_ANNOTATION,
            &format!(r#"{{"type":"ovn4nfv","interface":{LIST}}}"#)
        ),
        list
    );
}

#[test]
fn a_wish_to_another_plugin_is_none() {
    let annotation = r#"{"type":"sriov","interface":[{"strange":true}]}"#;
    assert_eq!(parse(LATER_ANNOTATION, annotation).unwrap(), None);
}

#[test]
fn the_routes_of_the_object_form_are_given_to_the_answer() {
    let annotation =
        r#"{"ovnNetwork":[],"ovnNetworkRoutes":[{"dst":"172.16.29.1/24","gw":"172.16.24.1"}]}"#;
    let mut interfaces = vec![InterfaceSpec {
        addresses: vec!["172.16.24.2/24".parse().unwrap()],
        ..InterfaceSpec::default()
    }];
    request(ANNOTATION, annotation)
        .apply_routes(&mut interfaces)
        .unwrap();
    assert_eq!(interfaces[0].routes[0].dst.to_string(), "172.16.29.0/24");
}

#[test]
fn each_refusal_names_element_field_and_value() {
    let table = [
        (ANNOTATION, "7", ": 7: not an object"),
        (ANNOTATION, "{}", ", ovnNetwork: missing"),
        (LATER_ANNOTATION, "{}", ", type: missing"),
        (
            LATER_ANNOTATION,
            r#"{"type":"ovn4nfv"}"#,
            ", interface: missing",
        ),
        (
            LATER_ANNOTATION,
            r#"{"type":"ovn4nfv","interface":[7]}"#,
            ", interface[0]: 7: not an object",
        ),
        (ANNOTATION, "[{}]", ", [0].name: missing"),
        (
            ANNOTATION,
            r#"{"ovnNetwork":[{"name":"a"}]}"#,
            ", ovnNetwork[0].interface: missing",
        ),
        (ANNOTATION, r#"[{"name":7}]"#, ", [0].name: 7: not a string"),
        (
            ANNOTATION,
            r#"[{"name":"a","interface":"an-interface-too-long"}]"#,
            r#", [0].interface: "an-interface-too-long": not an interface's name: up to 15 characters, no '/', ':' or white space"#,
        ),
        (
            ANNOTATION,
            r#"[{"name":"a","interface":"net0"},{"name":"b","interface":"net0"}]"#,
            r#", [1].interface: "net0": is listed twice"#,
        ),
        (
            ANNOTATION,
            r#"[{"ipAddress":"172.16.26"}]"#,
            r#", [0].ipAddress: "172.16.26": not an IP address"#,
        ),
        (
            ANNOTATION,
            r#"[{"ip_address":"172.16.26.3/33"}]"#,
            r#", [0].ip_address: "172.16.26.3/33": not an address with a prefix length"#,
        ),
        (
            ANNOTATION,
            r#"[{"name":"a","interface":"*","macAddress":"x"}]"#,
            r#", [0].macAddress: "x": not a MAC address of six bytes"#,
        ),
        (
            ANNOTATION,
            r#"[{"defaultGateway":"1"}]"#,
            r#", [0].defaultGateway: "1": neither "true" nor "false""#,
        ),
        (
            ANNOTATION,
            r#"[{"name":"a","interface":"*","ipAddress":"fd00::1","mtu":1279}]"#,
            ", [0].mtu: 1279: not an MTU between 1280 and 65535, as IPv6 needs",
        ),
    ];
    for (name, annotation, expected) in table {
        let error = parse(name, annotation).unwrap_err().to_string();
        assert_eq!(error, format!("annotation {name}{expected}"));
    }
}

proptest! {
    #[test]
    fn a_damaged_annotation_is_read_or_refused(at in 0..LIST.len(), byte in " -~") {
        let mut text = LIST.to_owned();
        text.replace_range(at..=at, &byte);
        let _ = parse(ANNOTATION, &text);
        let _ = parse(LATER_ANNOTATION, &text);
    }
}
