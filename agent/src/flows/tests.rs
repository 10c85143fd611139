use std::net::IpAddr;

use podwire_ovs::openflow::{Action, Field, Flow, PortNumber};

use super::rules::{Surroundings, common_flows, cookie_of, link_local, port_flows};
use super::{NUMBERS, Numbers};
use crate::ports::SecuredPort;

fn port(addresses: &[&str]) -> SecuredPort {
    SecuredPort {
        mac: "0a:58:0a:ba:00:05".parse().unwrap(),
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

fn of_port(ofport: u16, addresses: &[&str]) -> Vec<Flow> {
    port_flows(
        ofport,
        &port(addresses),
        &Action::Output(PortNumber::NORMAL),
    )
}

fn goes(flows: &[Flow], fields: &[Field]) -> Vec<Action> {
    let same = |flow: &&Flow| flow.fields == fields;
    flows
        .iter()
        .filter(same)
        .map(|flow| flow.action.clone())
        .collect()
}

#[test]
fn the_address_that_the_kernel_makes_of_a_mac_is_known() {
    let made = link_local("0a:58:0a:ba:00:05".parse().unwrap());
    assert_eq!(made.to_string(), "fe80::858:aff:feba:5");
}

#[test]
fn each_flow_of_a_port_bears_its_number_and_none_is_there_twice() {
    let flows = of_port(0x4001, &["10.186.0.5", "fd00::5"]);
    for (at, flow) in flows.iter().enumerate() {
        assert_eq!(flow.cookie, cookie_of(0x4001).value);
        let key = |flow: &Flow| (flow.table, flow.priority, flow.fields.clone());
        assert!(
            flows[..at].iter().all(|other| key(other) != key(flow)),
            "{flow:?}"
        );
    }
}

#[test]
fn a_frame_is_admitted_with_the_ports_own_mac_alone() {
    let flows = of_port(9, &["10.186.0.5"]);
    let from = Field::InPort(PortNumber(9));
    let admission: Vec<&Flow> = flows.iter().filter(|flow| flow.table == 0).collect();
    let [admits, drops] = admission[..] else {
        panic!("{admission:?}");
    };
    assert!(admits.priority > drops.priority && matches!(admits.action, Action::Goto(_)));
    assert_eq!(
        (&drops.fields[..], &drops.action),
        (&[from][..], &Action::Drop)
    );
}

#[test]
fn a_port_without_addresses_is_held_to_its_mac_alone() {
    let flows = of_port(9, &[]);
    let from = [Field::InPort(PortNumber(9))];
    let everything = goes(&flows, &from);
    assert_eq!(
        everything
            .iter()
            .filter(|it| matches!(it, Action::Goto(_)))
            .count(),
        2
    );
}

#[test]
fn nobodys_question_goes_to_the_gateway_and_where_there_are_others_to_all() {
    let around = |others| Surroundings {
        local_mac: None,
        gateways: vec![IpAddr::from([10, 186, 0, 1])],
        others,
    };
    let asked = [Field::EthType(0x806), Field::ArpOp(1)];
    for (others, port) in [(false, PortNumber::LOCAL), (true, PortNumber::NORMAL)] {
        assert_eq!(
            goes(&common_flows(&around(others)), &asked),
            [Action::Output(port)]
        );
    }
    let of_gateway = [&asked[..], &[Field::ArpTpa([10, 186, 0, 1].into())]].concat();
    let to_local = [Action::Output(PortNumber::LOCAL)];
    assert_eq!(goes(&common_flows(&around(true)), &of_gateway), to_local);
}

#[test]
fn announcements_of_the_ports_own_addresses_go_where_they_should() {
    let announced = Action::OutputToAll(vec![PortNumber::LOCAL, PortNumber(7)]);
    let flows = port_flows(9, &port(&["10.186.0.5", "fd00::5"]), &announced);
    let highest = flows
        .iter()
        .map(|flow| flow.priority)
        .filter(|it| *it < 2000);
    let highest = highest.max().unwrap();
    let to_all: Vec<&Flow> = flows.iter().filter(|it| it.action == announced).collect();
    assert!(
        to_all.iter().all(|flow| flow.priority == highest),
        "{to_all:?}"
    );
    let fields: Vec<Field> = to_all
        .iter()
        .map(|flow| *flow.fields.last().unwrap())
        .collect();
    let (v4, v6) = ([10, 186, 0, 5].into(), "fd00::5".parse().unwrap());
    assert_eq!(fields, [Field::ArpTpa(v4), Field::NdTarget(v6)]);
}

#[test]
fn a_number_that_is_in_use_is_passed_over_and_the_last_is_followed_by_the_first() {
    let port = std::sync::Arc::new(port(&[]));
    let mut numbers = Numbers {
        next: NUMBERS.end - 1,
        ..Numbers::default()
    };
    numbers.used.insert(NUMBERS.start);
    let taken = [numbers.reserve(&port), numbers.reserve(&port)];
    assert_eq!(taken, [NUMBERS.end - 1, NUMBERS.start + 1]);
}
