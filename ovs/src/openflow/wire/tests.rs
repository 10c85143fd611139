use std::net::Ipv4Addr;

use super::super::flow::{Action, Cookie, Field, Flow, PortNumber};
use super::*;

/// What Open vSwitch 3.1 greets with: 1.5 in the header, 1.0 to 1.5 in the bitmap.
const GREETING: [u8; 16] = [6, 0, 0, 16, 0, 0, 0, 9, 0, 1, 0, 8, 0, 0, 0, 0x7e];

/// Its answer to OFPT_GET_CONFIG_REQUEST: fragments are dropped, packets are sent whole.
const CONFIG: [u8; 12] = [5, 8, 0, 12, 0, 0, 0, 2, 0, 1, 0xff, 0xff];

fn ready() -> Session {
    let mut session = Session::new();
    session.feed(&GREETING);
    session.feed(&CONFIG);
    assert_eq!(session.poll(), Ok(Some(Answer::Ready)));
    session.take_outgoing();
    session
}

fn drop_of(address: Ipv4Addr) -> FlowMod {
    FlowMod::Add(Flow {
        table: 3,
        priority: 7,
        fields: vec![
            Field::InPort(PortNumber(5)),
            Field::EthType(0x800),
            Field::Ipv4Src(address),
        ],
        action: Action::Drop,
        cookie: 0xc0,
        tells_removal: false,
    })
}

#[test]
fn the_greeting_offers_version_1_4_alone() {
    let sent = Session::new().take_outgoing();
    assert_eq!(sent, [5, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x20]);
}

#[test]
fn a_switch_that_leaves_1_4_out_is_refused_whichever_way_it_says_so() {
    let bitmap = [6, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x52];
    let no_bitmap = [1, 0, 0, 8, 0, 0, 0, 1];
    let hello_failed = [1, 1, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0];
    for (greeting, version) in [(&bitmap[..], 6), (&no_bitmap, 1), (&hello_failed, 1)] {
        let mut session = Session::new();
        session.feed(greeting);
        assert_eq!(session.poll(), Err(WireError::Version(version)));
    }
}

#[test]
fn a_greeting_without_a_bitmap_means_every_version_up_to_its_own() {
    let mut session = Session::new();
    session.feed(&[5, 0, 0, 8, 0, 0, 0, 1]);
    session.feed(&CONFIG);
    assert_eq!(session.poll(), Ok(Some(Answer::Ready)));
}

/// As Open vSwitch needs it; what is the switch's own stays as it was.
#[test]
fn a_session_asks_to_be_told_of_deleted_flows_and_of_nothing_else() {
    let mut session = Session::new();
    session.feed(&GREETING);
    assert_eq!(session.poll(), Ok(None));
    let greeting = 16;
    let asked = session.take_outgoing().split_off(greeting);
    assert_eq!(asked, [5, 7, 0, 8, 0, 0, 0, 2]);
    session.feed(&CONFIG);
    assert_eq!(session.poll(), Ok(Some(Answer::Ready)));
    let of_packets_ports_and_flows = [
        [0, 1, 0, 8, 0, 0, 0, 0],
        [0, 3, 0, 8, 0, 0, 0, 0],
        [0, 5, 0, 8, 0, 0, 0, 4],
    ];
    let asked = [
        &[5, 28, 0, 32, 0, 0, 0, 3][..],
        &of_packets_ports_and_flows.concat(),
        &[5, 9, 0, 12, 0, 0, 0, 4, 0, 1, 0, 1],
    ];
    assert_eq!(session.take_outgoing(), asked.concat());
    // Cookie; priority, reason, table, seconds, and more.
    session.feed(&[5, 11, 0, 56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0]);
    session.feed(&[0; 40]);
    assert_eq!(session.poll(), Ok(Some(Answer::Removed { cookie: 0xc0 })));
}

#[test]
fn a_flow_is_encoded_as_the_specification_lays_it_out() {
    let mut bytes = Vec::new();
    drop_of([10, 0, 0, 1].into()).encode(&mut bytes);
    // Cookie, mask; table, command, timeouts, priority, buffer, out port and group, flags,
    // importance.
    let fixed = [
        [0, 0, 0, 0, 0, 0, 0, 0xc0],
        [0; 8],
        [3, 0, 0, 0, 0, 0, 0, 7],
        [0xff; 8],
        [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
    ];
    // 4 + (4 + 4) + (4 + 2) + (4 + 4) bytes of match, without the padding to a multiple of 8.
    let fields = [
        0, 1, 0, 26, 0x80, 0, 0, 4, 0, 0, 0, 5, 0x80, 0, 10, 2, 8, 0, 0x80, 0, 22, 4, 10, 0, 0, 1,
        0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, [&fixed.concat()[..], &fields].concat());
}

#[test]
fn a_prefix_is_an_address_with_its_mask() {
    let encoded = |field| {
        let flow = Flow {
            table: 0,
            priority: 0,
            fields: vec![field],
            action: Action::Drop,
            cookie: 0,
            tells_removal: false,
        };
        let mut bytes = Vec::new();
        FlowMod::Add(flow).encode(&mut bytes);
        // Behind the fixed part and the match's head.
        bytes.split_off(44)
    };
    let v4 = [0x80, 0, 23, 8, 10, 244, 0, 0, 0xff, 0xfe, 0, 0];
    assert_eq!(encoded(Field::Ipv4SrcIn([10, 244, 0, 0].into(), 15)), v4);
    let all = [0x80, 0, 23, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(encoded(Field::Ipv4SrcIn([0; 4].into(), 0)), all);
    let v6 = encoded(Field::Ipv6SrcIn([0xfd00, 0, 0, 0, 0, 0, 0, 0].into(), 9));
    assert_eq!(v6[..6], [0x80, 0, 53, 32, 0xfd, 0]);
    assert_eq!(v6[20..23], [0xff, 0x80, 0]);
}

#[test]
fn a_deletion_goes_by_cookie_in_every_table() {
    let mut bytes = Vec::new();
    let cookie = Cookie {
        value: 0x0102,
        mask: 0xff00,
    };
    FlowMod::Delete(cookie).encode(&mut bytes);
    assert_eq!(
        bytes[..16],
        [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0xff, 0]
    );
    assert_eq!(bytes[16..18], [0xff, 3]);
}

#[test]
fn a_bundle_is_opened_and_filled_in_one_go() {
    let mut session = ready();
    let number = session.bundle(&[drop_of([10, 0, 0, 1].into()), drop_of([10, 0, 0, 2].into())]);
    session.commit(number);
    session.discard(number);
    let sent = session.take_outgoing();
    let mut kinds = Vec::new();
    let mut rest = &sent[..];
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        if rest[1] == BUNDLE_ADD_MESSAGE {
            assert_eq!(rest[4..8], rest[20..24], "inner and outer number");
            assert_eq!(rest[17], FLOW_MOD);
        }
        assert_eq!(rest[8..12], number.to_be_bytes());
        kinds.push((rest[1], rest[13]));
        rest = &rest[length..];
    }
    assert_eq!(kinds, [(33, 0), (34, 0), (34, 0), (33, 4), (33, 6)]);
}

#[test]
fn answers_come_one_by_one_however_the_bytes_are_cut() {
    let mut stream = GREETING.to_vec();
    stream.extend(CONFIG);
    stream.extend([5, 33, 0, 16, 0, 0, 0, 2, 0, 0, 0, 2, 0, 5, 0, 3]);
    stream.extend([5, 2, 0, 10, 0, 0, 0, 7, b'h', b'i']);
    stream.extend([5, 1, 0, 12, 0, 0, 0, 3, 0, 17, 0, 6]);
    stream.extend([5, 21, 0, 8, 0, 0, 0, 4]);
    let refusal = Refusal { kind: 17, code: 6 };
    for size in 1..stream.len() {
        let mut session = Session::new();
        let mut answers = Vec::new();
        for chunk in stream.chunks(size) {
            session.feed(chunk);
            while let Some(answer) = session.poll().unwrap() {
                answers.push(answer);
            }
        }
        assert_eq!(
            answers,
            [
                Answer::Ready,
                Answer::Committed { request: 2 },
                Answer::Refused {
                    request: 3,
                    refusal
                },
                Answer::Barrier { request: 4 },
            ]
        );
        let echo = [5, 3, 0, 10, 0, 0, 0, 7, b'h', b'i'];
        assert!(session.take_outgoing().ends_with(&echo));
    }
    assert_eq!(refusal.to_string(), "OFPET_BUNDLE_FAILED code 6");
}

#[test]
fn a_message_shorter_than_its_header_ends_the_session() {
    let mut session = ready();
    session.feed(&[5, 21, 0, 7, 0, 0, 0, 4]);
    assert_eq!(session.poll(), Err(WireError::Length(7)));
}
