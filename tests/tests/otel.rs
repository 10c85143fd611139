//! Operations exported as OpenTelemetry spans, by a build with the feature `otel`: the one that has fault points too.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use podwire_tests::{AgentOptions, TestNode, conf};
use serde_json::Value;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The build's fault points are there, and none of them has this name.
const NO_FAULT: &str = "none:kill";

/// A collector of OpenTelemetry's: takes one request, and answers it.
fn take(listener: &TcpListener) -> (String, Value) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(&stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    answer(&stream);
    (head, serde_json::from_slice(&body).unwrap())
}

fn answer(mut stream: &TcpStream) {
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(answer).unwrap();
}

#[test]
fn an_add_is_a_span_of_the_runtimes_trace_with_its_steps_below_it() {
    let node = TestNode::with_ovs();
    let listener = node
        .place()
        .run(|| TcpListener::bind("127.0.0.1:4318"))
        .unwrap();
    let listener = listener;
    let options = AgentOptions {
        fault: Some(NO_FAULT.into()),
        environment: vec![(
            "OTEL_EXPORTER_OTLP_ENDPOINT".into(),
            "http://127.0.0.1:4318".into(),
        )],
        ..AgentOptions::default()
    };
    let agent = node.start_agent(&options);
    let pod = node.pod("web");
    let call = |verb, parent: &str| {
        let changes = [("TRACEPARENT", Some(parent))];
        let text = conf().to_string();
        let run = pod.exec_with(verb, text.as_bytes(), &changes);
        run.success();
    };
    // Its caller does not record this one, and so nobody does.
    call("STATUS", &PARENT.replace("-01", "-00"));
    call("ADD", PARENT);
    let (head, document) = take(&listener);
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/json\r\n"));
    let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
    let whole = &spans[0];
    assert_eq!(whole["name"], "cni ADD");
    assert_eq!(whole["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(whole["parentSpanId"], "b7ad6b7169203331");
    let steps = &spans.as_array().unwrap()[1..];
    assert!(
        steps
            .iter()
            .any(|step| step["name"] == "ovsdb: transaction")
    );
    assert!(
        steps
            .iter()
            .all(|step| step["parentSpanId"] == whole["spanId"])
    );
    // Without a collector the node goes on.
    drop(listener);
    call("DEL", PARENT);
    agent.await_log("the collector takes no spans");
    agent.stop();
    node.leftovers().assert_none();
}
