use super::*;
use podwire::inspect::{
    Attachments, Database, Failure, PortCounts, Reachable, SourceView, SpoolView, SubnetView,
};
use podwire::ports::{BridgeView, OvnView, SwitchView};

fn healthy() -> StatusView {
    StatusView {
        version: "0.1.0".into(),
        pid: 4711,
        mode: "plain".into(),
        wait: "ofport".into(),
        ready: true,
        database: Database {
            socket: "/run/openvswitch/db.sock".into(),
            current: true,
            state: "connected and in sync".into(),
        },
        vswitchd: Reachable {
            ok: true,
            problem: None,
        },
        bridge: "br-int".into(),
        ovs_version: Some("3.1.0".into()),
        switch: SwitchView {
            bridge: Some(BridgeView {
                datapath: "netdev".into(),
                ports: 3,
                ..BridgeView::default()
            }),
            ..SwitchView::default()
        },
        ports: PortCounts {
            up: 2,
            ..PortCounts::default()
        },
        attachments: Attachments {
            live: 2,
            ..Attachments::default()
        },
        max_operations: 256,
        subnets: vec![SubnetView {
            subnet: "10.186.0.0/22".into(),
            gateway: "10.186.0.1".into(),
            used: 2,
            capacity: 1021,
        }],
        ..StatusView::default()
    }
}

fn shown(status: &StatusView) -> String {
    let shown = Shown {
        status: status.clone(),
        node_role: None,
        unread: None,
    };
    text(&shown, 10_000_000, 80, Paint::PLAIN)
}

#[test]
fn a_healthy_node_is_one_calm_screen() {
    insta::assert_snapshot!(shown(&healthy()));
}

#[test]
fn what_is_wrong_is_marked_and_told_with_its_reasons() {
    let problem = "ovn-controller is not connected to its southbound database tcp:192.0.2.1:6642";
    let status = StatusView {
        mode: "ovn".into(),
        wait: "ovn-installed".into(),
        ready: false,
        degraded: true,
        reasons: vec!["ovs-vswitchd does not answer".into(), problem.into()],
        ovs_version: None,
        vswitchd: Reachable {
            ok: false,
            problem: None,
        },
        controller: Some(Reachable {
            ok: false,
            problem: Some(problem.into()),
        }),
        switch: SwitchView {
            ovn: OvnView {
                remote: Some("tcp:192.0.2.1:6642".into()),
                ..OvnView::default()
            },
            bridge: None,
            ..healthy().switch
        },
        sources: vec![SourceView {
            source: "kube".into(),
            place: "https://192.0.2.9:6443 for node a".into(),
            is_read: true,
            pods: 7,
            problem: Some("connection refused".into()),
            failing_seconds: Some(240),
        }],
        ports: PortCounts {
            up: 1,
            waiting: 1,
            failed: 1,
        },
        spool: SpoolView {
            entries: 2,
            problem: None,
        },
        subnets: Vec::new(),
        awaited: vec!["web/late".into()],
        failures: vec![Failure {
            started_unix_micros: 7_000_000,
            verb: "ADD".into(),
            pod: Some("web/a".into()),
            container: "3f2b9c0d1e4a5b6c".into(),
            code: 11,
            msg: "waited 30 s for ovn-installed; there is no logical port".into(),
        }],
        ..healthy()
    };
    insta::assert_snapshot!(shown(&status));
}
