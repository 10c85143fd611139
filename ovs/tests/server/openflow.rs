//! Flows in a real ovs-vswitchd, read back by its own words.

use podwire_ovs::openflow::{
    Action, CT_ESTABLISHED, CT_TRACKED, Connection, Cookie, Field, Flow, FlowMod, OpenFlowError,
    PortNumber, management_socket,
};
use podwire_ovs::unixctl::Unixctl;

use crate::fixture::{Server, bridge, soon};
use crate::vswitchd::Vswitchd;

const MAC: [u8; 6] = [0x0a, 0x58, 10, 0, 0, 1];

fn flow(cookie: u64, priority: u16, fields: &[Field], action: Action) -> FlowMod {
    FlowMod::Add(Flow {
        table: 0,
        priority,
        fields: fields.to_vec(),
        action,
        cookie,
        tells_removal: false,
    })
}

async fn flows(server: &Server) -> String {
    let control = Unixctl::for_daemon(server.path(), "ovs-vswitchd").unwrap();
    let text = control.call("bridge/dump-flows", &["br-int"], soon()).await;
    text.unwrap()
}

async fn connection(server: &Server) -> (Vswitchd, Connection) {
    let (client, root) = server.initialised().await;
    bridge(&client, root, "br-int").await;
    let vswitchd = Vswitchd::start(server);
    let in_use = |db: &podwire_ovs::replica::Db| {
        db.interface_by_name("br-int")?
            .ofport()
            .filter(|it| *it > 0)
    };
    client.wait("the local port", soon(), in_use).await.unwrap();
    let socket = management_socket(server.path(), "br-int");
    (vswitchd, Connection::open(socket).await.unwrap())
}

#[tokio::test]
async fn every_field_and_action_is_read_by_the_switch_as_it_was_meant() {
    let server = Server::start();
    let (_vswitchd, mut connection) = connection(&server).await;
    let (arp, ipv4, ipv6) = (
        Field::EthType(0x806),
        Field::EthType(0x800),
        Field::EthType(0x86dd),
    );
    let (icmp, udp, icmpv6) = (Field::IpProto(1), Field::IpProto(17), Field::IpProto(58));
    let ip4 = [10, 0, 0, 1].into();
    let ip6 = "fd00::1".parse().unwrap();
    let solicitation = [ipv6, icmpv6, Field::Icmpv6Type(135), Field::Icmpv6Code(0)];
    let advertisement = [ipv6, icmpv6, Field::Icmpv6Type(136), Field::Icmpv6Code(0)];
    let in_port = Field::InPort(PortNumber(7));
    let with = |fields: &[Field], more: &[Field]| [fields, more].concat();
    let changes = [
        flow(
            1,
            1,
            &[in_port, Field::EthSrc(MAC), Field::NoVlan],
            Action::Goto(9),
        ),
        flow(1, 2, &[in_port], Action::Drop),
        flow(1, 3, &[Field::EthDst(MAC)], Action::Output(PortNumber(8))),
        flow(
            1,
            4,
            &[arp, Field::ArpOp(1), Field::ArpTpa(ip4)],
            Action::Output(PortNumber::LOCAL),
        ),
        flow(
            1,
            5,
            &[arp, Field::ArpSpa(ip4), Field::ArpSha(MAC)],
            Action::Output(PortNumber::NORMAL),
        ),
        flow(1, 6, &[ipv4, Field::Ipv4Src(ip4)], Action::Drop),
        flow(
            1,
            7,
            &[ipv4, udp, Field::UdpSrc(67), Field::UdpDst(68)],
            Action::Drop,
        ),
        flow(1, 8, &[ipv6, Field::Ipv6Src(ip6)], Action::Drop),
        flow(
            1,
            12,
            &[ipv4, Field::Ipv4Dst(ip4), icmp, Field::Icmpv4Type(5)],
            Action::Drop,
        ),
        flow(
            1,
            9,
            &with(&solicitation, &[Field::NdTarget(ip6), Field::NdSll(MAC)]),
            Action::Drop,
        ),
        flow(
            1,
            10,
            &with(&advertisement, &[Field::NdTll(MAC)]),
            Action::Drop,
        ),
        flow(
            1,
            11,
            &[],
            Action::OutputToAll([PortNumber::LOCAL, PortNumber(8), PortNumber(9)].into()),
        ),
        flow(
            1,
            13,
            &[ipv4, Field::IpProto(6), Field::TcpDst(6642)],
            Action::Track {
                zone: 64000,
                table: 1,
            },
        ),
        flow(
            1,
            14,
            &[
                ipv4,
                Field::CtState(CT_TRACKED | CT_ESTABLISHED),
                Field::CtMark(2),
            ],
            Action::Commit {
                zone: 64000,
                mark: 1,
                then: PortNumber::NORMAL,
            },
        ),
    ];
    connection.commit(&changes).await.unwrap();
    let text = flows(&server).await;
    for line in [
        "priority=1,in_port=7,vlan_tci=0x0000/0x1fff,dl_src=0a:58:0a:00:00:01,actions=goto_table:9",
        "priority=2,in_port=7,actions=drop",
        "priority=3,dl_dst=0a:58:0a:00:00:01,actions=output:8",
        "priority=4,arp,arp_tpa=10.0.0.1,arp_op=1,actions=LOCAL",
        "priority=5,arp,arp_spa=10.0.0.1,arp_sha=0a:58:0a:00:00:01,actions=NORMAL",
        "priority=6,ip,nw_src=10.0.0.1,actions=drop",
        "priority=7,udp,tp_src=67,tp_dst=68,actions=drop",
        "priority=8,ipv6,ipv6_src=fd00::1,actions=drop",
        "priority=9,icmp6,icmp_type=135,icmp_code=0,nd_target=fd00::1,\
         nd_sll=0a:58:0a:00:00:01,actions=drop",
        "priority=10,icmp6,icmp_type=136,icmp_code=0,nd_tll=0a:58:0a:00:00:01,actions=drop",
        "priority=11,actions=LOCAL,output:8,output:9",
        "priority=12,icmp,nw_dst=10.0.0.1,icmp_type=5,actions=drop",
        "priority=13,tcp,tp_dst=6642,actions=ct(table=1,zone=64000)",
        "priority=14,ct_state=+est+trk,ct_mark=0x2,ip,\
         actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),NORMAL",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_deletion_by_cookie_leaves_the_flows_of_others() {
    let server = Server::start();
    let (_vswitchd, mut connection) = connection(&server).await;
    let changes = [
        flow(0xaa01, 1, &[], Action::Drop),
        flow(0xaa02, 2, &[], Action::Drop),
        flow(0xbb01, 3, &[], Action::Drop),
    ];
    connection.commit(&changes).await.unwrap();
    let ours = Cookie {
        value: 0xaa00,
        mask: 0xff00,
    };
    let again = [FlowMod::Delete(ours), flow(0xaa03, 4, &[], Action::Drop)];
    connection.commit(&again).await.unwrap();
    let count = |value, mask| Cookie { value, mask };
    assert_eq!(connection.count(ours).await.unwrap(), 1);
    assert_eq!(connection.count(count(0xbb01, u64::MAX)).await.unwrap(), 1);
    assert_eq!(connection.count(count(0xaa01, u64::MAX)).await.unwrap(), 0);
    let text = flows(&server).await;
    let left = |priority: u16| text.contains(&format!("priority={priority},actions=drop"));
    assert_eq!([1, 2, 3, 4].map(left), [false, false, true, true], "{text}");
}

#[tokio::test]
async fn a_flow_tells_of_its_deletion_by_whomever_but_not_of_its_replacement() {
    let server = Server::start();
    let (_vswitchd, mut connection) = connection(&server).await;
    let telling = |cookie| match flow(cookie, 1, &[], Action::Drop) {
        FlowMod::Add(flow) => FlowMod::Add(Flow {
            tells_removal: true,
            ..flow
        }),
        other => other,
    };
    let first = [telling(0xaa01), flow(0xaa02, 2, &[], Action::Drop)];
    connection.commit(&first).await.unwrap();
    connection.commit(&[telling(0xaa03)]).await.unwrap();
    let socket = management_socket(server.path(), "br-int");
    let mut other = Connection::open(socket).await.unwrap();
    let everything = Cookie { value: 0, mask: 0 };
    other.commit(&[FlowMod::Delete(everything)]).await.unwrap();
    for connection in [&mut connection, &mut other] {
        let removed = tokio::time::timeout_at(soon(), connection.removed()).await;
        assert_eq!(removed.unwrap().unwrap(), 0xaa03);
    }
}

#[tokio::test]
async fn of_a_bundle_with_one_bad_flow_nothing_is_in_effect_and_the_connection_goes_on() {
    let server = Server::start();
    let (_vswitchd, mut connection) = connection(&server).await;
    let bad = [
        flow(1, 1, &[], Action::Drop),
        // A table can't hand on to itself.
        flow(1, 2, &[], Action::Goto(0)),
    ];
    let error = connection.commit(&bad).await.unwrap_err();
    assert!(matches!(error, OpenFlowError::Refused { .. }), "{error}");
    assert!(
        error.to_string().contains("OFPET_BAD_INSTRUCTION"),
        "{error}"
    );
    assert!(!flows(&server).await.contains("priority=1,"));
    connection
        .commit(&[flow(1, 3, &[], Action::Drop)])
        .await
        .unwrap();
    assert!(flows(&server).await.contains("priority=3,"));
}

#[tokio::test]
async fn the_end_of_the_switch_ends_the_connection() {
    let server = Server::start();
    let (vswitchd, mut connection) = connection(&server).await;
    drop(vswitchd);
    let error = connection.removed().await.unwrap_err();
    assert!(matches!(error, OpenFlowError::Io { .. }), "{error}");
    let socket = management_socket(server.path(), "br-int");
    let error = Connection::open(socket).await.unwrap_err();
    assert!(matches!(error, OpenFlowError::Connect { .. }), "{error}");
}
