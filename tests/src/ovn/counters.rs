//! What OVN's daemons computed anew as a whole, and what step by step: their own counters.

use std::collections::BTreeMap;

use super::{Central, OvnNode, RUN_DIR, lock};
use crate::TestNode;

/// How often each node of a daemon's engine ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(BTreeMap<String, Run>);

/// The runs of one node of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// From all of its inputs.
    pub whole: u64,
    /// From what changed.
    pub steps: u64,
}

impl Runs {
    fn of(machine: &TestNode, daemon: &str, pid: u32) -> Self {
        let socket = format!("{RUN_DIR}/{daemon}.{pid}.ctl");
        let shown = machine.run("ovn-appctl", format!("-t {socket} inc-engine/show-stats"));
        let (mut runs, mut current) = (BTreeMap::new(), String::new());
        for line in shown.lines() {
            if let Some(name) = line.strip_prefix("Node: ") {
                // Its name until 25.03.
                let is_new = name == "lflow_output";
                let name = if is_new { "logical_flow_output" } else { name };
                name.clone_into(&mut current);
            }
            let value = |what: &str| {
                let value = line.strip_prefix("- ")?.strip_prefix(what)?;
                value.strip_prefix(':')?.trim().parse::<u64>().ok()
            };
            let run: &mut Run = runs.entry(current.clone()).or_default();
            run.whole += value("recompute").unwrap_or(0);
            run.steps += value("compute").unwrap_or(0);
        }
        Self(runs)
    }

    /// The runs of a node since an earlier time.
    ///
    /// # Panics
    /// The engine has no such node.
    #[track_caller]
    pub fn since(&self, earlier: &Self, node: &str) -> Run {
        let [now, then] = [self, earlier].map(|runs| runs.0.get(node).copied());
        let (Some(now), Some(then)) = (now, then) else {
            panic!("no node {node} in {:?}", self.0.keys());
        };
        Run {
            whole: now.whole - then.whole,
            steps: now.steps - then.steps,
        }
    }
}

impl Central {
    /// Those of ovn-northd.
    #[track_caller]
    pub fn northd_runs(&self) -> Runs {
        let [_, northd] = self.pids();
        Runs::of(self.machine(), "ovn-northd", northd)
    }
}

impl OvnNode {
    /// Those of its ovn-controller.
    ///
    /// # Panics
    /// It does not run.
    #[track_caller]
    pub fn controller_runs(&self) -> Runs {
        let pid = lock(&self.controller).as_ref().map(|daemon| daemon.pid());
        let pid = pid.unwrap_or_else(|| panic!("{} has no ovn-controller", self.name));
        Runs::of(&self.machine, "ovn-controller", pid)
    }
}
