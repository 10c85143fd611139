use super::*;

fn reading() -> Reading {
    Reading {
        started: UNIX_EPOCH + Duration::from_secs(7),
        ready: true,
        operations: 2,
        ovsdb_synced: true,
        ovsdb: Stats {
            transactions: 9,
            requests: 3,
            request_sizes: [1, 1, 1, 0],
            retries: 1,
            ..Stats::default()
        },
        ports: vec![("up", 5), ("error", 0)],
        spool: Some(1),
        watches: vec![WatchReading {
            source: "kube",
            pods: 4,
            lag: Some(Duration::from_millis(1500)),
            failing: false,
            failures: 6,
        }],
        subnets: vec![SubnetReading {
            subnet: "fd00::/64".parse().unwrap(),
            capacity: 1e19,
            held: 3.0,
        }],
    }
}

#[test]
fn the_page_tells_what_was_read() {
    let page = reading().page(&Metrics::default());
    for line in [
        "podwire_ready 1.0",
        "podwire_operations_running 2.0",
        "podwire_ovsdb_transactions_total 9",
        "podwire_ovsdb_batch_transactions_sum 10.0",
        "podwire_ovsdb_batch_transactions_count 3",
        "podwire_ovsdb_batch_transactions_bucket{le=\"4.0\"} 2",
        "podwire_ports{state=\"up\"} 5.0",
        "podwire_ports{state=\"error\"} 0.0",
        "podwire_spool_entries 1.0",
        "podwire_watch_lag_seconds{source=\"kube\"} 1.5",
        "podwire_watch_failures_total{source=\"kube\"} 6",
        "podwire_subnet_addresses_held{subnet=\"fd00::/64\"} 3.0",
        "process_start_time_seconds 7.0",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn each_metric_is_described_once_and_each_series_is_there_once() {
    let page = reading().page(&Metrics::default());
    for prefix in ["# TYPE ", "podwire_", "process_"] {
        let mut seen = std::collections::HashSet::new();
        for line in page.lines().filter(|line| line.starts_with(prefix)) {
            let series = line.rsplit_once(' ').unwrap().0;
            assert!(seen.insert(series), "{series} twice");
        }
        assert!(!seen.is_empty());
    }
}
