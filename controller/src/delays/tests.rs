use super::*;

const ROW: Uuid = Uuid::from_bytes([1; 16]);

fn ms(start: Instant, millis: u64) -> Instant {
    start + Duration::from_millis(millis)
}

fn seen(claimed: bool) -> Option<UnboundPort<'static>> {
    Some(UnboundPort {
        port: "default_web",
        claimed,
    })
}

#[test]
fn a_pods_way_is_split_at_the_southbound_row_and_at_the_claim() {
    let (delays, start) = (Delays::default(), Instant::now());
    delays.committed("default_web", start);
    assert_eq!(delays.report().waiting, 1);
    delays.observe(ROW, seen(false), ms(start, 900), |_| true);
    delays.observe(ROW, seen(true), ms(start, 1000), |_| true);
    delays.observe(ROW, seen(true), ms(start, 1010), |_| true);
    delays.observe(ROW, None, ms(start, 1012), |_| true);
    let last = |ms| {
        Some(Last {
            pods: 1,
            p50_ms: ms,
            p99_ms: ms,
        })
    };
    assert_eq!(
        delays.report(),
        DelayReport {
            northd: last(900),
            nodes: last(12),
            ..DelayReport::default()
        }
    );
}

#[test]
fn a_port_that_is_deleted_or_unknown_says_nothing() {
    let (delays, start) = (Delays::default(), Instant::now());
    // That of an earlier term, or a router's.
    delays.observe(ROW, seen(true), start, |_| true);
    delays.observe(ROW, None, start, |_| true);
    delays.committed("default_web", start);
    delays.observe(ROW, seen(true), start, |_| true);
    delays.observe(ROW, None, start, |_| false);
    assert_eq!(delays.report().nodes, None);
    delays.committed("default_web", start);
    delays.retain(|port| port != "default_web");
    assert_eq!(delays.report().waiting, 0);
}

#[test]
fn percentiles_are_of_the_last_pods() {
    let mut series = Series::default();
    for delay in 0..1000 {
        series.record(Duration::from_millis(delay));
    }
    let last = Last {
        pods: 100,
        p50_ms: 949,
        p99_ms: 998,
    };
    assert_eq!(series.last(), Some(last));
}

#[test]
fn the_controllers_own_part_is_counted_by_kind() {
    let (delays, start) = (Delays::default(), Instant::now());
    delays.programmed(vec![("pod", start), ("policy", ms(start, 3))], ms(start, 7));
    let mut text = String::new();
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register("it", "", delays.programming());
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "it_bucket{le=\"0.005\",kind=\"policy\"} 1\n",
        "it_bucket{le=\"0.005\",kind=\"pod\"} 0\n",
        "it_bucket{le=\"0.01\",kind=\"pod\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}
