//! The numbers on the metrics page that are read when it is fetched.

use podwire_cni::spool::Spool;

use super::status::readiness;
use super::{Agent, Handles};
use crate::observe::{Reading, SubnetReading, WatchReading};

/// The answer to `GET /metrics`.
pub(super) async fn metrics_page(agent: &Agent) -> String {
    let node = &*agent.node;
    let (ovsdb, ovsdb_synced) = node.ports.client_stats();
    let spool = Spool::open(&node.config.socket).and_then(|spool| spool.names());
    let reading = Reading {
        started: agent.started,
        ready: readiness(node).await.is_ok(),
        operations: agent.under_way(),
        ovsdb_synced,
        ovsdb,
        ports: node.ports.states(),
        spool: spool.ok().map(|names| names.len()),
        watches: watches(node),
        subnets: subnets(node),
    };
    reading.page(&node.metrics)
}

fn watches(node: &Handles) -> Vec<WatchReading> {
    let watches = node.sources.states().into_iter();
    let watches = watches.map(|state| WatchReading {
        source: state.source.name(),
        pods: state.pods,
        lag: state.lag,
        failing: state.failing.is_some(),
        failures: state.failures,
    });
    watches.collect()
}

fn subnets(node: &Handles) -> Vec<SubnetReading> {
    let usage = node.addresses.usage().into_iter();
    let subnets = usage.map(|usage| SubnetReading {
        subnet: usage.subnet,
        // An IPv6 subnet has more addresses than a float can count exactly.
        capacity: usage.capacity as f64,
        held: usage.used as f64,
    });
    subnets.collect()
}
