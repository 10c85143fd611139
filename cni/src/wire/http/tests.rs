use proptest::prelude::*;

use super::*;

#[test]
fn a_post_announces_version_and_length() {
    let text = post_head(7);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "");
    let mut lines = head.split("\r\n");
    assert_eq!(lines.next(), Some("POST /v1/cni HTTP/1.1"));
    let headers: Vec<_> = lines.collect();
    for header in ["host: podwire", "podwire-wire: 1", "content-length: 7"] {
        assert!(headers.contains(&header), "{header} in {headers:?}");
    }
}

#[test]
fn a_reply_is_whole_when_its_announced_bytes_are_there() {
    let reply = b"HTTP/1.1 200 OK\r\nContent-Length:  2 \r\nDate: x: y\r\n\r\n{}";
    let found = head(reply).unwrap().unwrap();
    assert_eq!(
        (found.status, found.body_len, &reply[found.body_at..]),
        (200, 2, &b"{}"[..])
    );
    assert_eq!(found.is_whole(reply), Ok(true));
    assert_eq!(found.is_whole(&reply[..reply.len() - 1]), Ok(false));
    let longer = [reply, &b"x"[..]].concat();
    assert_eq!(
        found.is_whole(&longer),
        Err(HttpError::Excess {
            announced: 2,
            came: 3
        })
    );
}

#[test]
fn a_head_that_has_not_ended_is_waited_for() {
    let reply = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    for end in 0..reply.len() {
        assert_eq!(head(&reply[..end]), Ok(None), "after {end} bytes");
    }
    assert_eq!(
        head(reply),
        Ok(Some(Head {
            status: 503,
            body_at: reply.len(),
            body_len: 0,
            stderr_len: 0
        }))
    );
}

#[test]
fn what_the_agent_never_sends_is_refused_by_name() {
    let cases = [
        ("HTTP/2 200 OK\r\n", "not an HTTP/1.1 status line"),
        ("HTTP/1.1 100 Continue\r\n", "not an HTTP/1.1 status line"),
        ("HTTP/1.1 0200 OK\r\n", "not an HTTP/1.1 status line"),
        ("HTTP/1.1 20\r\n", "not an HTTP/1.1 status line"),
        ("HTTP/1.1 +20 OK\r\n", "not an HTTP/1.1 status line"),
        ("HTTP/1.12200 OK\r\n", "not an HTTP/1.1 status line"),
        (
            "SSH-2.0-x\r\n",
            "\"SSH-2.0-x\", not an HTTP/1.1 status line",
        ),
        (
            "HTTP/1.1 200 OK\r\nnonsense\r\n",
            "\"nonsense\", which is not a header",
        ),
        ("HTTP/1.1 200 OK\r\n: x\r\n", "which is not a header"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
            "transfer coding \"chunked\"",
        ),
        ("HTTP/1.1 200 OK\r\n", "no Content-Length"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n",
            "Content-Length is \"\"",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n",
            "Content-Length is \"-1\"",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n",
            "Content-Length is \"+1\"",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n",
            "Content-Length is",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n",
            "given twice",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\npodwire-stderr: 3\r\n",
            "podwire-stderr is 3, of a body of 2 bytes",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\npodwire-stderr: x\r\n",
            "podwire-stderr is \"x\"",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2097153\r\n",
            "announces 2097153 bytes",
        ),
    ];
    for (text, expected) in cases {
        let error = head(format!("{text}\r\n").as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_head_without_end_is_refused_at_the_limit() {
    let endless = [&b"HTTP/1.1 200 OK\r\nx: "[..], &vec![b'a'; MAX_HEAD]].concat();
    assert_eq!(head(&endless[..MAX_HEAD - 1]), Ok(None));
    assert_eq!(head(&endless), Err(HttpError::HeadTooLong));
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        length in prop_oneof![0..10u64, any::<u64>()],
        text in "([a-zA-Z-]{1,15}: ?[ -~]{0,9}\r\n){0,2}\r\n",
    ) {
        let _ = head(&bytes);
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{text}");
        if let Ok(Some(found)) = head(text.as_bytes()) {
            prop_assert!(found.body_at <= text.len() && found.body_len <= MAX_REPLY);
        }
    }

    #[test]
    fn a_body_of_any_length_comes_out_as_it_went_in(body in proptest::collection::vec(any::<u8>(),
        0..300)) {
        let reply = [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len())
            .as_bytes(), &body].concat();
        let found = head(&reply).unwrap().unwrap();
        prop_assert_eq!(found.is_whole(&reply), Ok(true));
        prop_assert_eq!(&reply[found.body_at..], &body[..]);
    }
}
