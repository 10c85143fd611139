//! One size, one kind of rows.

use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::{Failure, Step as _};
use serde_json::{Value, json};

use super::northd::{Northd, Recomputes};
use super::policies;
use super::rows::{Rows, Subject, add_chassis};
use super::southbound::{Southbound, bound, endpoint, gone};
use super::{Options, monitor, table};
use crate::cluster::Cluster;

const PODS_OF_A_NODE: u32 = 100;
const PODS_OF_A_SERVICE: u32 = 10;
/// The logical flows, with their stages.
const FLOWS: [&str; 3] = [
    "transact",
    "unix:/run/ovn/ovnsb_db.sock",
    r#"["OVN_Southbound",{"op":"select","table":"Logical_Flow","where":[],"columns":["external_ids"]}]"#,
];
/// How fast the pods of a burst come.
const PER_SECOND: u32 = 100;

/// What changes of one kind cost.
pub(crate) struct Changes {
    pub(crate) kind: &'static str,
    /// ovn-northd's processor time for each, sorted; for changes that come together, the same for
    /// all.
    pub(crate) processor: Vec<Duration>,
    /// From the object's event until the southbound database has it, sorted.
    pub(crate) wall: Vec<Duration>,
    /// How often ovn-northd computed everything anew, for all of them.
    pub(crate) northd: u64,
    pub(crate) lflow: u64,
}

pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) changes: Vec<Changes>,
    pub(crate) figures: Vec<Figure>,
}

impl Measured {
    pub(crate) fn take(subject: &Subject, pods: u32, options: &Options) -> Result<Self, Failure> {
        let nodes = pods.div_ceil(PODS_OF_A_NODE);
        let services = pods.div_ceil(PODS_OF_A_SERVICE);
        let name = subject.name();
        let mut cluster = Cluster::new(nodes, pods / nodes, services)?;
        cluster.blocks = options.blocks;
        let say = |what: &str| eprintln!("{name}, {}: {what}", cluster.size());
        let policies = options.policies;
        if let Some(count) = policies {
            policies::apply(&cluster, count);
        }
        // The first one's is ovn-controller's own.
        add_chassis(&cluster, u32::from(policies.is_some()))?;
        say("northbound rows");
        let mut rows = subject.write(&cluster)?;
        if let Some(count) = policies {
            rows.add_policies(&cluster, count)?;
        }
        say("ovn-northd's first run");
        let mut figures = Vec::new();
        let southbound = Southbound::follow(&cluster.central)?;
        let began = Instant::now();
        let northd = Northd::start(&cluster.central, subject.preload());
        southbound.await_seen(&bound(&Rows::port(cluster.pods - 1)))?;
        let took = seconds(northd.settle()? - began);
        figures.push(("ovn-northd's first run, wall", took, "s"));
        let used = seconds(northd.processor_time()?);
        figures.push(("ovn-northd's first run, processor", used, "s"));

        let mut bench = Bench {
            southbound,
            cluster: &cluster,
            northd,
            rows: &mut rows,
        };
        if let Some(policies) = policies {
            let changes = bench.policies(policies, options.changes, &mut figures)?;
            let version = bench.northd.version();
            return Ok(Self {
                name,
                version,
                changes,
                figures,
            });
        }
        let count = options.changes;
        let first = cluster.pods;
        if options.of_nodes {
            say("an ovn-controller");
            let preload = subject.preload();
            figures.extend(monitor::measure(&mut bench, first, options, preload)?);
            figures.push(("southbound database", bench.size()?, "MB"));
            return Ok(Self {
                name,
                version: bench.northd.version(),
                changes: Vec::new(),
                figures,
            });
        }
        bench.northd.reset_stopwatches();
        let mut changes = Vec::new();
        say("pods, one at a time");
        changes.push(bench.one_by_one("pod created", count, |bench, turn| {
            bench.rows.add_pod(bench.cluster, first + turn)?;
            Ok(bound(&Rows::port(first + turn)))
        })?);
        if options.with_stopwatches {
            eprintln!("{}", bench.northd.stopwatches());
        }
        changes.push(bench.one_by_one("pod deleted", count, |bench, turn| {
            bench.rows.remove_pod(bench.cluster, first + turn)?;
            Ok(gone(&Rows::port(first + turn)))
        })?);
        say("endpoints, one at a time");
        changes.push(bench.one_by_one("endpoint replaced", count, |bench, turn| {
            let end = bench.rows.replace_end(bench.cluster, turn)?;
            Ok(endpoint(&end))
        })?);
        say("pods, 100 each second");
        changes.push(bench.burst(first + count, count)?);

        let [northd, databases] = bench.northd.resident()?;
        figures.push(("ovn-northd, resident", megabytes(northd * 1024), "MB"));
        figures.push(("ovsdb-server, resident", megabytes(databases * 1024), "MB"));
        figures.push(("southbound database", bench.size()?, "MB"));
        say("restarts");
        let used = bench.northd.processor_time()?;
        if bench.restart(&mut figures)? {
            bench.northd.settle()?;
            let used = bench.northd.processor_time()? - used;
            figures.push(("ovn-northd meanwhile, processor", seconds(used), "s"));
        }
        let version = bench.northd.version();
        cluster.central.end_northd();
        let began = Instant::now();
        let northd = Northd::start(&cluster.central, subject.preload());
        let took = seconds(northd.settle()? - began);
        figures.push(("ovn-northd's restart, wall", took, "s"));
        let used = seconds(northd.processor_time()?);
        figures.push(("ovn-northd's restart, processor", used, "s"));
        Ok(Self {
            name,
            version,
            changes,
            figures,
        })
    }

    pub(crate) fn json(&self) -> Value {
        let changes = self.changes.iter().map(|it| {
            let [processor, wall] = [&it.processor, &it.wall].map(|all| {
                let [mean, p50, p99] = table::summary(all);
                json!({ "mean": mean, "p50": p50, "p99": p99 })
            });
            json!({ "kind": it.kind, "count": it.wall.len(), "processor_ms": processor,
                "wall_ms": wall, "northd_recomputes": it.northd, "lflow_recomputes": it.lflow })
        });
        let figures = self.figures.iter();
        let figures = figures.map(|(name, number, unit)| json!([name, number, unit]));
        json!({ "rows": self.name, "version": self.version,
            "changes": changes.collect::<Vec<_>>(), "figures": figures.collect::<Vec<_>>() })
    }
}

/// What is a single number, with its unit.
pub(crate) type Figure = (&'static str, f64, &'static str);

pub(crate) struct Bench<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) southbound: Southbound,
    pub(crate) northd: Northd<'c>,
    pub(crate) rows: &'c mut Rows,
}

impl Bench<'_> {
    /// Waits until ovn-northd has done all that there was to do.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        self.northd.settle().map(drop)
    }

    /// Changes of which each waits until ovn-northd has done everything that the one before caused.
    fn one_by_one(
        &mut self,
        kind: &'static str,
        count: u32,
        mut change: impl FnMut(&mut Self, u32) -> Result<String, Failure>,
    ) -> Result<Changes, Failure> {
        let (mut processor, mut wall) = (Vec::new(), Vec::new());
        self.northd.settle()?;
        let before = self.northd.recomputes();
        for turn in 0..count {
            let used = self.northd.processor_time()?;
            let began = Instant::now();
            let awaited = change(self, turn)?;
            wall.push(self.southbound.await_seen(&awaited)? - began);
            self.northd.settle()?;
            processor.push(self.northd.processor_time()? - used);
        }
        let after = self.northd.recomputes();
        Ok(Changes::new(kind, processor, wall, [before, after]))
    }

    fn burst(&mut self, first: u32, count: u32) -> Result<Changes, Failure> {
        let every = Duration::from_secs(1) / PER_SECOND;
        let mut created = Vec::new();
        self.northd.settle()?;
        let (used, before) = (self.northd.processor_time()?, self.northd.recomputes());
        let began = Instant::now();
        for turn in 0..count {
            thread::sleep((every * turn).saturating_sub(began.elapsed()));
            created.push(Instant::now());
            self.rows.add_pod(self.cluster, first + turn)?;
        }
        let mut wall = Vec::new();
        for (number, created) in (first..).zip(created) {
            let seen = self.southbound.await_seen(&bound(&Rows::port(number)))?;
            wall.push(seen - created);
        }
        self.northd.settle()?;
        let used = self.northd.processor_time()? - used;
        let processor = vec![used / count; wall.len()];
        let after = self.northd.recomputes();
        let kind = "pod created, 100 a second";
        Ok(Changes::new(kind, processor, wall, [before, after]))
    }

    /// Restarts the controller, if there is one, when all ports are up, as those of nodes are that
    /// run.
    pub(crate) fn restart(&mut self, figures: &mut Vec<Figure>) -> Result<bool, Failure> {
        self.cluster.central.southbound().transact(&[json!({
            "op": "update", "table": "Port_Binding",
            "where": [["up", "==", false]], "row": { "up": true },
        })])?;
        self.northd.settle()?;
        let began = Instant::now();
        let Some(operations) = self.rows.restart(self.cluster)? else {
            return Ok(false);
        };
        figures.push(("controller's restart", seconds(began.elapsed()), "s"));
        #[expect(clippy::cast_precision_loss, reason = "it is zero or thousands")]
        figures.push(("its operations", operations as f64, ""));
        Ok(true)
    }

    /// The number of logical flows, and of those that ACLs make.
    pub(crate) fn logical_flows(&self) -> [f64; 2] {
        let machine = self.cluster.central.machine();
        let said: Value =
            serde_json::from_str(&machine.run("ovsdb-client", FLOWS)).unwrap_or_default();
        let all = said[0]["rows"].as_array().cloned().unwrap_or_default();
        let is_of_acl = |flow: &&Value| {
            let ids = flow["external_ids"].to_string();
            let of = |side: &str| ids.contains(&format!("\"stage-name\",\"ls_{side}_acl"));
            // Those that each switch has come from no row.
            (of("in") || of("out")) && ids.contains("\"stage-hint\"")
        };
        let of_acls = all.iter().filter(is_of_acl).count();
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 flows")]
        [all.len() as f64, of_acls as f64]
    }

    /// The southbound database's file once it has no history, in MB.
    pub(crate) fn size(&self) -> Result<f64, Failure> {
        let machine = self.cluster.central.machine();
        let [databases, _] = self.cluster.central.pids();
        let socket = format!("/run/ovn/ovsdb-server.{databases}.ctl");
        let command = "ovsdb-server/compact OVN_Southbound";
        machine.run("ovn-appctl", format!("-t {socket} {command}"));
        let path = machine.path("/run/ovn/ovnsb_db.db");
        let file = std::fs::metadata(&path).step(|| format!("stat {}", path.display()))?;
        Ok(megabytes(file.len()))
    }
}

impl Changes {
    pub(crate) fn new(
        kind: &'static str,
        mut processor: Vec<Duration>,
        mut wall: Vec<Duration>,
        [before, after]: [Recomputes; 2],
    ) -> Self {
        processor.sort();
        wall.sort();
        // A run takes long; what ends it later does not take this away.
        let [used, waited] = [&processor, &wall].map(|all| table::summary(all));
        eprintln!(
            "  {kind}: mean, p50, p99 in ms: {used:.1?} of ovn-northd, {waited:.1?} until done"
        );
        Self {
            kind,
            processor,
            wall,
            northd: after.northd - before.northd,
            lflow: after.lflow - before.lflow,
        }
    }
}

pub(crate) fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^52 bytes")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
