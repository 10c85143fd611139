//! A real node in the cluster: ovs-vswitchd, ovn-controller, some of the first node's pods, and the
//! flows as the switch tells of them.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use podwire_tests::ovn::OvnNode;
use podwire_tests::{Failure, Step as _};
use serde_json::json;

use super::monitor::{controller_of, settle};
use super::rows::Rows;
use crate::cluster::{Cluster, name_of_node};

/// Ports of pods on it.
const PORTS: u32 = 10;
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) struct Node {
    node: OvnNode,
    seen: Arc<Seen>,
    monitor: Option<Child>,
}

/// Of each address the packets from which have flows that were added since the monitor began: when
/// the last of these was added.
#[derive(Default)]
struct Seen {
    at: Mutex<HashMap<String, Instant>>,
    changed: Condvar,
}

/// The pods whose ports it has.
pub(crate) fn bound(cluster: &Cluster) -> impl Iterator<Item = u32> {
    let own = (0..cluster.pods).step_by(cluster.nodes as usize);
    own.take(PORTS as usize)
}

/// The database's own limit is for a test's node; a large cluster takes longer.
fn await_up(cluster: &Cluster, port: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let is_it = json!([["name", "==", port]]);
        let up = json!([{ "up": true }]);
        let northbound = cluster.central.northbound();
        let waited = northbound.wait("Logical_Switch_Port", is_it, "==", &["up"], up);
        if waited.is_ok() || Instant::now() > deadline {
            return waited;
        }
    }
}

impl Node {
    /// The cluster's first node, without ports.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        Self {
            node: cluster.central.node(&name_of_node(0), 1),
            seen: Arc::default(),
            monitor: None,
        }
    }

    /// Binds pods' ports, and follows the flows from when they are there.
    pub(crate) fn bind(&mut self, cluster: &Cluster, rows: &Rows) -> Result<(), Failure> {
        for number in bound(cluster) {
            let (port, name) = (Rows::port(number), format!("p{number}"));
            let version = rows.version(number);
            self.node.vsctl(format!(
                "add-port br-int {name} -- set interface {name} type=internal \
                 external_ids:iface-id={port} external_ids:iface-id-ver={version}"
            ));
            await_up(cluster, &port)?;
        }
        cluster.central.sync();
        let mut command = Command::new("ovs-ofctl");
        command.args(["monitor", "br-int", "watch:!initial"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = self.node.place().run(|| command.spawn());
        let mut child = spawned.step(|| "start ovs-ofctl monitor")?;
        let lines = child.stderr.take().map(BufReader::new);
        let seen = Arc::clone(&self.seen);
        thread::spawn(move || {
            for line in lines
                .into_iter()
                .flat_map(BufReader::lines)
                .map_while(Result::ok)
            {
                let now = Instant::now();
                let mut words = line.split([',', ' ']);
                let Some(address) = words.find_map(|it| it.strip_prefix("nw_src=")) else {
                    continue;
                };
                let mut at = seen.at.lock().unwrap_or_else(PoisonError::into_inner);
                if line.contains("event=ADDED") {
                    at.insert(address.to_owned(), now);
                } else if line.contains("event=DELETED") {
                    at.remove(address);
                }
                seen.changed.notify_all();
            }
        });
        self.monitor = Some(child);
        Ok(())
    }

    /// Waits until ovn-controller has nothing to do and there are flows for packets from an
    /// address; when the last of them was added.
    pub(crate) fn await_flow(&self, address: &str) -> Result<Instant, Failure> {
        self.await_seen(address, true)?;
        settle(self.controller()?)?;
        let at = self.seen.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.get(address).copied().ok_or_else(|| Failure::Deadline {
            awaited: format!("flows from {address} that stay"),
            waited: Duration::ZERO,
            seen: "none".to_owned(),
        })
    }

    /// Waits until there are none.
    pub(crate) fn await_no_flow(&self, address: &str) -> Result<(), Failure> {
        self.await_seen(address, false)?;
        settle(self.controller()?)
    }

    fn await_seen(&self, address: &str, is_there: bool) -> Result<(), Failure> {
        let at = self.seen.at.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |at: &mut HashMap<_, _>| at.contains_key(address) != is_there;
        let awaited = self.seen.changed.wait_timeout_while(at, LIMIT, waits);
        let (at, waited) = awaited.unwrap_or_else(PoisonError::into_inner);
        match waited.timed_out() {
            false => Ok(()),
            true => Err(Failure::Deadline {
                awaited: format!("flows from {address}: {is_there}"),
                waited: LIMIT,
                seen: format!("flows from {} others", at.len()),
            }),
        }
    }

    /// Whether there are flows for packets from an address, by the switch itself.
    pub(crate) fn has_flow(&self, address: &str) -> bool {
        let found = format!("dump-flows br-int ip,nw_src={address}");
        self.node.run("ovs-ofctl", found).contains("nw_src=")
    }

    /// The process of its ovn-controller.
    pub(crate) fn controller(&self) -> Result<u32, Failure> {
        controller_of(&self.node)
    }

    /// The number of its OpenFlow flows.
    pub(crate) fn flows(&self) -> f64 {
        let said = self.node.run("ovs-ofctl", "dump-aggregate br-int");
        let mut words = said.split_whitespace();
        let count = words.find_map(|word| word.strip_prefix("flow_count="));
        count.and_then(|count| count.parse().ok()).unwrap_or(0.0)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.monitor {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
