//! Processor time and memory of processes, from /proc.

use std::collections::BTreeMap;

use nix::sys::resource::{UsageWho, getrusage};
use podwire_tests::{TestNode, process};

use crate::error::{Error, Step};

/// Processor time used up to a moment, in seconds: of the node's daemons by name, and of all
/// children of this process that have ended ([`CpuTimes::EXECS`]).
#[derive(Clone, Debug, Default)]
pub struct CpuTimes(BTreeMap<String, f64>);

impl CpuTimes {
    /// The name of the children that have ended.
    pub const EXECS: &str = "execs";

    /// Until now.
    ///
    /// # Errors
    /// /proc could not be read.
    pub fn now(daemons: &[(String, i32)]) -> Result<Self, Error> {
        let mut times = BTreeMap::new();
        for (name, pid) in daemons {
            *times.entry(name.clone()).or_default() += running_seconds(*pid)?;
        }
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).step(|| "getrusage")?;
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let children = seconds(usage.user_time()) + seconds(usage.system_time());
        times.insert(Self::EXECS.into(), children);
        Ok(Self(times))
    }

    /// What was used since an earlier moment.
    pub fn since(&self, before: &Self) -> BTreeMap<String, f64> {
        self.0
            .iter()
            .map(|(name, now)| {
                let then = before.0.get(name).copied().unwrap_or_default();
                (name.clone(), (now - then).max(0.0))
            })
            .collect()
    }
}

/// The node's daemons: names and ids.
///
/// # Errors
/// /proc could not be read.
pub fn daemons(node: &TestNode) -> Result<Vec<(String, i32)>, Error> {
    let processes = process::with_environment(&node.process_mark())?;
    Ok(processes
        .into_iter()
        .map(|process| (process.name, process.pid))
        .collect())
}

/// A line of /proc/PID/status that is in kB, such as VmRSS or VmHWM, in bytes.
///
/// # Errors
/// There is no such process or line.
pub fn memory(pid: u32, line: &str) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).step(|| format!("read {path}"))?;
    let kib = status.lines().find_map(|text| {
        let value = text.strip_prefix(line)?.strip_prefix(':')?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| std::io::Error::other("no such line"))
        .step(|| format!("find {line} in {path}"))
}

/// The time that a process's threads have run, to the nanosecond (Documentation/scheduler/
/// sched-stats.rst); threads that have ended are not in it.
fn running_seconds(pid: i32) -> Result<f64, Error> {
    let path = format!("/proc/{pid}/task");
    let mut nanos = 0.0;
    for task in std::fs::read_dir(&path)
        .step(|| format!("list {path}"))?
        .flatten()
    {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        nanos += stat
            .split_whitespace()
            .next()
            .and_then(|nanos| nanos.parse::<f64>().ok())
            .unwrap_or_default();
    }
    Ok(nanos / 1e9)
}
