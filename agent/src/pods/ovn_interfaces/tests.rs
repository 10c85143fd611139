use proptest::prelude::*;

use super::*;

const TWO: &str = r#"[
    {"ip_address":"172.16.26.2/24","mac_address":"0a:00:00:00:00:1d","gateway_ip":"172.16.26.1","interface":"net0","defaultGateway":"true","mtu":"1400"},
    {"ip_address":"172.16.24.2/24","mac_address":"0a:00:00:00:00:1e","gateway_ip":"172.16.24.1","interface":"*","defaultGateway":"false","mtu":1300}]"#;

fn refusal(element: &str) -> String {
    parse(ANNOTATION, &format!("[{element}]"))
        .unwrap_err()
        .to_string()
}

#[test]
fn the_interface_on_cni_ifname_comes_first_and_one_has_the_default_route() {
    let interfaces = parse(LATER_ANNOTATION, TWO).unwrap();
    let [star, net0] = interfaces.as_slice() else {
        panic!("{interfaces:?}")
    };
    assert_eq!(
        (star.pod_ifname.as_deref(), net0.pod_ifname.as_deref()),
        (None, Some("net0"))
    );
    assert_eq!((star.mtu, net0.mtu), (Some(1300), Some(1400)));
    assert_eq!(star.addresses, ["172.16.24.2/24".parse().unwrap()]);
    assert_eq!(net0.mac.unwrap().to_string(), "0A:00:00:00:00:1D");
    assert!(star.gateways.is_empty(), "it is not the default");
    assert_eq!(net0.gateways, ["172.16.26.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(parse(ANNOTATION, "[]").unwrap(), []);
}

#[test]
fn each_refusal_names_element_field_and_value() {
    let table = r#"
        7 => [0]: 7: not an object
        {} => [0].ip_address: missing
        {"ip_address":"172.16.25.3"} => [0].ip_address: "172.16.25.3": not an address with a prefix length
        {"ip_address":"172.16.25.3/24"} => [0].interface: missing
        {"ip_address":"172.16.25.3/24","interface":"a/b"} => [0].interface: "a/b": not an interface's name: up to 15 characters, no '/', ':' or white space
        {"ip_address":"172.16.25.3/24","interface":"net0"} => [0].mac_address: missing
        {"ip_address":"172.16.25.3/24","interface":"net0","mac_address":"0a:00:00:00:00:1d","defaultGateway":"yes"} => [0].defaultGateway: "yes": neither "true" nor "false"
        {"ip_address":"172.16.25.3/24","interface":"net0","mac_address":"0a:00:00:00:00:1d","defaultGateway":"true"} => [0].gateway_ip: missing
        {"ip_address":"172.16.25.3/24","gateway_ip":"none"} => [0].gateway_ip: "none": not an IP address
        {"ip_address":"fd00::3/64","interface":"net0","mac_address":"0a:00:00:00:00:1d","mtu":"1200"} => [0].mtu: "1200": not an MTU between 1280 and 65535, as IPv6 needs
    "#;
    for case in table.trim().lines() {
        let (element, expected) = case.trim().split_once(" => ").unwrap();
        assert_eq!(
            refusal(element),
            format!("annotation ovnIfaceList, {expected}")
        );
    }
    let expected = "annotation k8s.plugin.opnfv.org/ovnInterfaces: {}: not a list";
    assert_eq!(
        parse(LATER_ANNOTATION, "{}").unwrap_err().to_string(),
        expected
    );
}

#[test]
fn two_interfaces_share_neither_name_nor_default_route() {
    let twice = TWO.replace(r#""*""#, r#""net0""#);
    let error = parse(ANNOTATION, &twice).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"annotation ovnIfaceList, [1].interface: "net0": is listed twice"#
    );
    let both = TWO.replace("false", "true");
    let error = parse(ANNOTATION, &both).unwrap_err().to_string();
    let expected =
        r#"[1].defaultGateway: "true": a second default gateway of the pod; net0 has the first"#;
    assert_eq!(error, format!("annotation ovnIfaceList, {expected}"));
}

proptest! {
    #[test]
    fn a_damaged_annotation_is_read_or_refused(at in 0..TWO.len(), byte in " -~") {
        let mut text = TWO.to_owned();
        text.replace_range(at..=at, &byte);
        let _ = parse(ANNOTATION, &text);
    }
}
