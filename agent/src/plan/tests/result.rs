use super::*;
use crate::plan::result::result;

#[test]
fn the_result_lists_both_ends_and_ties_addresses_to_the_pods() {
    let (key, pod) = (key("eth0"), pod());
    let subject = Subject {
        key: &key,
        pod: Some(&pod),
        netns: "/run/netns/a",
    };
    let second = InterfaceSpec {
        pod_ifname: Some("net0".into()),
        ..spec(&["10.9.0.3/24"], &[])
    };
    let ports = plan(
        &subject,
        &[spec(&["10.1.2.3/24"], &["10.1.2.1"]), second],
        &node(),
    )
    .unwrap();
    let result = result(
        &subject,
        &ports,
        &["h1".into(), "h2".into()],
        Default::default(),
    );
    let names: Vec<(&str, Option<&str>)> = result
        .interfaces
        .iter()
        .map(|link| (link.name.as_str(), link.sandbox.as_deref()))
        .collect();
    let sandbox = Some("/run/netns/a");
    assert_eq!(
        names,
        [
            ("h1", None),
            ("eth0", sandbox),
            ("h2", None),
            ("net0", sandbox)
        ]
    );
    assert_eq!(
        (result.ips[0].interface, result.ips[1].interface),
        (Some(1), Some(3))
    );
    assert_eq!(result.ips[0].gateway, Some("10.1.2.1".parse().unwrap()));
    assert_eq!(result.ips[1].gateway, None);
    assert_eq!(result.routes.len(), 1);
}

#[test]
fn the_result_names_the_gateway_of_each_addresss_own_subnet() {
    let mut interface = spec(
        &["10.1.2.3/24", "10.9.0.3/24", "fd00::3/64", "10.8.0.3/24"],
        &[],
    );
    let gateways = ["10.9.0.1", "10.1.2.1", "fd00::1"];
    interface.subnet_gateways = gateways.map(|text| text.parse().unwrap()).to_vec();
    let key = key("eth0");
    let subject = Subject {
        key: &key,
        pod: None,
        netns: "/run/netns/a",
    };
    let ports = plan(&subject, &[interface], &node()).unwrap();
    let result = result(&subject, &ports, &["h1".into()], Default::default());
    let named: Vec<_> = result.ips.iter().map(|ip| ip.gateway).collect();
    let gateway = |text: &str| Some(text.parse().unwrap());
    assert_eq!(
        named,
        [
            gateway("10.1.2.1"),
            gateway("10.9.0.1"),
            gateway("fd00::1"),
            None
        ]
    );
    assert!(result.routes.is_empty(), "none of them is a default route");
}
