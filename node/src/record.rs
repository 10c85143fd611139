//! What `podwire node run` has restored: for `show`, and as metrics.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::StatusCode;
use k8s_openapi::jiff::Timestamp;
use podwire_daemon::http::{self, Response};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::files;

/// The number of entries kept.
const MOST: usize = 100;
const RESTORED: &str = "restored";
pub(crate) const STATE: &str = "state";

/// One restored item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// When: RFC 3339, in UTC.
    pub at: String,
    /// The item.
    pub item: String,
    /// Its state before.
    pub was: String,
    /// Who may have changed it.
    pub by: String,
}

/// The state of a run, as it reports it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunState {
    pub(crate) well: bool,
    pub(crate) status: String,
}

/// The restored items, on disk beside the journal.
#[derive(Debug)]
pub(crate) struct Record {
    directory: PathBuf,
    last: VecDeque<Restored>,
    metrics: Arc<Metrics>,
    /// Warnings for which no Event was posted yet.
    pub(crate) warnings: Vec<Warning>,
}

/// What is to become an Event.
#[derive(Debug)]
pub(crate) struct Warning {
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// The numbers of the metrics page.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    restored: Family<KindLabel, Counter>,
    pauses: Counter,
    conflicts: Gauge,
    well: Gauge,
    refused: Gauge,
    unreadable: Gauge,
    nic_moved: Gauge,
    nic_unconfirmed: Gauge,
}

impl Record {
    /// Continues with an earlier run's record.
    pub(crate) fn open(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            last: read(directory).into(),
            metrics: Arc::new(Metrics::default()),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    pub(crate) fn restored(&mut self, kind: &'static str, item: &str, was: &str, by: &str) {
        self.metrics
            .restored
            .get_or_create(&KindLabel { kind })
            .inc();
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back(Restored {
            at: format!("{:.3}", Timestamp::now()),
            item: item.to_owned(),
            was: was.to_owned(),
            by: by.to_owned(),
        });
        // If it can't be recorded, the item is restored nevertheless.
        self.write(RESTORED, &self.last);
    }

    pub(crate) fn restores_paused(&mut self, text: String) {
        self.metrics.pauses.inc();
        self.warn("RestoredTooOften", text);
    }

    /// Records the number of conflicts, and the text of new ones.
    pub(crate) fn conflicts(&mut self, number: usize, new: Option<String>) {
        let number = number.try_into().unwrap_or(i64::MAX);
        self.metrics.conflicts.set(number);
        if let Some(text) = new {
            self.warn("NetworkConflict", text);
        }
    }

    fn warn(&mut self, reason: &'static str, text: String) {
        // There may be no API server for a long time.
        if self.warnings.len() < MOST {
            self.warnings.push(Warning { reason, text });
        }
    }

    pub(crate) fn well(&self, is_well: bool) {
        self.metrics.well.set(is_well.into());
    }

    /// Whether a NIC is in its bridge, and whether that is to be confirmed.
    pub(crate) fn nic(&self, moved: bool, unconfirmed: bool) {
        self.metrics.nic_moved.set(moved.into());
        self.metrics.nic_unconfirmed.set(unconfirmed.into());
    }

    pub(crate) fn refused(&self, services: usize) {
        let services = i64::try_from(services).unwrap_or(i64::MAX);
        self.metrics.refused.set(services);
    }

    /// Whether somebody has removed the recorded state.
    pub(crate) fn is_lost(&self) -> bool {
        !self.directory.join(STATE).exists()
    }

    pub(crate) fn unreadable(&self, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.metrics.unreadable.set(objects);
    }

    /// Records the state of the run.
    pub(crate) fn state(&self, well: bool, status: &str) {
        let status = status.to_owned();
        self.write(STATE, &RunState { well, status });
    }

    fn write(&self, name: &str, content: &impl Serialize) {
        let file = self.directory.join(name);
        let written = serde_json::to_vec(content)
            .map_err(io::Error::from)
            .and_then(|json| files::replace(&file, &json));
        if let Err(error) = written {
            warn!(%error, file = %file.display(), "the role's record can't be written");
        }
    }
}

/// The record of a run, oldest first; empty without one.
pub(crate) fn read(directory: &Path) -> Vec<Restored> {
    let text = fs::read(directory.join(RESTORED)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Removes the record.
pub(crate) fn forget(directory: &Path) {
    for name in [RESTORED, STATE] {
        let _ = fs::remove_file(directory.join(name));
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let restored = Family::<KindLabel, Counter>::default();
        let help = "Items that were removed or changed, and were restored, by kind";
        // Each of these two has its former name for one more release.
        for name in ["podwire_node_restored", "podwire_node_put_back"] {
            registry.register(name, help, restored.clone());
        }
        let pauses = Counter::default();
        let help = "Times that an item was not restored for a while, because it had been too often";
        for name in ["podwire_node_restore_pauses", "podwire_node_fights"] {
            registry.register(name, help, pauses.clone());
        }
        let mut gauge = |name, help: &str| {
            let gauge = Gauge::default();
            registry.register(format!("podwire_node_{name}"), help, gauge.clone());
            gauge
        };
        Self {
            restored,
            pauses,
            conflicts: gauge(
                "conflicts",
                "Settings that would take from this machine what it needs for itself",
            ),
            well: gauge("well", "Whether every item is in sync with the plan"),
            refused: gauge(
                "services_refused",
                "Services that are left out because nft refuses them",
            ),
            unreadable: gauge(
                "unreadable_objects",
                "Objects of the API that can't be read, and are left as they were",
            ),
            nic_moved: gauge("nic_moved", "Whether the NIC is in the gateway bridge"),
            nic_unconfirmed: gauge(
                "nic_unconfirmed",
                "Whether it is moved back unless somebody confirms its move",
            ),
            registry,
        }
    }
}

impl Metrics {
    /// The page at this path: the metrics, in the OpenMetrics text format, or whether every item is
    /// as planned.
    pub(crate) fn page(&self, path: &str) -> Response {
        match path {
            "/metrics" => {
                let mut page = String::new();
                // Writing to a string can't fail.
                let _ = text::encode(&mut page, &self.registry);
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                http::typed(StatusCode::OK, kind, page)
            }
            "/healthz" if self.well.get() == 1 => http::text(StatusCode::OK, "ok\n"),
            "/healthz" => http::text(StatusCode::SERVICE_UNAVAILABLE, "see podwire node show\n"),
            _ => http::text(StatusCode::NOT_FOUND, "see /metrics and /healthz\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_and_alerts_ask_for_numbers_that_are_on_the_page() {
        let metrics = Metrics::default();
        metrics
            .restored
            .get_or_create(&KindLabel { kind: "route" })
            .inc();
        let mut page = String::new();
        text::encode(&mut page, &metrics.registry).unwrap();
        let dashboard = include_str!("../../deploy/grafana/podwire-node.json");
        let rules = include_str!("../../deploy/prometheus/podwire.rules.yml");
        let is_part = |it: char| it.is_ascii_lowercase() || it == '_';
        for (file, least) in [(dashboard, 8), (rules, 3)] {
            let asked = file.split("podwire_node_").skip(1);
            let names = asked.map(|rest| rest.split(|it| !is_part(it)).next().unwrap());
            let names: Vec<&str> = names.collect();
            assert!(names.len() >= least, "{names:?}");
            for name in names {
                let kind = match name.strip_suffix("_total") {
                    Some(counter) => format!("# TYPE podwire_node_{counter} counter"),
                    None => format!("# TYPE podwire_node_{name} gauge"),
                };
                assert!(page.contains(&kind), "no {kind}:\n{page}");
            }
        }
    }
}
