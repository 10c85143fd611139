use super::*;

/// As ovs-vswitchd 3.1 prints it: connection tracking, then a port.
const TRACKED: &str = r#"Flow: tcp,in_port=va,vlan_tci=0x0000,dl_src=0a:58:0a:ba:00:02,tp_src=40000,tp_dst=80

bridge("br-int")
----------------
 0. in_port=va,vlan_tci=0x0000,dl_src=0a:58:0a:ba:00:02, priority 2001, cookie 0x706f647700000001
    goto_table:240
240. ip,in_port=va,nw_src=10.186.0.2, priority 100, cookie 0x706f647700000001
    ct(table=244,zone=5)
    drop
     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table 244.
     -> Sets the packet to an untracked state, and clears all the conntrack fields.

Final flow: unchanged
Megaflow: recirc_id=0,eth,ip,in_port=va
Datapath actions: ct(zone=5),recirc(0x1)

===============================================================================
recirc(0x1) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

Flow: recirc_id=0x1,ct_state=new|trk,ct_zone=5,eth,tcp,in_port=va

bridge("br-int")
----------------
    thaw
        Resuming from table 244
244. ct_state=+new,ip, priority 200
    ct(commit,zone=5)
    output:vb

Final flow: recirc_id=0x1
Megaflow: recirc_id=0x1
Datapath actions: ct(commit,zone=5),vb
"#;

#[test]
fn a_packet_is_followed_through_connection_tracking() {
    let way = openflow::Way::read(TRACKED);
    assert_eq!(way.ends, [End::Port("vb".into())]);
    let steps: Vec<String> = way.steps.iter().map(openflow::Step::text).collect();
    insta::assert_snapshot!(steps.join("\n"));
}

#[test]
fn a_refusal_by_port_security_is_told_as_one_and_another_by_its_flow() {
    let refused = TRACKED.split("    ct(").next().unwrap();
    let refused = refused.replace(
        "240. ip,in_port=va,nw_src=10.186.0.2, priority 100",
        "240. No match.",
    );
    let way = openflow::Way::read(&(refused + "    drop\nDatapath actions: drop\n"));
    assert_eq!(way.ends, []);
    assert_eq!(
        way.reason(),
        "port security: the source address is not one of the port's (table 240 of br-int has no \
         matching flow)"
    );
    let other = "bridge(\"br-int\")\n 0. priority 7\n    drop\nDatapath actions: drop\n";
    let way = openflow::Way::read(other);
    assert_eq!(way.reason(), "table 0 of br-int, priority 7");
}

#[test]
fn ports_tunnels_and_the_controller_are_found_in_datapath_actions() {
    let tunnel = |peer: &str| End::Tunnel(peer.into());
    let port = |name: &str| End::Port(name.into());
    for (actions, ends) in [
        ("drop", vec![]),
        ("vb,br-int", vec![port("vb"), port("br-int")]),
        ("pop_vlan,ct_clear,vb", vec![port("vb")]),
        (
            "set(tunnel(tun_id=0x3,dst=172.31.0.3,ttl=64,flags(df))),genev_sys_6081",
            vec![tunnel("172.31.0.3")],
        ),
        (
            "clone(tnl_push(tnl_port(genev_sys_6081),header(size=58,eth(dst=aa:aa:aa:55:aa:00,\
             src=aa:55:aa:55:00:00),ipv4(src=172.31.0.2,dst=172.31.0.3,proto=17),\
             udp(src=0,dst=6081)),out_port(br-phy)),eth0)",
            vec![tunnel("172.31.0.3")],
        ),
        (
            "userspace(pid=0,controller(reason=1,dont_send=0))",
            vec![End::Controller],
        ),
        (
            "check_pkt_len(size=1414,gt(userspace(pid=0,controller(reason=1))),le(vb))",
            vec![End::Controller, port("vb")],
        ),
    ] {
        let way = openflow::Way::read(&format!("Datapath actions: {actions}\n"));
        assert_eq!(way.ends, ends, "{actions}");
    }
}

/// As ovn-trace 23.03 prints it.
const OVN: &str = r#"# tcp,reg14=0x1

ingress(dp="sw", inport="web")
------------------------------
 0. ls_in_check_port_sec (northd.c:8432): 1, priority 50, uuid 19ea18ee
    reg0[15] = check_in_port_sec();
    next;
25. ls_in_l2_lkup (northd.c:9122): eth.dst == 0a:58:0a:f4:00:0c, priority 50, uuid 79a76903
    outport = "db";
    output;

egress(dp="sw", inport="web", outport="db")
-------------------------------------------
"#;

#[test]
fn a_drop_by_an_acl_and_a_delivery_are_read_from_ovn_trace() {
    let dropped = " 4. ls_out_acl (northd.c:6588): outport==\"db\" && ip4, priority 2000, uuid \
                   4b724bfc\n    drop;\n";
    let way = ovn::Way::read(&format!("{OVN}{dropped}"));
    assert_eq!(
        way.reason(),
        "an ACL: ls_out_acl of sw, outport==\"db\" && ip4, priority 2000"
    );
    assert!(way.ports.is_empty());
    let delivered = " 9. ls_out_apply_port_sec (northd.c:5777): 1, priority 0, uuid 482f6aba\n    \
                     output;\n    /* output to \"stor\", type \"patch\" */\n    /* output \
                     to \"db\", type \"\" */\n";
    let way = ovn::Way::read(&format!("{OVN}{delivered}"));
    assert_eq!(way.ports, ["db"]);
}

#[test]
fn a_packet_is_told_to_each_program_in_its_own_words() {
    let packet = |proto, src: &str, dst: &str| Packet {
        proto,
        src_mac: "0a:58:0a:ba:00:02".parse().unwrap(),
        dst_mac: "0a:58:0a:ba:00:03".parse().unwrap(),
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        port: 80,
    };
    let mut all = String::new();
    for (src, dst) in [("10.186.0.2", "10.186.0.3"), ("fd00::2", "fd00::3")] {
        for proto in [Proto::Icmp, Proto::Tcp, Proto::Udp] {
            let packet = packet(proto, src, dst);
            let ways = [packet.openflow(7), packet.ovn("shop_web")];
            all.push_str(&format!("{packet}\n  {}\n", ways.join("\n  ")));
        }
    }
    insta::assert_snapshot!(all);
}
