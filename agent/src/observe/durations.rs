//! Histograms of how long things take.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds in seconds. The fastest whole ADD takes 2 ms, and its steps less; the slowest waits
/// end with `--add-timeout`, 30 s.
const BUCKETS: [f64; 16] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];

/// Labels with their values.
pub(super) type Labels<const N: usize> = [(&'static str, &'static str); N];
/// A histogram for each combination of labels.
pub(super) type Durations<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

pub(super) fn durations<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> Durations<N>
where
    Labels<N>: EncodeLabelSet,
{
    let durations = Durations::new_with_constructor(|| Histogram::new(BUCKETS));
    registry.register_with_unit(name, help, Unit::Seconds, durations.clone());
    durations
}
