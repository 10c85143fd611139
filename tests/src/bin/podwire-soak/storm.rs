//! The workers, each doing as a runtime would with one pod after the other, and the faults beside
//! them.

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use podwire_tests::{
    Agent, Failure, PluginRun, Pod, Row, Step, TestNode, conf, links, plugin_binary, traffic,
};
use serde_json::{Value, json};

use crate::tally::Tally;

/// Between two faults; long enough for most to have been recovered from, so that they also meet
/// quiet.
const BETWEEN_FAULTS: Duration = Duration::from_millis(1500);
/// One ADD in so many has its plugin killed.
const PLUGIN_KILLS: usize = 40;
/// One ADD in so many has limits.
const SHAPED: usize = 4;
/// How often a verb is repeated at the end, when nothing is dead any more.
const REPEATS: usize = 5;

pub(crate) struct Storm<'node> {
    node: &'node TestNode,
    tally: &'node Tally,
    places: Vec<Mutex<Place<'node>>>,
}

/// One pod and what the runtime believes of it.
struct Place<'node> {
    name: String,
    sandbox: Option<Sandbox<'node>>,
    /// A sandbox that was removed, and whose container id may come again, as podman's do.
    removed: Option<Pod<'node>>,
}

struct Sandbox<'node> {
    pod: Pod<'node>,
    /// The ADD's result; none when it failed, and then only a DEL may follow.
    result: Option<Value>,
}

impl<'node> Storm<'node> {
    pub(crate) fn new(
        node: &'node TestNode,
        tally: &'node Tally,
        pods: usize,
    ) -> Result<Self, Failure> {
        let places = (0..pods).map(|number| {
            Mutex::new(Place {
                name: format!("pod{number}"),
                sandbox: None,
                removed: None,
            })
        });
        Ok(Self {
            node,
            tally,
            places: places.collect(),
        })
    }

    /// A worker's whole life.
    pub(crate) fn work(&self, until: Instant) -> Result<(), Failure> {
        while Instant::now() < until {
            // A place that another worker has is passed over: runtimes lock a pod's sandbox too.
            let Ok(mut place) = self.places[random(self.places.len())].try_lock() else {
                continue;
            };
            match place.sandbox.take() {
                None => {
                    let pod = match place.removed.take() {
                        Some(pod) if random(2) == 0 => pod,
                        _ => self.node.pod(&place.name),
                    };
                    place.sandbox = Some(self.add(pod)?);
                }
                Some(sandbox) if sandbox.result.is_some() && random(3) == 0 => {
                    self.check(&sandbox)?;
                    place.sandbox = Some(sandbox);
                }
                Some(sandbox) => {
                    if self.del(&sandbox.pod)? {
                        place.removed = Some(sandbox.pod);
                    } else {
                        place.sandbox = Some(Sandbox {
                            result: None,
                            ..sandbox
                        });
                    }
                }
            }
            drop(place);
            if random(100) == 0 {
                self.gc()?;
            }
        }
        Ok(())
    }

    /// Kills or stops one thing after the other, and starts it again; removes ports.
    pub(crate) fn break_at_random(
        &self,
        mut agent: Agent<'node>,
        until: Instant,
    ) -> Result<Agent<'node>, Failure> {
        loop {
            let next = Instant::now() + BETWEEN_FAULTS;
            if next >= until {
                return Ok(agent);
            }
            std::thread::sleep(BETWEEN_FAULTS);
            match random(9) {
                0 | 1 => {
                    self.tally.fault("agent killed");
                    agent = agent.kill_and_restart();
                }
                2 => {
                    self.tally.fault("ovsdb-server killed");
                    self.node.kill_ovsdb_server();
                    self.node.start_ovsdb_server();
                }
                3 => {
                    self.tally.fault("ovs-vswitchd killed");
                    self.node.kill_vswitchd();
                    self.node.start_vswitchd();
                }
                4 => {
                    self.tally.fault("ovsdb-server hung");
                    self.node.signal_ovsdb_server(Signal::SIGSTOP);
                    // Some hang longer than an ADD may take, and than the agent's connection lives.
                    std::thread::sleep(Duration::from_millis(200 + random(12_000) as u64));
                    self.node.signal_ovsdb_server(Signal::SIGCONT);
                }
                5 => {
                    self.tally.fault("ovs-vswitchd hung");
                    self.node.signal_vswitchd(Signal::SIGSTOP);
                    std::thread::sleep(Duration::from_millis(random(2_000) as u64));
                    self.node.signal_vswitchd(Signal::SIGCONT);
                }
                6 | 7 => self.remove_ports()?,
                _ => {
                    self.tally.fault("database lost");
                    self.node.kill_vswitchd();
                    self.node.lose_database();
                    self.node.start_ovsdb_server();
                    self.node.start_vswitchd();
                }
            }
        }
    }

    /// Removes some ports, of living pods or not, as an operator would by mistake.
    fn remove_ports(&self) -> Result<(), Failure> {
        let rows = self.node.ovsdb_rows("Interface");
        let is_pod = |row: &&Row| row["external_ids"]["sandbox"].is_string();
        for row in rows.iter().filter(is_pod).take(1 + random(5)) {
            self.tally.fault("port removed");
            let port = row["name"].as_str().unwrap_or_default();
            self.node
                .vsctl(format!("--no-wait --if-exists del-port br-int {port}"));
        }
        Ok(())
    }

    /// What is wrong with the pods that the runtime believes alive. Another pod pings them: the
    /// node's own kernel hears on the host ends and would answer in place of the switch.
    pub(crate) fn judge_living(&self, agent: &Agent<'_>) -> Result<Vec<String>, Failure> {
        self.node.await_vswitchd();
        agent.await_ready(true);
        let mut wrong = Vec::new();
        let mut living = 0;
        let prober = self.node.pod("prober");
        prober.add().success();
        for place in &self.places {
            let place = lock(place);
            let Some(Sandbox {
                pod,
                result: Some(result),
            }) = &place.sandbox
            else {
                continue;
            };
            living += 1;
            let interfaces = result["interfaces"].as_array();
            let host = interfaces
                .and_then(|all| all.iter().find(|it| it["sandbox"].is_null()))
                .and_then(|host| host["name"].as_str())
                .unwrap_or_default();
            if let Err(failure) = self.node.await_ofport(host) {
                wrong.push(format!("{} has no port: {failure}", place.name));
            } else if let run = pod.check(result)
                && !run.succeeded()
            {
                let error = run.error();
                wrong.push(format!("{} is not as it was made: {error:?}", place.name));
            }
            for ip in result["ips"].as_array().into_iter().flatten() {
                let address = ip["address"].as_str().and_then(|net| net.split('/').next());
                let Some(Ok(address)) = address.map(str::parse) else {
                    wrong.push(format!("{} has no address in {result}", place.name));
                    continue;
                };
                if let Err(failure) = traffic::ping_until_answered(prober.place(), address) {
                    wrong.push(format!("{} has no traffic: {failure}", place.name));
                }
            }
        }
        prober.del().success();
        println!("{living} pods live");
        Ok(wrong)
    }

    /// Removes every pod, as a runtime that is drained; the strings are what could not be.
    pub(crate) fn remove_all(&self) -> Result<Vec<String>, Failure> {
        let mut wrong = Vec::new();
        for place in &self.places {
            let Some(Sandbox { pod, .. }) = lock(place).sandbox.take() else {
                continue;
            };
            let mut repeats = 0..REPEATS;
            while repeats.next().is_some() && !self.del(&pod)? {}
            if repeats.is_empty() {
                wrong.push(format!("{} can't be removed", pod.name));
            }
            if links::find(pod.place(), "eth0").is_some() {
                wrong.push(format!("{} still has its interface", pod.name));
            }
        }
        Ok(wrong)
    }

    fn add(&self, pod: Pod<'node>) -> Result<Sandbox<'node>, Failure> {
        if random(PLUGIN_KILLS) == 0 {
            self.tally.fault("plugin killed");
            self.add_and_kill(&pod)?;
            return Ok(Sandbox { pod, result: None });
        }
        let run = match random(SHAPED) {
            0 => pod.exec("ADD", &shaped()),
            _ => pod.add(),
        };
        let result = self.note(&run)?;
        Ok(Sandbox { pod, result })
    }

    /// An ADD whose plugin is killed at some moment; the runtime then knows nothing and calls DEL.
    fn add_and_kill(&self, pod: &Pod<'_>) -> Result<(), Failure> {
        let mut plugin = Command::new(plugin_binary());
        plugin.current_dir("/").envs(pod.environment("ADD"));
        plugin
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = self
            .node
            .place()
            .run(|| plugin.spawn())
            .step(|| "start the plugin")?;
        if let Some(mut stdin) = child.stdin.take() {
            // It may be gone already.
            let _ = std::io::Write::write_all(&mut stdin, conf().to_string().as_bytes());
        }
        std::thread::sleep(Duration::from_micros(random(8000) as u64));
        child.kill().step(|| "kill the plugin")?;
        child.wait().step(|| "reap the plugin")?;
        self.tally.failed("ADD", None);
        Ok(())
    }

    fn check(&self, sandbox: &Sandbox<'_>) -> Result<(), Failure> {
        if let Some(result) = &sandbox.result {
            self.note(&sandbox.pod.check(result))?;
        }
        Ok(())
    }

    /// Whether it succeeded.
    fn del(&self, pod: &Pod<'_>) -> Result<bool, Failure> {
        Ok(self.note(&pod.del())?.is_some())
    }

    /// A GC with every pod that any worker has, or had a moment ago, as a runtime under its own
    /// lock would list them.
    fn gc(&self) -> Result<(), Failure> {
        let places: Vec<_> = self.places.iter().map(lock).collect();
        let living = places.iter().filter_map(|place| place.sandbox.as_ref());
        let valid: Vec<Value> = living
            .map(|sandbox| json!({"containerID": sandbox.pod.container, "ifname": "eth0"}))
            .collect();
        let Some(any) = places.iter().find_map(|place| place.sandbox.as_ref()) else {
            return Ok(());
        };
        let mut conf = conf();
        conf["cni.dev/valid-attachments"] = valid.into();
        let run = any.pod.exec_with("GC", conf.to_string().as_bytes(), &[]);
        self.note(&run).map(drop)
    }

    /// Counts it; the result of a success.
    fn note(&self, run: &PluginRun) -> Result<Option<Value>, Failure> {
        if run.succeeded() {
            self.tally.done(&run.command, run.duration());
            return Ok(Some(run.success()));
        }
        self.tally.failed(&run.command, Some(run.error().code));
        Ok(None)
    }
}

fn shaped() -> Value {
    let mut conf = conf();
    conf["capabilities"]["bandwidth"] = json!(true);
    let rate = 100_000_000;
    conf["runtimeConfig"]["bandwidth"] = json!({
        "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate,
    });
    conf
}

fn random(below: usize) -> usize {
    let digits = podwire_tests::hex(8);
    usize::from_str_radix(&digits, 16).unwrap_or(0) % below
}

fn lock<'a, T>(mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
