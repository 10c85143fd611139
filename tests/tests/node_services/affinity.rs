//! Clients that stick to an endpoint, over both families, and what other services' changes cost.

use serde_json::{Value, json};

use crate::host::{Host, Server, machine, reached, udp};
use crate::{endpoints, service};

/// A slice of a service with one endpoint at a port of its own.
fn slice(name: &str, number: u16, address: &str, port: u16) -> Value {
    let mut object = endpoints(name, &[(address, "node-a")]);
    object["metadata"]["name"] = format!("{name}-{number}").into();
    for of_protocol in object["ports"].as_array_mut().unwrap() {
        of_protocol["port"] = port.into();
    }
    object
}

#[test]
fn a_client_stays_at_its_endpoint_by_either_family_and_protocol_until_that_is_gone() {
    let sticky = || json!({"sessionAffinity": "ClientIP"});
    let mut dual = service("dual", 14, true, sticky());
    dual["spec"]["clusterIPs"] = json!(["10.96.0.14", "fd00:10:96::14"]);
    let machine = machine();
    let own = ["172.31.0.2", "fd00:31::2"];
    let slices = |name: &str, number: u16, address: &str| {
        [8080, 8081].map(|port| slice(name, number + port, address, port))
    };
    let mut objects = vec![dual, service("v6", 15, false, sticky())];
    objects.extend(slices("dual", 0, own[0]));
    objects.extend(slices("dual", 10, own[1]));
    objects.extend(slices("v6", 0, own[1]));
    let host = Host::start(&machine, &objects);
    let paths = [
        ("dual", own[0], "172.31.0.2:30014", "0.0.0.0:0"),
        ("dual", own[1], "[fd00:31::2]:30014", "[::]:0"),
        ("v6", own[1], "[fd00:31::2]:30015", "[::]:0"),
        ("v6", own[1], "[2001:db8:113::15]:80", "[::]:0"),
    ];
    let mut count = 0;
    for (name, address, to, client) in paths {
        for server in [Server::tcp, Server::udp] {
            let at = |port: u16| match address.contains(':') {
                true => format!("[{address}]:{port}"),
                false => format!("{address}:{port}"),
            };
            let servers = [8080, 8081].map(|port| server(host.place(), &at(port)));
            let reached = || reached(host.outside(), client, to, &servers);
            let first = reached();
            for _ in 0..8 {
                assert_eq!(reached(), first, "{name} by {to}");
            }
            // The other endpoint is all that is left; then it is one of two again.
            let port = if first == 0 { 8080 } else { 8081 };
            let number = if address.contains(':') && name == "dual" {
                10
            } else {
                0
            };
            let mut none = slice(name, number + port, address, port);
            let back = none.clone();
            none["endpoints"] = json!([]);
            host.apply_and_wait(none);
            assert_eq!(reached(), 1 - first, "{name} by {to}");
            host.apply_and_wait(back);
            for _ in 0..8 {
                assert_eq!(reached(), 1 - first, "{name} by {to}");
            }
            count += 1;
        }
    }
    assert_eq!(count, 8);
    let rebuilt = host.run.count("creating the table of services again");
    assert_eq!(rebuilt, 0, "{}", host.run.log());
    host.end();
}

#[test]
fn more_endpoints_of_one_service_are_a_few_elements_and_no_other_s_clients_are_forgotten() {
    let objects = [
        service("web", 10, true, json!({})),
        endpoints("web", &[("172.31.0.9", "node-b")]),
        service("sticky", 11, true, json!({"sessionAffinity": "ClientIP"})),
        slice("sticky", 1, "172.31.0.2", 8080),
        slice("sticky", 2, "172.31.0.2", 8081),
    ];
    let machine = machine();
    let host = Host::start(&machine, &objects);
    let servers = [8080, 8081].map(|port| Server::tcp(host.place(), &format!("172.31.0.2:{port}")));
    let reached = || reached(host.outside(), "", "172.31.0.2:30011", &servers);
    let first = reached();
    host.scripts();

    let ends: Vec<String> = (9..14).map(|number| format!("172.31.0.{number}")).collect();
    for number in 1..=ends.len() {
        let ends: Vec<(&str, &str)> = ends[..number].iter().map(|it| (&**it, "node-b")).collect();
        if number > 1 {
            host.apply_and_wait(endpoints("web", &ends));
        }
    }
    let scripts = host.scripts();
    let count = |words: &str| {
        scripts
            .lines()
            .filter(|line| line.starts_with(words))
            .count()
    };
    // Four fronts (cluster IP, external IP, load balancer's, node port) of three protocols. Each
    // endpoint more is one element of the endpoints, one changed of the services, and one of those
    // whose clients get the node's address.
    let changes = 4 * (ends.len() - 1) * 3;
    assert_eq!(
        count("delete element inet podwire-services services4"),
        changes
    );
    assert_eq!(
        count("add element inet podwire-services services4"),
        changes
    );
    assert_eq!(
        count("add element inet podwire-services endpoints-"),
        changes
    );
    let outside = (ends.len() - 1) * 3;
    assert_eq!(count("add element inet podwire-services outside4"), outside);
    assert_eq!(count("add element"), 2 * changes + outside);
    assert_eq!(count("delete table"), 0, "{scripts}");
    for _ in 0..8 {
        assert_eq!(reached(), first);
    }
    host.end();
}

#[test]
fn a_client_of_udp_on_the_node_is_led_away_from_a_remote_endpoint_that_is_gone() {
    let local = json!({"externalTrafficPolicy": "Local"});
    let end = |port| slice("local", 1, "172.31.0.1", port);
    let mut remote = [8080, 8081].map(end);
    for slice in &mut remote {
        slice["endpoints"][0]["nodeName"] = "node-b".into();
    }
    let [first, second] = remote;
    let machine = machine();
    let host = Host::start(&machine, &[service("local", 10, true, local), first]);
    let servers = [8080, 8081].map(|port| udp(host.outside(), &format!("172.31.0.1:{port}")));
    let client = udp(host.place(), "0.0.0.0:0");
    client.send_to(b"one", "172.31.0.2:30010").unwrap();
    servers[0].recv(&mut [0; 8]).unwrap();
    host.apply_and_wait(second);
    client.send_to(b"two", "172.31.0.2:30010").unwrap();
    servers[1].recv(&mut [0; 8]).unwrap();
    host.end();
}
