use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SMALL: Limits = Limits {
    message_bytes: 200,
    depth: 5,
    unsent_bytes: 100,
};

/// What comes out when the bytes go in by chunks of these sizes, the last one repeated.
fn split(limits: Limits, bytes: &[u8], sizes: &[usize]) -> (Vec<Vec<u8>>, Option<String>) {
    let mut decoder = Decoder::new(limits);
    let mut messages = Vec::new();
    let mut sizes = sizes
        .iter()
        .chain(std::iter::repeat(sizes.last().unwrap_or(&1)));
    let mut rest = bytes;
    while !rest.is_empty() {
        let size = (*sizes.next().unwrap_or(&1)).clamp(1, rest.len());
        decoder.feed(&rest[..size]);
        rest = &rest[size..];
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message.to_vec()),
                Ok(None) => break,
                Err(error) => return (messages, Some(error.to_string())),
            }
        }
    }
    (messages, None)
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(Into::into),
        r#"[a-z"\\\[\]{} é]{0,8}"#.prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Into::into),
            proptest::collection::btree_map(r#"[a-z"\\{]{0,4}"#, inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in_however_the_stream_is_cut(
        bodies in vec(json(), 0..5),
        spaces in vec("[ \n\r\t]{0,3}", 6),
        sizes in vec(1..40_usize, 1..20),
    ) {
        let expected: Vec<_> = bodies.into_iter().map(|body| serde_json::json!({ "result": body })
            .to_string().into_bytes()).collect();
        let mut stream = Vec::new();
        for (message, space) in expected.iter().zip(&spaces) {
            stream.extend_from_slice(space.as_bytes());
            stream.extend_from_slice(message);
        }
        stream.extend_from_slice(spaces[5].as_bytes());
        prop_assert_eq!(split(Limits::default(), &stream, &sizes), (expected, None));
    }

    #[test]
    fn how_a_stream_is_cut_changes_nothing(bytes in vec(prop_oneof![Just(b'{'), Just(b'}'),
        Just(b'['), Just(b'"'), Just(b'\\'), any::<u8>()], 0..600), sizes in vec(1..50_usize,
            1..20)) {
        prop_assert_eq!(split(SMALL, &bytes, &sizes), split(SMALL, &bytes, &[bytes.len().max(1)]));
    }

    #[test]
    fn no_bytes_make_a_session_panic_or_hold_more_than_its_limits(chunks in vec(hostile_chunk(),
        0..30)) {
        let mut session = Session::new(SMALL);
        session.request("get_schema", |out| out.extend_from_slice(b"[]"));
        let requested = session.outgoing().len();
        'stream: for chunk in chunks {
            session.feed(&chunk);
            loop {
                match session.poll() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'stream,
                }
            }
            prop_assert!(session.outgoing()
                .len() <= SMALL.unsent_bytes.max(requested) + SMALL.message_bytes);
        }
    }
}

/// Bytes that get past the splitter more often than random ones.
fn hostile_chunk() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..50),
        Just(br#"{"id":"echo","method":"echo","params":[]}"#.to_vec()),
        Just(br#"{"id":0,"result":{}}"#.to_vec()),
        Just(br#"{"id":null,"method":"update2","params":["podwire",{}]}"#.to_vec()),
        json().prop_map(|json| serde_json::json!({ "id": json, "method": "echo" })
            .to_string()
            .into_bytes()),
        json().prop_map(|json| json.to_string().into_bytes()),
    ]
}

#[test]
fn limits_are_exact() {
    let message = |length: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(length - 8)).into_bytes();
    assert_eq!(split(SMALL, &message(200), &[7]).1, None);
    assert_eq!(
        split(SMALL, &message(201), &[7]).1,
        Some("a message is longer than the 200 bytes allowed".to_owned())
    );
    let nested = |depth: usize| {
        format!(
            "{{\"a\":{}{}}}",
            "[".repeat(depth - 1),
            "]".repeat(depth - 1)
        )
        .into_bytes()
    };
    assert_eq!(split(SMALL, &nested(5), &[1]).1, None);
    assert_eq!(
        split(SMALL, &nested(6), &[1]).1,
        Some("a message nests deeper than the 5 levels allowed".to_owned())
    );
    // Between messages there may be as much space as there is.
    let mut spaced = vec![b' '; 1000];
    spaced.extend_from_slice(b"{}");
    assert_eq!(split(SMALL, &spaced, &[7]).0, [b"{}"]);
}

#[test]
fn each_byte_of_a_long_message_in_small_chunks_is_looked_at_once() {
    let message = |length: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(length)).into_bytes();
    let bytes = message(1_000_000);
    let mut decoder = Decoder::new(Limits::default());
    let mut messages = 0;
    for chunk in bytes.chunks(64) {
        decoder.feed(chunk);
        messages += usize::from(decoder.next_message().unwrap().is_some());
    }
    assert_eq!((messages, decoder.looks), (1, bytes.len()));
}

#[test]
fn replies_find_their_request_once() {
    let mut session = Session::new(Limits::default());
    let first = session.request("transact", |out| out.extend_from_slice(b"[1]"));
    let second = session.request("we\"ird", |out| out.extend_from_slice(b"[2]"));
    let expected =
        r#"{"id":0,"method":"transact","params":[1]}{"id":1,"method":"we\"ird","params":[2]}"#;
    assert_eq!(std::str::from_utf8(session.outgoing()), Ok(expected));
    session.feed(br#"{"id":1,"result":[true],"error":null}{"error":{"error":"x"},"id":0,"result":null}{"id":1,"result":1}"#);
    assert!(matches!(session.poll(), Ok(Some(Event::Reply { id,
            outcome: Ok("[true]") })) if id == second));
    assert!(
        matches!(session.poll(), Ok(Some(Event::Reply { id, outcome: Err(r#"{"error":"x"}"#) })) if id == first)
    );
    assert!(matches!(session.poll(), Err(WireError::UnknownReply(id)) if id == "1"));
}

#[test]
fn what_is_sent_in_pieces_is_sent_once() {
    let mut session = Session::new(Limits::default());
    session.request("a", |out| out.extend_from_slice(b"[]"));
    let mut expected = session.outgoing().to_vec();
    let mut sent = Vec::new();
    for step in [1, 3, 20, 2, 100] {
        let count = step.min(session.outgoing().len());
        sent.extend_from_slice(&session.outgoing()[..count]);
        session.sent(count);
        if step == 3 {
            let before = session.outgoing().len();
            session.request("b", |out| out.extend_from_slice(b"[]"));
            expected.extend_from_slice(&session.outgoing()[before..]);
        }
    }
    sent.extend_from_slice(session.outgoing());
    assert_eq!(sent, expected);
}
