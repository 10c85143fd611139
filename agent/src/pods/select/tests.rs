use super::*;

const POD_NETWORKS: (&str, &str) = (
    pod_networks::ANNOTATION,
    r#"{"default":{"mac_address":"0a:00:00:00:00:01"},"ns/nad":{"mac_address":"0a:00:00:00:00:02"}}"#,
);
const ANSWER: (&str, &str) = (
    ovn_interfaces::ANNOTATION,
    r#"[{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:03","interface":"net0"}]"#,
);
const LATER_ANSWER: (&str, &str) = (
    ovn_interfaces::LATER_ANNOTATION,
    r#"[{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:04","interface":"net0"}]"#,
);
const WISH: (&str, &str) = (
    ovn_network::ANNOTATION,
    r#"{"ovnNetwork":[{"name":"a","interface":"net0"}],"ovnNetworkRoutes":[{"dst":"10.8.0.0/16","gw":"10.1.0.8"}]}"#,
);
const FOREIGN_WISH: (&str, &str) = (ovn_network::LATER_ANNOTATION, r#"{"type":"sriov"}"#);
const ROUTES: (&str, &str) = (
    ovn_routes::ANNOTATION,
    r#"[{"dst":"10.9.0.0/16","gw":"10.1.0.9"}]"#,
);
const OVN: (&str, &str) = (
    ovn::ANNOTATION,
    r#"{"ip_address":"10.1.0.2/24","mac_address":"0a:00:00:00:00:05","gateway_ip":"10.1.0.1"}"#,
);

/// The last byte of the first interface's MAC, which tells whose word was heard, and its routes.
fn heard(network: &str, annotations: &[(&str, &str)]) -> Option<(u8, Vec<String>)> {
    let annotations = annotations
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    let intent = interfaces(&annotations, &network.parse().unwrap()).unwrap()?;
    let first = &intent.interfaces[0];
    let routes = first
        .routes
        .iter()
        .map(|route| route.dst.to_string())
        .collect();
    Some((first.mac.unwrap().into_array()[5], routes))
}

#[test]
fn the_first_of_the_formats_that_speaks_is_heard() {
    let all = [POD_NETWORKS, ANSWER, LATER_ANSWER, WISH, ROUTES, OVN];
    let routes = |routes: &[&str]| {
        routes
            .iter()
            .map(|route| (*route).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(heard("default", &all), Some((1, routes(&[]))));
    assert_eq!(heard("ns/nad", &all), Some((2, routes(&[]))));
    assert_eq!(
        heard("default", &all[1..]),
        Some((4, routes(&["10.9.0.0/16"])))
    );
    assert_eq!(
        heard("default", &[ANSWER, WISH, OVN]),
        Some((3, routes(&["10.8.0.0/16"])))
    );
    assert_eq!(heard("default", &[ANSWER, OVN]), Some((3, routes(&[]))));
    assert_eq!(heard("default", &[OVN]), Some((5, routes(&[]))));
}

#[test]
fn a_wish_that_is_not_answered_yet_silences_ovn_and_one_to_another_plugin_does_not() {
    assert_eq!(heard("default", &[WISH, OVN]), None);
    assert_eq!(
        heard("default", &[FOREIGN_WISH, OVN]),
        Some((5, Vec::new()))
    );
}

#[test]
fn only_pod_networks_speaks_of_further_networks() {
    assert_eq!(heard("ns/other", &[POD_NETWORKS, ANSWER, OVN]), None);
    assert_eq!(heard("default", &[]), None);
}

#[test]
fn the_interface_of_an_entry_bears_its_network() {
    let annotations = [POD_NETWORKS]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
    let network = "ns/nad".parse().unwrap();
    assert_eq!(
        interfaces(&annotations, &network)
            .unwrap()
            .unwrap()
            .interfaces[0]
            .key,
        network
    );
}
