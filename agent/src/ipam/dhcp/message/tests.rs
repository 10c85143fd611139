//! What a client says, and which answers it takes.

use super::*;
use proptest::prelude::*;

const ID: u32 = 0x1234_5678;
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const SELECTING: Ask = Ask::Select {
    address: ADDRESS,
    server: SERVER,
};
const RENEWING: Ask = Ask::Renew { address: ADDRESS };

fn answer(kind: u8, address: Ipv4Addr, more: &[(u8, &[u8])]) -> Vec<u8> {
    let mut message = vec![0; options::COOKIE_AT];
    message[..3].copy_from_slice(&[REPLY, 1, 6]);
    message[4..8].copy_from_slice(&ID.to_be_bytes());
    message[16..20].copy_from_slice(&address.octets());
    message[28..34].copy_from_slice(&OWN);
    message.extend(options::COOKIE);
    let time = [0, 0, 0, 120];
    let usual: [(u8, &[u8]); 3] = [
        (options::TYPE, &[kind]),
        (options::SERVER, &SERVER.octets()),
        (options::LEASE_TIME, &time),
    ];
    let is_replaced = |code: u8| more.iter().any(|(it, _)| *it == code);
    for (code, value) in usual
        .iter()
        .filter(|(code, _)| !is_replaced(*code))
        .chain(more)
    {
        options::write(*code, value, &mut message);
    }
    options::end(&mut message);
    message
}

fn seconds(code: u8, seconds: u32) -> (u8, [u8; 4]) {
    (code, seconds.to_be_bytes())
}

fn parse(payload: &[u8], ask: &Ask) -> Option<Answer> {
    let server = MacAddr6::new(2, 0, 0, 0, 0, 1);
    Answer::parse(payload, ID, OWN.into(), server, ask)
}

fn lease(more: &[(u8, [u8; 4])]) -> Lease {
    let more: Vec<(u8, &[u8])> = more.iter().map(|(code, it)| (*code, &it[..])).collect();
    let ack = answer(ACK, ADDRESS, &more);
    parse(&ack, &SELECTING).unwrap().lease("net1")
}

fn times(renewal: u32, rebinding: u32, end: u32) -> Times {
    Times {
        renewal,
        rebinding,
        end,
    }
}

#[test]
fn each_message_says_what_it_is_and_is_long_enough_for_every_relay() {
    let decline = Ask::Decline {
        address: ADDRESS,
        server: SERVER,
    };
    let release = Ask::Release {
        address: ADDRESS,
        server: SERVER,
    };
    let discover = Ask::Discover { wanted: None };
    for (ask, kind, client, requested, server) in [
        (discover, DISCOVER, false, false, false),
        (SELECTING, SELECT, false, true, true),
        (RENEWING, SELECT, true, false, false),
        (decline, DECLINE, false, true, true),
        (release, RELEASE, true, false, true),
    ] {
        let provided = [(12, "web"), (61, "me")].map(|(code, value)| Provided {
            code,
            value: value.into(),
        });
        let bytes = ask.encode(ID, OWN.into(), &provided);
        assert!(bytes.len() >= LEAST_LENGTH);
        let said = Options::parse(&bytes).unwrap();
        let has = |code| said.text(code).is_some() || said.address(code).is_some();
        assert_eq!(said.byte(options::TYPE), Some(kind));
        assert_eq!(bytes[12..16] == ADDRESS.octets(), client, "{ask:?}");
        assert_eq!((bytes[0], &bytes[28..34]), (REQUEST, &OWN[..]));
        assert_eq!(has(options::WANTED), requested, "{ask:?}");
        assert_eq!(has(options::SERVER), server, "{ask:?}");
        assert!(has(61), "{ask:?}");
        let is_last = matches!(kind, DECLINE | RELEASE);
        assert_eq!(has(12), !is_last, "{ask:?}");
    }
}

#[test]
fn only_the_answer_to_the_question_counts() {
    let ack = answer(ACK, ADDRESS, &[]);
    assert!(parse(&ack, &SELECTING).is_some());
    assert!(parse(&ack, &RENEWING).is_some());
    assert!(parse(&ack, &Ask::Discover { wanted: None }).is_none());
    let other = Ask::Select {
        address: ADDRESS,
        server: ADDRESS,
    };
    assert!(parse(&ack, &other).is_none(), "another server's");
    let other = answer(ACK, Ipv4Addr::new(192, 0, 2, 8), &[]);
    assert!(parse(&other, &SELECTING).is_none(), "another address");
    assert!(parse(&other, &RENEWING).is_none(), "another address");
    for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1"] {
        let offer = answer(OFFER, address.parse().unwrap(), &[]);
        assert!(parse(&offer, &Ask::Discover { wanted: None }).is_none());
    }
    let server = MacAddr6::nil();
    assert!(Answer::parse(&ack, ID + 1, OWN.into(), server, &SELECTING).is_none());
    assert!(Answer::parse(&ack, ID, server, server, &SELECTING).is_none());
    let mut other = ack.clone();
    other[2] = 16;
    assert!(parse(&other, &SELECTING).is_none(), "not of Ethernet");
    for length in 0..ack.len() - 1 {
        assert!(parse(&ack[..length], &SELECTING).is_none(), "{length}");
    }
}

#[test]
fn a_refusal_is_an_error_with_server_and_address() {
    let nak = answer(NAK, Ipv4Addr::UNSPECIFIED, &[]);
    for ask in [SELECTING, RENEWING] {
        let error = parse(&nak, &ask)
            .unwrap()
            .accepted("net1", &ask)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "DHCP on net1: server 192.0.2.1 refused 192.0.2.7"
        );
    }
}

#[test]
fn a_lease_has_what_the_server_said_or_the_rfcs_times() {
    assert_eq!(lease(&[]).term.times, times(60, 105, 120));
    let said = [(options::RENEWAL, 3), (options::REBINDING, 7)].map(|(code, it)| seconds(code, it));
    assert_eq!(lease(&said).term.times, times(3, 7, 120));
    let mixed_up = [(options::RENEWAL, 500), (options::REBINDING, 400)];
    let mixed_up = mixed_up.map(|(code, it)| seconds(code, it));
    assert_eq!(lease(&mixed_up).term.times, times(118, 119, 120));
    assert_eq!(
        lease(&[seconds(options::LEASE_TIME, 0)]).term.times,
        times(2, 3, 4)
    );
    let forever = lease(&[seconds(options::LEASE_TIME, FOREVER)]);
    assert_eq!(forever.term.until_renewal(0), None);
}

#[test]
fn a_mask_that_makes_no_network_leaves_the_address_alone() {
    let with = |mask: [u8; 4]| lease(&[(options::MASK, mask)]).address;
    assert_eq!(with([255, 255, 255, 0]).to_string(), "192.0.2.7/24");
    for mask in [[0, 0, 0, 0], [255, 0, 255, 0]] {
        assert_eq!(with(mask).to_string(), "192.0.2.7/32");
    }
    assert_eq!(lease(&[]).address.to_string(), "192.0.2.7/32");
}

#[test]
fn a_domain_is_a_name_or_nothing() {
    assert_eq!(domain("example.org\0").as_deref(), Some("example.org"));
    for name in [
        "",
        "\0",
        "a b",
        "a\nnameserver 192.0.2.66",
        &"a".repeat(254),
    ] {
        assert_eq!(domain(name), None, "{name:?}");
    }
}

proptest! {
    /// What anybody on the link may send.
    #[test]
    fn no_answer_ends_the_agent_or_gives_times_out_of_order(
        at in 0_usize..300, byte: u8, second_at in 0_usize..300, second: u8,
        more in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let said = [(options::ROUTERS, &SERVER.octets()[..]), (options::DOMAIN, b"a")];
        let mut bytes = answer(ACK, ADDRESS, &said);
        bytes.pop();
        bytes.extend(more);
        for (at, byte) in [(at, byte), (second_at, second)] {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if let Some(answer) = parse(&bytes, &RENEWING) {
            let Times { renewal, rebinding, end } = answer.lease("net1").term.times;
            prop_assert!(0 < renewal && renewal < rebinding && rebinding < end);
        }
    }
}
