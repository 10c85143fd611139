//! What anybody sends to a service that leads to the tunnels' port of a node.

use std::net::UdpSocket;

use nix::sys::socket::{AddressFamily, SockProtocol};
use podwire_tests::frames::Capture;
use podwire_tests::ovn::Central;

#[test]
fn no_service_leads_to_the_tunnels_of_a_node() {
    let central = Central::start();
    let nodes = [("node-a", 1), ("node-b", 2)];
    let nodes = nodes.map(|(name, number)| central.bare_node(name, number));
    let [here, there] = &nodes;
    here.start_controller();
    let init = here.podwire(here.host_arguments("init", None));
    init.success("podwire node init");
    // As a service's node port does it, whose endpoint somebody has chosen.
    let dnat = |from: u16, to: &str| format!("udp dport {from} dnat ip to {to};");
    let (own, other) = (here.tunnel_address(), there.tunnel_address());
    let rules: String = [
        dnat(30_001, &format!("{other}:6081")),
        dnat(30_002, &format!("{other}:1009")),
        dnat(30_003, &format!("{own}:6081")),
        dnat(30_004, &format!("{own}:1009")),
    ]
    .concat();
    here.run(
        "nft",
        [format!(
            "table inet services {{
            chain before {{ type nat hook prerouting priority dstnat; {rules} }}
            chain after {{ type nat hook postrouting priority srcnat; udp dport 6081 masquerade; }}
        }}"
        )],
    );
    let (outside, own) = (central.machine().place(), own.as_str());
    let (udp, v4) = (SockProtocol::Udp, AddressFamily::Inet);
    let arrive = || {
        let captures = [
            Capture::on(there.place(), "eth0").unwrap(),
            Capture::of_stack(here.place(), v4, udp).unwrap(),
        ];
        outside.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for port in [30_001, 30_002, 30_003, 30_004] {
                let payload = if port % 2 == 0 {
                    "the last"
                } else {
                    "a tunnel's"
                };
                socket.send_to(payload.as_bytes(), (own, port)).unwrap();
            }
        });
        let has =
            |frame: &[u8], text: &str| frame.windows(text.len()).any(|it| it == text.as_bytes());
        captures.map(|capture| {
            let before = capture.until(|frame| has(frame, "the last")).unwrap();
            before.iter().any(|frame| has(frame, "a tunnel's"))
        })
    };
    assert_eq!(arrive(), [false, false]);
    for chain in ["forward", "input"] {
        here.run("nft", format!("flush chain inet podwire-node {chain}"));
    }
    assert_eq!(arrive(), [true, true]);
}
