use super::*;
use crate::observe::{Subject, Trace};
use std::time::{Duration, Instant};

fn text(metrics: &Metrics) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, metrics.registry()).unwrap();
    text
}

fn value(metrics: &Metrics, series: &str) -> Option<f64> {
    let text = text(metrics);
    let value = text.lines().find_map(|line| line.strip_prefix(series))?;
    value.trim().parse().ok()
}

#[test]
fn an_operation_counts_with_its_length_its_steps_and_its_code() {
    let metrics = Metrics::default();
    let mut trace = Trace::start();
    trace.span(
        "netlink: veth pair",
        Instant::now(),
        Duration::from_micros(240),
    );
    trace.span(
        "ovsdb: transaction",
        Instant::now(),
        Duration::from_micros(260),
    );
    let failed = Outcome::Failed {
        code: 11,
        msg: "later".into(),
    };
    metrics.operation(&trace.end("ADD", Subject::default(), failed));
    let count = |series: &str| value(&metrics, series);
    let duration = "podwire_operation_duration_seconds_count";
    assert_eq!(
        count(&format!("{duration}{{verb=\"ADD\",outcome=\"failed\"}}")),
        Some(1.0)
    );
    assert_eq!(
        count(&format!("{duration}{{verb=\"ADD\",outcome=\"ok\"}}")),
        Some(0.0)
    );
    let failures = "podwire_operation_failures_total{verb=\"ADD\",code=\"11\"}";
    assert_eq!(count(failures), Some(1.0));
    let in_first = |phase: &str| {
        let series = "podwire_phase_duration_seconds_bucket";
        count(&format!(
            "{series}{{le=\"0.00025\",verb=\"ADD\",phase=\"{phase}\"}}"
        ))
    };
    assert_eq!(in_first("netlink: veth pair"), Some(1.0));
    assert_eq!(in_first("ovsdb: transaction"), Some(0.0));
}

#[test]
fn what_has_not_happened_yet_is_there_as_nought() {
    let metrics = Metrics::default();
    for (at, repair) in Repair::ALL.into_iter().enumerate() {
        assert_eq!(repair as usize, at);
        let series = format!("podwire_repairs_total{{what=\"{}\"}}", repair.word());
        assert_eq!(value(&metrics, &series), Some(0.0), "{series}");
    }
    metrics.repaired(Repair::LostPort, 3);
    assert_eq!(
        value(&metrics, "podwire_repairs_total{what=\"lost-port\"}"),
        Some(3.0)
    );
    for (at, spooled) in Spooled::ALL.into_iter().enumerate() {
        assert_eq!(spooled as usize, at);
        metrics.spooled(spooled);
        let series = format!("podwire_spool_dels_total{{outcome=\"{}\"}}", spooled.word());
        assert_eq!(value(&metrics, &series), Some(1.0), "{series}");
    }
    for (at, told) in EventOutcome::ALL.into_iter().enumerate() {
        assert_eq!(told as usize, at);
        metrics.event(told);
        let series = format!("podwire_events_total{{outcome=\"{}\"}}", told.word());
        assert_eq!(value(&metrics, &series), Some(1.0), "{series}");
    }
}
