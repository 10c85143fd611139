//! The results of a run in three forms: a table in the terminal, report.json, and report.html.

pub mod change;
pub mod html;
pub mod svg;
pub mod table;

use std::collections::BTreeMap;
use std::path::Path;

use change::Change;
use serde::Serialize;

use crate::ahead::Ahead;
use crate::bars::{Bar, part};
use crate::cells::{Cell, Extent};
use crate::error::{Error, Step};
use crate::group_commit::Comparison;
use crate::netlink::Way;
use crate::run::Measured;
use crate::sample::Summary;
use crate::switch::SwitchWork;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where and when.
    pub machine: Machine,
    /// How much was measured.
    pub extent: Extent,
    /// How the floor's netlink messages were sent, and what each way took.
    pub floor: FloorWays,
    /// The cells with few ports present.
    pub cells: Vec<CellReport>,
    /// Batches at several degrees of concurrency.
    pub throughput: Vec<CellReport>,
    /// One at a time, with other pods present.
    pub ports: Vec<PortsLevel>,
    /// Group commit against one transaction per request.
    pub group_commit: Option<Comparison>,
    /// A pair made in place against one made before and moved.
    pub ahead: Option<Ahead>,
    /// Memory, in bytes.
    pub memory: Memory,
    /// System calls for one ADD, by process.
    pub system_calls: BTreeMap<String, f64>,
    /// What the agent does when nothing is asked of it.
    pub idle: Option<Idle>,
    /// The promises.
    pub bars: Vec<Bar>,
    /// What took how long in an earlier run.
    pub changes: Vec<Change>,
}

/// The machine and its state.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// The processor.
    pub processor: String,
    /// Cores.
    pub cores: usize,
    /// Open vSwitch's version.
    pub open_vswitch: String,
    /// /proc/loadavg before and after: what else was going on.
    pub load: Vec<String>,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// The three ways of the floor.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FloorWays {
    /// The fastest, which serves as the floor.
    pub chosen: Option<Way>,
    /// The messages of the chosen way.
    pub messages: Vec<&'static str>,
    /// Each way's median, in microseconds.
    pub medians: Vec<(Way, f64)>,
}

/// A cell and what was measured in it.
#[derive(Clone, Debug, Serialize)]
pub struct CellReport {
    /// The situation.
    pub cell: Cell,
    /// By subject.
    pub measured: Vec<Measured>,
}

/// A run of the cell beside other pods.
#[derive(Clone, Debug, Serialize)]
pub struct PortsLevel {
    /// How many other pods were there.
    pub present: usize,
    /// By subject.
    pub measured: Vec<Measured>,
    /// What one ADD and one DEL of podwire's make ovs-vswitchd do.
    pub switch: SwitchWork,
}

/// Memory, in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Memory {
    /// VmHWM of the plugin with an ADD.
    pub plugin_peak: Option<u64>,
    /// VmRSS of the agent by the number of its pods.
    pub agent: BTreeMap<usize, u64>,
    /// VmRSS of the agent with 500 pods.
    pub agent_with_500_pods: Option<u64>,
}

/// An idle agent, as strace saw it.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// For how long, in seconds.
    pub seconds: f64,
    /// With how many pods.
    pub pods: usize,
    /// System calls that returned in that time, by name.
    pub calls: BTreeMap<String, u64>,
    /// Those that neither answer nor send OVSDB's keepalive.
    pub beyond_keepalive: u64,
}

impl Measured {
    /// What is told of one part of the ADDs.
    pub fn add_summary(&self, name: &str) -> Option<Summary> {
        Summary::of(part(&self.add, name))
    }

    /// What is told of the DELs.
    pub fn del_summary(&self) -> Option<Summary> {
        Summary::of(self.del.iter().map(crate::sample::Sample::total))
    }
}

impl Report {
    /// Writes report.json and report.html into a directory, which is made when it is missing.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(directory).step(|| format!("make {}", directory.display()))?;
        let json = serde_json::to_string(self)
            .map_err(std::io::Error::from)
            .step(|| "serialise the report")?;
        for (name, text) in [("report.json", json), ("report.html", html::page(self))] {
            let path = directory.join(name);
            std::fs::write(&path, text).step(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}
