//! The flows of the gateway bridge as items.

use super::*;

fn flows() -> BridgeFlows {
    BridgeFlows {
        mac: "02:00:00:00:00:01".to_owned(),
        nic: Some(1),
        patch: Some(2),
        others: vec![3],
        tunnels: vec![6081],
        guarded: vec![(UDP, 6081), (6, 6642)],
        led: Some(BTreeSet::new()),
    }
}

fn state(item: &BridgeFlows, flows: Option<ObservedFlows>) -> State {
    let actual = Actual {
        flows,
        ..Actual::default()
    };
    item.state(&View {
        items: &[],
        actual: &actual,
        journal: &[],
        take_over: false,
    })
}

#[test]
fn the_number_of_flows_with_the_planned_cookie_says_whether_they_are_there() {
    let item = flows();
    let count = u32::try_from(item.flows().len()).unwrap();
    let seen = |all, planned| state(&item, Some(ObservedFlows { all, planned }));
    assert_eq!(seen(count, count), State::Well { ours: true });
    assert_eq!(seen(0, 0), State::Missing);
    assert!(matches!(seen(count, 0), State::Differs(_)));
    assert!(matches!(seen(count - 1, count - 1), State::Differs(_)));
    assert!(matches!(state(&item, None), State::Waits(_)));
    let without = BridgeFlows { nic: None, ..item };
    assert!(matches!(state(&without, None), State::Waits(_)));
    assert_eq!(without.flows(), []);
}

fn led(address: &str, sources: &[&str]) -> Led {
    Led {
        protocol: 6,
        address: address.parse().unwrap(),
        port: 80,
        is_own: address.starts_with("192.0.2."),
        sources: sources.iter().map(|it| it.parse().unwrap()).collect(),
    }
}

#[test]
fn what_the_gateway_router_leads_begins_there_and_nobody_asks_it_for_addresses() {
    let of = |all: Vec<Led>| {
        let item = BridgeFlows {
            led: Some(all.into_iter().collect()),
            ..flows()
        };
        let before = flows().flows().len();
        let all = item.flows().into_iter();
        let begin = |flow: &Flow| (flow.table, flow.priority) == (1, 50);
        let at_once = all.clone().filter(|it| (it.table, it.priority) == (0, 101));
        let all = all.filter(|it| (it.table, it.priority) != (0, 101));
        let at_once = at_once.count();
        let (begin, all): (Vec<_>, Vec<_>) = all.partition(begin);
        assert_eq!(at_once, begin.len());
        (begin, all.len() - before)
    };
    let (own, asked) = of(vec![led("192.0.2.11", &[])]);
    assert_eq!((own.len(), asked), (1, 0));
    let action = Action::Commit {
        zone: ZONE,
        mark: OVN,
        then: PortNumber(2),
    };
    assert_eq!(own[0].action, action);
    assert!(own[0].fields.contains(&Field::CtState(CT_TRACKED | CT_NEW)));
    // One address on two ports, with two ranges of clients on one of them.
    let ranged = led("198.51.100.10", &["203.0.113.0/24", "203.0.114.0/24"]);
    let other = Led {
        port: 81,
        ..led("198.51.100.10", &[])
    };
    let (begin, asked) = of(vec![ranged, other]);
    assert_eq!((begin.len(), asked), (3, 1));
    let range = Field::Ipv4SrcIn([203, 0, 114, 0].into(), 24);
    assert_eq!(
        begin.iter().filter(|it| it.fields.contains(&range)).count(),
        1
    );
    let (begin, asked) = of(vec![led("2001:db8:51::10", &["2001:db8::/64"])]);
    assert_eq!((begin.len(), asked), (1, 1));
}

#[test]
fn flows_stay_until_it_is_known_what_is_led() {
    let item = BridgeFlows {
        led: None,
        ..flows()
    };
    let seen = |all, planned| state(&item, Some(ObservedFlows { all, planned }));
    assert_eq!(seen(40, 0), State::Well { ours: true });
    assert_eq!(seen(0, 0), State::Missing);
}

#[test]
fn each_port_number_address_and_guarded_port_makes_another_cookie() {
    let item = flows();
    let others = [
        BridgeFlows {
            led: Some([led("198.51.100.10", &[])].into()),
            ..flows()
        },
        BridgeFlows {
            nic: Some(4),
            ..flows()
        },
        BridgeFlows {
            patch: None,
            ..flows()
        },
        BridgeFlows {
            others: vec![],
            ..flows()
        },
        BridgeFlows {
            mac: "02:00:00:00:00:02".to_owned(),
            ..flows()
        },
        BridgeFlows {
            guarded: vec![],
            ..flows()
        },
        BridgeFlows {
            tunnels: vec![],
            ..flows()
        },
    ];
    for other in others {
        assert_ne!(other.cookie(), item.cookie(), "{other:?}");
    }
    assert_eq!(item.cookie(), flows().cookie());
    assert!(item.flows().iter().all(|flow| flow.cookie & TAGGED == TAG));
}

#[test]
fn no_two_flows_have_one_match_and_nothing_of_the_gateway_router_is_learned() {
    let all = flows().flows();
    let mut seen = std::collections::HashSet::new();
    for flow in &all {
        let fields: Vec<String> = flow.fields.iter().map(|it| format!("{it:?}")).collect();
        assert!(seen.insert((flow.table, flow.priority, fields)), "{flow:?}");
    }
    let patch = Field::InPort(PortNumber(2));
    let of_router = all.iter().filter(|flow| flow.fields.contains(&patch));
    let normal = Action::Output(PortNumber::NORMAL);
    assert!(of_router.clone().count() > 5);
    for flow in of_router {
        assert_ne!(flow.action, normal, "{flow:?}");
    }
    // Without a gateway router, all that is for the node is its host's.
    let alone = BridgeFlows {
        patch: None,
        ..flows()
    };
    let in_table_1 = alone.flows().into_iter().filter(|flow| flow.table == 1);
    let host = Action::Output(PortNumber::LOCAL);
    assert!(in_table_1.map(|flow| flow.action).eq([host]));
}
