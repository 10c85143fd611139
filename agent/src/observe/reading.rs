//! Numbers that others keep, read when the metrics page is fetched, and the page itself.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use podwire_ovs::client::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;

/// The numbers at one moment.
#[derive(Debug)]
pub struct Reading {
    /// When the agent started.
    pub started: SystemTime,
    /// Whether an ADD would be served.
    pub ready: bool,
    /// CNI operations in progress.
    pub operations: usize,
    /// Whether the replica is current.
    pub ovsdb_synced: bool,
    /// What the OVSDB client counted.
    pub ovsdb: Stats,
    /// Ports of ours by their state.
    pub ports: Vec<(&'static str, usize)>,
    /// DELs in the spool; None when it can't be read.
    pub spool: Option<usize>,
    /// The watched sources.
    pub watches: Vec<WatchReading>,
    /// The agent's own subnets.
    pub subnets: Vec<SubnetReading>,
}

/// A watched source of annotations.
#[derive(Debug)]
pub struct WatchReading {
    /// Which.
    pub source: &'static str,
    /// The pods that it knows.
    pub pods: usize,
    /// How old what it knows may be: the time since it was last heard of. None before the first
    /// time.
    pub lag: Option<Duration>,
    /// Whether it fails.
    pub failing: bool,
    /// How often it failed.
    pub failures: u64,
}

/// A subnet of the agent's own.
#[derive(Debug)]
pub struct SubnetReading {
    /// Which.
    pub subnet: IpNet,
    /// How many addresses it has for pods.
    pub capacity: f64,
    /// How many of those are held.
    pub held: f64,
}

impl Reading {
    /// The page in the OpenMetrics text format.
    pub fn page(&self, metrics: &Metrics) -> String {
        let mut page = String::with_capacity(64 << 10);
        let written = encode_registry(&mut page, metrics.registry())
            .and_then(|()| encode_registry(&mut page, &self.registry()))
            .and_then(|()| encode_registry(&mut page, &self.process()))
            .and_then(|()| encode_eof(&mut page));
        // A String takes all that is written, and none of our metrics refuses to be.
        debug_assert!(written.is_ok());
        page
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("podwire");
        gauge(
            &mut registry,
            "ready",
            "Whether an ADD would be served, 1 or 0",
            f64::from(self.ready),
        );
        gauge(
            &mut registry,
            "operations_running",
            "CNI operations in progress",
            self.operations as f64,
        );
        self.add_ovsdb(&mut registry);
        let ports = self.ports.iter();
        gauges(
            &mut registry,
            (
                "ports",
                "Ports of pods, by their state in Open vSwitch",
                None,
            ),
            ports.map(|(state, count)| ([("state", (*state).to_owned())], *count as f64)),
        );
        if let Some(entries) = self.spool {
            gauge(
                &mut registry,
                "spool_entries",
                "DELs waiting in the spool",
                entries as f64,
            );
        }
        self.add_watches(&mut registry);
        self.add_subnets(&mut registry);
        registry
    }

    fn add_ovsdb(&self, registry: &mut Registry) {
        gauge(
            registry,
            "ovsdb_synced",
            "Whether the replica matches Open vSwitch's database, 1 or 0",
            f64::from(self.ovsdb_synced),
        );
        let stats = &self.ovsdb;
        for (name, help, value) in [
            (
                "ovsdb_transactions",
                "Transactions sent to OVSDB",
                stats.transactions,
            ),
            (
                "ovsdb_retries",
                "Transactions sent again because another one of their request failed",
                stats.retries,
            ),
            (
                "ovsdb_failures",
                "Transactions that the server refused",
                stats.failures,
            ),
            (
                "ovsdb_connects",
                "Connections made to OVSDB; all but the first are reconnects",
                stats.connects,
            ),
            (
                "ovsdb_resyncs",
                "Snapshots of the database taken, one for each connection",
                stats.resyncs,
            ),
            (
                "ovsdb_updates",
                "Updates of the database applied to the replica",
                stats.updates,
            ),
        ] {
            registry.register(name, help, ConstCounter::new(value));
        }
        registry.register_collector(Box::new(Batches(self.ovsdb)));
    }

    fn add_watches(&self, registry: &mut Registry) {
        let watches = || self.watches.iter();
        let label = |watch: &WatchReading| [("source", watch.source.to_owned())];
        gauges(
            registry,
            (
                "watch_pods",
                "Pods that a source of annotations knows",
                None,
            ),
            watches().map(|watch| (label(watch), watch.pods as f64)),
        );
        gauges(
            registry,
            (
                "watch_lag",
                "Time since a source of annotations last sent anything",
                Some(Unit::Seconds),
            ),
            watches().filter_map(|watch| Some((label(watch), watch.lag?.as_secs_f64()))),
        );
        gauges(
            registry,
            (
                "watch_failing",
                "Whether a source of annotations fails now, 1 or 0",
                None,
            ),
            watches().map(|watch| (label(watch), f64::from(watch.failing))),
        );
        let failures = Family::<_, prometheus_client::metrics::counter::Counter>::default();
        for watch in watches() {
            failures.get_or_create(&label(watch)).inc_by(watch.failures);
        }
        registry.register(
            "watch_failures",
            "How often a source of annotations failed",
            failures,
        );
    }

    fn add_subnets(&self, registry: &mut Registry) {
        let label = |subnet: &SubnetReading| [("subnet", subnet.subnet.to_string())];
        gauges(
            registry,
            (
                "subnet_addresses",
                "Addresses that a subnet of the agent has for pods",
                None,
            ),
            self.subnets.iter().map(|it| (label(it), it.capacity)),
        );
        gauges(
            registry,
            (
                "subnet_addresses_held",
                "Addresses of the subnet that are in use",
                None,
            ),
            self.subnets.iter().map(|it| (label(it), it.held)),
        );
    }

    /// What every exporter reports of its process, under the usual names.
    fn process(&self) -> Registry {
        let mut registry = Registry::with_prefix("process");
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        registry.register_with_unit(
            "start_time",
            "When the agent started, since 1970",
            Unit::Seconds,
            ConstGauge::new(started.as_secs_f64()),
        );
        if let Some(bytes) = resident_bytes() {
            registry.register_with_unit(
                "resident_memory",
                "Memory that the agent has in RAM",
                Unit::Bytes,
                ConstGauge::new(bytes),
            );
        }
        if let Ok(descriptors) = fs::read_dir("/proc/self/fd") {
            gauge(
                &mut registry,
                "open_fds",
                "File descriptors that the agent has open",
                descriptors.count() as f64,
            );
        }
        registry
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    registry.register(name, help, ConstGauge::new(value));
}

/// A gauge with labels, one series for each value.
fn gauges(
    registry: &mut Registry,
    (name, help, unit): (&str, &str, Option<Unit>),
    values: impl Iterator<Item = ([(&'static str, String); 1], f64)>,
) {
    let family = Family::<_, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    match unit {
        None => registry.register(name, help, family),
        Some(unit) => registry.register_with_unit(name, help, unit, family),
    }
}

/// VmRSS of proc_pid_status(5), which is in kB.
fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0)
}

/// How many transactions went in one request: the OVSDB client counts them in four classes.
#[derive(Debug)]
struct Batches(Stats);

impl Collector for Batches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = [1.0, 4.0, 16.0, f64::INFINITY];
        let [one, few, some, many] = self.0.request_sizes;
        let buckets: Vec<(f64, u64)> = bounds.into_iter().zip([one, few, some, many]).collect();
        let sent = self.0.transactions + self.0.retries;
        encoder
            .encode_descriptor(
                "ovsdb_batch_transactions",
                "Transactions in one request (group commit).",
                None,
                MetricType::Histogram,
            )?
            .encode_histogram::<[(&str, &str); 0]>(sent as f64, self.0.requests, &buckets, None)
    }
}

#[cfg(test)]
mod tests;
