//! GET /metrics, in the OpenMetrics text format; it contains no object's name.

use hyper::StatusCode;
use podwire_daemon::http::{self, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::delays::Delays;
use crate::progress::Progress;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page at this path. Whoever lacks something is alive, but not ready.
pub(crate) fn respond(
    path: &str,
    progress: &Progress,
    delays: &Delays,
    missing: Option<String>,
) -> Response {
    match path {
        "/metrics" => http::typed(StatusCode::OK, OPENMETRICS, page(progress, delays)),
        "/healthz" => match missing {
            None => http::text(StatusCode::OK, "ok\n"),
            Some(missing) => http::text(StatusCode::OK, format!("ok, but not ready: {missing}\n")),
        },
        "/readyz" => match missing {
            None => http::text(StatusCode::OK, "ok\n"),
            Some(missing) => http::text(StatusCode::SERVICE_UNAVAILABLE, missing + "\n"),
        },
        _ => http::text(
            StatusCode::NOT_FOUND,
            "only /metrics, /healthz and /readyz are served here\n",
        ),
    }
}

/// The page: what the leader has done, and the number of objects.
pub(crate) fn page(progress: &Progress, delays: &Delays) -> String {
    let mut registry = Registry::with_prefix("podwire_controller");
    let gauges = [
        (
            "leading",
            "1 while this controller leads",
            u64::from(progress.leads),
        ),
        (
            "ready",
            "1 once everything was compared with the database",
            u64::from(progress.is_ready),
        ),
        ("nodes", "Nodes that are known", progress.nodes),
        ("pods", "Pods on the pod network", progress.pods),
        ("services", "Services with cluster IPs", progress.services),
        (
            "problems",
            "Objects with a problem; each has an Event",
            progress.problems,
        ),
        (
            "unreadable_objects",
            "Objects that can't be read and are left as they were; each has an Event",
            progress.unreadable,
        ),
        (
            "retries",
            "Objects that are tried again in a moment",
            progress.retries,
        ),
    ];
    let report = delays.report();
    let waiting = (
        "northd_waiting_pods",
        "Pods whose rows ovn-northd has not brought into the southbound database",
        report.waiting as u64,
    );
    registry.register(
        "northd_longest_wait_seconds",
        "How long the first of them has waited",
        ConstGauge::new(report.longest_ms as f64 / 1e3),
    );
    for (name, help, value) in gauges.into_iter().chain([waiting]) {
        registry.register(
            name,
            help,
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)),
        );
    }
    let counters = [
        (
            "passes",
            "Passes that had something to compare",
            progress.passes,
        ),
        (
            "compared_objects",
            "Objects compared with the database",
            progress.keys,
        ),
        (
            "operations",
            "Operations committed in the northbound database",
            progress.operations,
        ),
        ("writes", "Writes to the API server", progress.writes),
        (
            "write_failures",
            "Writes to the API server that failed",
            progress.write_failures,
        ),
        ("changes", "Changes of objects received", progress.changes),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    registry.register_with_unit(
        "programming_duration",
        "From the event of a changed object until the northbound database has what it causes",
        Unit::Seconds,
        delays.programming(),
    );
    let [northd, nodes] = delays.series();
    let histograms = [
        (
            "northd_delay",
            "From the commit of a new pod's row until the southbound database has its port",
            northd,
        ),
        (
            "node_delay",
            "From a node's claim of a new pod's port until its flows are installed",
            nodes,
        ),
    ];
    for (name, help, histogram) in histograms {
        registry.register_with_unit(name, help, Unit::Seconds, histogram);
    }
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_and_alerts_ask_for_numbers_that_are_on_the_page() {
        let (delays, now) = (Delays::default(), tokio::time::Instant::now());
        delays.programmed(vec![("pod", now)], now);
        let page = page(&Progress::default(), &delays);
        let dashboard = include_str!("../../deploy/grafana/podwire-controller.json");
        let rules = include_str!("../../deploy/prometheus/podwire.rules.yml");
        let is_part = |it: char| it.is_ascii_lowercase() || it == '_';
        let mut count = 0;
        let files = [dashboard, rules].into_iter();
        for rest in files.flat_map(|file| file.split("podwire_controller_").skip(1)) {
            let name: String = rest.chars().take_while(|it| is_part(*it)).collect();
            let is_there = |after| page.contains(&format!("\npodwire_controller_{name}{after}"));
            assert!(is_there(" ") || is_there("{"), "{name}\n{page}");
            count += 1;
        }
        assert!(count > 10);
    }
}
