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

#[test]
fn each_port_number_address_and_guarded_port_makes_another_cookie() {
    let item = flows();
    let others = [
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
