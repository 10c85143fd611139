//! Operations as OTLP's JSON has spans: identifiers in hexadecimal, times as nanoseconds in text.

use std::hash::{BuildHasher as _, RandomState};

use serde_json::{Value, json};

use crate::observe::trace::{Operation, Outcome};

/// SPAN_KIND_SERVER: the operation is somebody's request.
const SERVER: u8 = 2;
/// SPAN_KIND_INTERNAL: a step of it.
const INTERNAL: u8 = 1;
/// STATUS_CODE_ERROR.
const ERROR: u8 = 2;

/// An ExportTraceServiceRequest.
pub(super) fn document(operations: &[Operation]) -> Value {
    let spans: Vec<Value> = operations.iter().flat_map(of_operation).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", "podwire"),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ] },
        "scopeSpans": [{ "scope": { "name": "podwire" }, "spans": spans }],
    }] })
}

/// The operation's span, and one below it for each of its steps.
fn of_operation(operation: &Operation) -> Vec<Value> {
    let parent = operation.traceparent.as_ref();
    let trace = parent.map_or_else(
        || format!("{}{}", random(), random()),
        |parent| parent.trace_id().to_owned(),
    );
    let own = random();
    let started = operation.started_unix_micros as f64;
    let span = |id: &str, name: &str, kind: u8, from: f64, took: f64| {
        json!({
            "traceId": trace, "spanId": id, "name": name, "kind": kind,
            "startTimeUnixNano": nanoseconds(started, from),
            "endTimeUnixNano": nanoseconds(started, from + took),
        })
    };
    let name = format!("cni {}", operation.verb);
    let mut whole = span(&own, &name, SERVER, 0.0, operation.duration_micros);
    if let Some(parent) = parent {
        whole["parentSpanId"] = parent.parent_id().into();
    }
    whole["attributes"] = attributes(operation).into();
    if let Outcome::Failed { msg, .. } = &operation.outcome {
        whole["status"] = json!({ "code": ERROR, "message": msg });
    }
    let steps = operation.phases.iter().map(|phase| {
        let (from, took) = (phase.start_micros, phase.duration_micros);
        let mut step = span(&random(), phase.name, INTERNAL, from, took);
        step["parentSpanId"] = own.as_str().into();
        step
    });
    std::iter::once(whole).chain(steps).collect()
}

fn attributes(operation: &Operation) -> Vec<Value> {
    let mut attributes = vec![text("cni.verb", operation.verb)];
    for (name, value) in [
        ("container.id", &operation.container),
        ("cni.ifname", &operation.ifname),
    ] {
        if !value.is_empty() {
            attributes.push(text(name, value));
        }
    }
    match operation.pod.as_deref().map(|pod| pod.split_once('/')) {
        Some(Some((namespace, name))) => {
            attributes.push(text("k8s.namespace.name", namespace));
            attributes.push(text("k8s.pod.name", name));
        }
        Some(None) => {
            attributes.extend(operation.pod.as_deref().map(|it| text("k8s.pod.name", it)))
        }
        None => {}
    }
    let code = operation.outcome.code().to_string();
    attributes.push(json!({ "key": "cni.code", "value": { "intValue": code } }));
    attributes
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// `started` and `micros` in microseconds; a 64-bit number is text in protobuf's JSON.
fn nanoseconds(started: f64, micros: f64) -> String {
    // A double holds today's microseconds exactly, and the sum to a quarter of one.
    (((started + micros) * 1e3) as u64).to_string()
}

/// Sixteen digits, not all of them zero. They need be distinct and no secret: the standard
/// library's own randomness will do.
fn random() -> String {
    format!("{:016x}", RandomState::new().hash_one(()).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Subject, Trace, TraceParent};
    use std::time::{Duration, Instant};

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn operation(parent: Option<&str>) -> Operation {
        let mut trace = Trace::start();
        trace.span("make pair", Instant::now(), Duration::from_micros(250));
        let subject = Subject {
            container: "0a1b".into(),
            pod: Some("shop/web".into()),
            traceparent: parent.and_then(|text| TraceParent::parse(text).ok()),
            ..Subject::default()
        };
        let failed = Outcome::Failed {
            code: 11,
            msg: "later".into(),
        };
        trace.end("ADD", subject, failed)
    }

    #[test]
    fn an_operation_is_a_span_of_its_callers_trace_and_each_step_one_below_it() {
        let document = document(&[operation(Some(PARENT))]);
        let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let (whole, step) = (&spans[0], &spans[1]);
        assert_eq!(whole["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(whole["parentSpanId"], "b7ad6b7169203331");
        assert_eq!(whole["name"], "cni ADD");
        assert_eq!(whole["status"], json!({ "code": 2, "message": "later" }));
        assert!(
            whole["attributes"]
                .as_array()
                .unwrap()
                .contains(&text("k8s.pod.name", "web"))
        );
        assert_eq!(step["parentSpanId"], whole["spanId"]);
        assert_eq!(step["traceId"], whole["traceId"]);
        let time = |key: &str| step[key].as_str().unwrap().parse::<u64>().unwrap();
        let took = time("endTimeUnixNano") - time("startTimeUnixNano");
        assert!((249_000..=251_000).contains(&took), "{took}");
    }

    #[test]
    fn without_a_caller_each_operation_is_a_trace_of_its_own() {
        let document = document(&[operation(None), operation(None)]);
        let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let trace = |at: usize| spans[at]["traceId"].as_str().unwrap().to_owned();
        assert_eq!((trace(0).len(), trace(0)), (32, trace(1)));
        assert_ne!(trace(0), trace(2));
        assert!(spans[0].get("parentSpanId").is_none());
    }
}
