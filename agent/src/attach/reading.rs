//! The numbers of the metrics page that are read when it is fetched.

use std::sync::atomic::Ordering;

use podwire_cni::spool::Spool;

use super::Agent;
use crate::observe::{Reading, SubnetReading, WatchReading};

impl Agent {
    /// What `GET /metrics` answers.
    pub async fn metrics_page(&self) -> String {
        let (ovsdb, ovsdb_synced) = self.ports.client_stats();
        let reading = Reading {
            started: self.started,
            ready: self.readiness().await.is_ok(),
            operations: self.operations.load(Ordering::Relaxed),
            ovsdb_synced,
            ovsdb,
            ports: self.ports.states(),
            spool: self.spool_entries(),
            watches: self.watches(),
            subnets: self.subnets(),
        };
        reading.page(&self.metrics)
    }

    fn spool_entries(&self) -> Option<usize> {
        let names = Spool::open(&self.config.socket).and_then(|spool| spool.names());
        names.ok().map(|names| names.len())
    }

    fn watches(&self) -> Vec<WatchReading> {
        let watches = self.sources.states().into_iter();
        let watches = watches.map(|state| WatchReading {
            source: state.source.name(),
            pods: state.pods,
            lag: state.lag,
            failing: state.failing.is_some(),
            failures: state.failures,
        });
        watches.collect()
    }

    fn subnets(&self) -> Vec<SubnetReading> {
        let usage = self.addresses.usage().into_iter();
        let subnets = usage.map(|usage| SubnetReading {
            subnet: usage.subnet,
            // An IPv6 subnet has more than a float counts one by one.
            capacity: usage.capacity as f64,
            held: usage.used as f64,
        });
        subnets.collect()
    }
}
