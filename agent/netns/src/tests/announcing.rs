use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::*;

/// What arrives at the host's links from now on.
fn capture() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        flags,
        SockProtocol::EthAll,
    )
    .unwrap();
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(30)).unwrap();
    socket
}

/// The next frame that `wanted` takes; others (the pod's own IPv6 chatter) are passed over.
fn next(capture: &OwnedFd, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut frame = [0; 2048];
    loop {
        let length = recv(
            capture.as_raw_fd(),
            &mut frame,
            nix::sys::socket::MsgFlags::empty(),
        )
        .expect("no such frame in 30 s");
        if wanted(&frame[..length]) {
            return frame[..length].to_vec();
        }
    }
}

fn is_arp(frame: &[u8]) -> bool {
    frame[12..14] == [0x08, 0x06]
}

fn is_advertisement(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == 136
}

#[test]
fn each_address_is_announced_to_the_host_end() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let mac = spec("").pod_mac.into_array();
        let announced = LinkSpec {
            addresses: vec![
                "10.1.2.3/24".parse().unwrap(),
                "10.1.2.4/24".parse().unwrap(),
                "fd00:1::3/64".parse().unwrap(),
            ],
            announce: ["10.1.2.3", "10.1.2.4", "fd00:1::3"]
                .map(|it| it.parse().unwrap())
                .into(),
            ..spec("a1")
        };
        let (_, end) = netlink.attached(&pod, announced).await.unwrap();
        let capture = capture();
        assert_eq!(end.announce(), []);

        for address in [[10, 1, 2, 3], [10, 1, 2, 4]] {
            let frame = next(&capture, is_arp);
            assert_eq!(frame[..6], [0xff; 6]);
            assert_eq!(frame[6..12], mac);
            assert_eq!(frame[20..22], [0, 1], "a request");
            assert_eq!((&frame[22..28], &frame[28..32]), (&mac[..], &address[..]));
            assert_eq!(frame[38..42], address);
        }
        let frame = next(&capture, is_advertisement);
        let address = "fd00:1::3".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[21], 255, "hop limit");
        assert_eq!(frame[22..38], address, "source");
        assert_eq!(frame[58], 0x20, "override");
        assert_eq!(frame[62..78], address, "target");
        assert_eq!(frame[80..86], mac, "link-layer address");
        assert_eq!(sum_with_pseudo_header(&frame), 0xffff, "checksum");
    });
}

/// RFC 1071: over everything, checksum included, a right one gives all ones.
fn sum_with_pseudo_header(frame: &[u8]) -> u32 {
    let length = [0, 0, frame[18], frame[19], 0, 0, 0, frame[20]];
    let covered: Vec<u8> = [&frame[22..54], &length, &frame[54..]].concat();
    let words = covered
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn nothing_is_announced_unless_asked_for() {
    on_own_host(async |netlink| {
        let (silent, other) = (Pod::new(), Pod::new());
        let (_, end) = netlink.attached(&silent, spec("a1")).await.unwrap();
        let asked = LinkSpec {
            addresses: vec!["10.1.2.9/24".parse().unwrap()],
            announce: vec!["10.1.2.9".parse().unwrap()],
            ..spec("a2")
        };
        let (_, marker) = netlink.attached(&other, asked).await.unwrap();
        let capture = capture();
        assert_eq!(end.announce(), []);
        assert_eq!(marker.announce(), []);
        assert_eq!(next(&capture, is_arp)[28..32], [10, 1, 2, 9]);
    });
}

#[test]
fn an_announcement_from_an_interface_that_is_gone_is_an_error_for_each_address() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let (host, end) = netlink
            .attached(
                &pod,
                LinkSpec {
                    announce: ["10.1.2.3", "fd00:1::3"]
                        .map(|it| it.parse().unwrap())
                        .into(),
                    ..spec("a1")
                },
            )
            .await
            .unwrap();
        netlink.delete(vec![host.link]).await.unwrap();
        let errors = end.announce();
        assert_eq!(errors.len(), 2);
        assert!(
            errors[0]
                .to_string()
                .starts_with("cannot announce 10.1.2.3: "),
            "{errors:?}"
        );
    });
}
