//! ovn-northd's process: what it used, what it computed anew, and when it has nothing to do.

use std::ops::AddAssign;
use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::Failure;
use podwire_tests::ovn::Central;

use crate::process::{processor_time, status};

/// For how long neither it nor the databases may compute before it counts as done.
const QUIET: Duration = Duration::from_millis(60);
/// What a process uses that only looks whether there is something to do.
const NOTHING: Duration = Duration::from_micros(500);

pub(crate) struct Northd<'c> {
    central: &'c Central,
    pid: u32,
    databases: u32,
}

/// How often it computed everything anew, so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Recomputes {
    /// The logical network: ports, datapaths, load balancers.
    pub(crate) northd: u64,
    /// The logical flows.
    pub(crate) lflow: u64,
}

impl AddAssign for Recomputes {
    fn add_assign(&mut self, more: Self) {
        self.northd += more.northd;
        self.lflow += more.lflow;
    }
}

impl<'c> Northd<'c> {
    /// `preload`: a library that replaces functions of ovn-northd, ld.so(8).
    pub(crate) fn start(central: &'c Central, preload: Option<&str>) -> Self {
        let environment = preload.map(|library| ("LD_PRELOAD", library));
        central.start_northd_with(environment.as_slice());
        let [databases, pid] = central.pids();
        Self {
            central,
            pid,
            databases,
        }
    }

    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        processor_time(self.pid)
    }

    /// Its resident memory and that of the databases' server, in KiB.
    pub(crate) fn resident(&self) -> Result<[u64; 2], Failure> {
        let resident = |pid| status(pid, "VmRSS:");
        Ok([resident(self.pid)?, resident(self.databases)?])
    }

    /// Waits until it has done all that there was to do; when that was.
    pub(crate) fn settle(&self) -> Result<Instant, Failure> {
        let both = [self.pid, self.databases];
        let used = || Ok::<_, Failure>(processor_time(both[0])? + processor_time(both[1])?);
        let (mut since, mut before) = (Instant::now(), used()?);
        while since.elapsed() < QUIET {
            thread::sleep(QUIET / 6);
            let now = used()?;
            if now - before > NOTHING || both.into_iter().any(waits_for_a_processor) {
                since = Instant::now();
            }
            before = now;
        }
        Ok(since)
    }

    fn ask(&self, command: &str) -> String {
        let socket = format!("/run/ovn/ovn-northd.{}.ctl", self.pid);
        let arguments = format!("-t {socket} {command}");
        self.central.machine().run("ovn-appctl", arguments)
    }

    pub(crate) fn version(&self) -> String {
        let said = self.ask("version");
        let line = said.lines().next().unwrap_or_default();
        line.trim_start_matches("ovn-northd ").to_owned()
    }

    pub(crate) fn recomputes(&self) -> Recomputes {
        let stats = self.ask("inc-engine/show-stats");
        let of = |node: &str| {
            let mut lines = stats
                .lines()
                .skip_while(|line| *line != format!("Node: {node}"));
            let line = lines.find_map(|line| line.strip_prefix("- recompute:"));
            line.and_then(|count| count.trim().parse().ok())
                .unwrap_or(0)
        };
        Recomputes {
            northd: of("northd"),
            lflow: of("lflow"),
        }
    }

    pub(crate) fn reset_stopwatches(&self) {
        self.ask("stopwatch/reset");
    }

    /// What its phases took since the last reset, as it says it.
    pub(crate) fn stopwatches(&self) -> String {
        self.ask("stopwatch/show")
    }
}

/// Whether a process would compute, which on a loaded machine does not mean that it does.
fn waits_for_a_processor(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|it| it.chars().next());
    matches!(state, Some('R' | 'D'))
}
