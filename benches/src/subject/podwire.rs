//! podwire: the plugin as shipped, execed against the agent, with the agent's own trace of each
//! operation.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use podwire_tests::{Agent, conf, plugin_binary};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Subject, Worker};
use crate::error::Error;
use crate::exec::exec;
use crate::sample::{AGENT, NETLINK, OVN, OWN, Phase, Sample, TRANSACTION, VSWITCHD};
use crate::seat::Seat;

/// The netlink thread's steps of an ADD (agent/netns/src/attach.rs).
const NETLINK_STEPS: [&str; 8] = [
    "make pair",
    "host end silent",
    "pod sockets",
    "pod end up",
    "pod addresses",
    "pod routes",
    "pod end live",
    "pod tx checksum",
];
const TRANSACTION_STEP: &str = "ovsdb: transaction";
const OFPORT_STEP: &str = "ovs-vswitchd: ofport";
const INSTALLED_STEP: &str = "ovn-controller: installed";

/// The plugin and its agent.
#[derive(Debug)]
pub struct Podwire<'a> {
    agent: &'a Agent<'a>,
    plugin: PathBuf,
    name: &'static str,
    /// The bridges that configurations name, one for each of a pod's networks. Without any, the pod
    /// is on the node's own network, with an address.
    bridges: Vec<&'static str>,
    results: Mutex<HashMap<usize, Vec<u8>>>,
}

impl<'a> Podwire<'a> {
    /// With a running agent.
    ///
    /// # Errors
    /// The plugin is not built.
    pub fn new(agent: &'a Agent<'a>) -> Result<Self, Error> {
        Ok(Self {
            agent,
            plugin: plugin_binary(),
            name: "podwire",
            bridges: Vec::new(),
            results: Mutex::default(),
        })
    }

    /// The same under another name, with pods that have a network on each of these bridges, and no
    /// addresses: one call after the other, as Multus makes them.
    pub fn on(self, name: &'static str, bridges: &[&'static str]) -> Self {
        Self {
            name,
            bridges: bridges.to_vec(),
            ..self
        }
    }

    /// The pod's interfaces with their configurations.
    fn networks_of(&self, seat: &Seat<'_>) -> Vec<(String, Value)> {
        let on_bridge = |(number, bridge): (usize, &&str)| {
            let mut conf = conf();
            conf["bridge"] = json!(bridge);
            (format!("net{number}"), conf)
        };
        if self.bridges.is_empty() {
            let mut conf = conf();
            let capability = "io.kubernetes.cri.pod-annotations";
            conf["runtimeConfig"] = json!({ (capability): seat.pod.annotations });
            return vec![(seat.pod.interface.clone(), conf)];
        }
        self.bridges.iter().enumerate().map(on_bridge).collect()
    }

    fn results(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Vec<u8>>> {
        // Every change is one insert.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the plugin for each of the pod's networks; the sample is of all of them, and the
    /// output the last one's.
    fn run(
        &self,
        verb: &str,
        seat: &Seat<'_>,
        prev: Option<&Value>,
    ) -> Result<(Sample, Vec<u8>), Error> {
        let (mut took, mut stdout) = (Duration::ZERO, Vec::new());
        let name = format!("podwire-cni {verb}");
        for (interface, mut conf) in self.networks_of(seat) {
            if let Some(prev) = prev {
                conf["prevResult"] = prev.clone();
            }
            let mut plugin = Command::new(&self.plugin);
            plugin.current_dir("/").envs(seat.pod.environment(verb));
            plugin.env("CNI_IFNAME", interface);
            let run = exec(&mut plugin, conf.to_string().as_bytes(), &name, seat.number)?;
            took += run.took;
            stdout = run.stdout;
        }
        Ok((Sample::whole(&seat.pod.container, took), stdout))
    }
}

impl Subject for Podwire<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, Error> {
        Ok(Box::new(PodwireWorker(self)))
    }

    fn has_check(&self) -> bool {
        // It compares one network.
        self.bridges.len() < 2
    }

    fn explain(&self, samples: &mut [Sample]) -> Result<(), Error> {
        if self.bridges.len() > 1 {
            return Ok(());
        }
        let page = format!("/v1/traces?last={}", samples.len());
        let traces = self.agent.get_json(&page);
        let operations: Vec<Operation> = serde_json::from_value(traces["operations"].clone())
            .map_err(|error| Error::Trace {
                container: "any container".into(),
                missing: "form that the benchmark knows",
                trace: error.to_string(),
            })?;
        let mut by_container: HashMap<String, Operation> = operations
            .into_iter()
            .map(|operation| (operation.container.clone(), operation))
            .collect();
        for sample in samples {
            let operation = by_container
                .remove(&sample.container)
                .ok_or_else(|| Error::Trace {
                    container: sample.container.clone(),
                    missing: "entry in the agent's ring",
                    trace: String::new(),
                })?;
            operation.explain(sample)?;
        }
        Ok(())
    }
}

struct PodwireWorker<'a>(&'a Podwire<'a>);

impl Worker for PodwireWorker<'_> {
    fn add(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        let (sample, result) = self.0.run("ADD", seat, None)?;
        self.0.results().insert(seat.number, result);
        Ok(sample)
    }

    fn del(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        Ok(self.0.run("DEL", seat, None)?.0)
    }

    fn check(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        let result = self.0.results().get(&seat.number).cloned();
        let prev = serde_json::from_slice(&result.unwrap_or_default()).unwrap_or_default();
        Ok(self.0.run("CHECK", seat, Some(&prev))?.0)
    }
}

/// An operation as the agent's GET /v1/traces tells it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Operation {
    verb: String,
    container: String,
    duration_micros: f64,
    phases: Vec<TracedPhase>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TracedPhase {
    name: String,
    start_micros: f64,
    duration_micros: f64,
}

impl TracedPhase {
    fn end(&self) -> f64 {
        self.start_micros + self.duration_micros
    }

    fn is_netlink(&self) -> bool {
        NETLINK_STEPS.contains(&self.name.as_str())
    }
}

impl Operation {
    /// Splits a sample by its trace.
    fn explain(&self, sample: &mut Sample) -> Result<(), Error> {
        sample.set(AGENT, self.duration_micros);
        sample.phases = self
            .phases
            .iter()
            .map(|phase| Phase {
                name: phase.name.clone(),
                start: phase.start_micros,
                took: phase.duration_micros,
            })
            .collect();
        if self.verb != "ADD" {
            return Ok(());
        }
        let lacks = |missing| Error::Trace {
            container: self.container.clone(),
            missing,
            trace: format!("{:?}", self.phases),
        };
        let named = |name| self.phases.iter().find(|phase| phase.name == name);
        let netlink = || self.phases.iter().filter(|phase| phase.is_netlink());
        let first = netlink().map(|phase| phase.start_micros).reduce(f64::min);
        let last_ack = netlink().map(TracedPhase::end).reduce(f64::max);
        let (first, last_ack) = first.zip(last_ack).ok_or_else(|| lacks("netlink step"))?;
        let transaction = named(TRANSACTION_STEP).ok_or_else(|| lacks(TRANSACTION_STEP))?;
        let ofport = named(OFPORT_STEP).ok_or_else(|| lacks(OFPORT_STEP))?;
        // Only what lies between the later of reply and last ack and the ofport is the switch's.
        let vswitchd = (ofport.end() - transaction.end().max(last_ack)).max(0.0);
        sample.set(NETLINK, last_ack - first);
        sample.set(TRANSACTION, transaction.duration_micros);
        sample.set(VSWITCHD, vswitchd);
        let mut own = sample.total() - vswitchd;
        if let Some(installed) = named(INSTALLED_STEP) {
            sample.set(OVN, installed.duration_micros);
            own -= installed.duration_micros;
        }
        sample.set(OWN, own);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::TOTAL;

    #[test]
    fn the_switchs_time_is_what_lies_behind_both_reply_and_last_ack() {
        let phase = |name: &str, start_micros, duration_micros| TracedPhase {
            name: name.into(),
            start_micros,
            duration_micros,
        };
        let operation = Operation {
            verb: "ADD".into(),
            container: "c".into(),
            duration_micros: 2000.0,
            phases: vec![
                phase("make pair", 100.0, 200.0),
                phase("pod routes", 400.0, 500.0),
                phase(TRANSACTION_STEP, 300.0, 400.0),
                phase(OFPORT_STEP, 950.0, 850.0),
            ],
        };
        let mut sample = Sample::default();
        sample.set(TOTAL, 2500.0);
        operation.explain(&mut sample).unwrap();
        let part = |name| sample.parts[name];
        assert_eq!((part(NETLINK), part(TRANSACTION)), (800.0, 400.0));
        assert_eq!((part(VSWITCHD), part(OWN)), (900.0, 1600.0));
    }
}
