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

use super::monitor::controller_of;
use super::rows::Rows;
use crate::cluster::{Cluster, name_of_node};

/// Ports of pods on it.
pub(crate) const PORTS: u32 = 10;
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) struct Node {
    node: OvnNode,
    seen: Arc<Seen>,
    monitor: Option<Child>,
}

#[derive(Default)]
struct Seen {
    at: Mutex<HashMap<String, Instant>>,
    changed: Condvar,
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
        for number in (0..cluster.pods)
            .step_by(cluster.nodes as usize)
            .take(PORTS as usize)
        {
            let (port, name) = (Rows::port(number), format!("p{number}"));
            let version = rows.version(number);
            self.node.vsctl(format!(
                "add-port br-int {name} -- set interface {name} type=internal \
                 external_ids:iface-id={port} external_ids:iface-id-ver={version}"
            ));
            cluster.central.await_up(&port, true);
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
                if !line.contains("event=ADDED") {
                    continue;
                }
                let words = line
                    .split([',', ' '])
                    .filter_map(|it| it.strip_prefix("nw_src="));
                let mut at = seen.at.lock().unwrap_or_else(PoisonError::into_inner);
                at.extend(words.map(|address| (address.to_owned(), now)));
                seen.changed.notify_all();
            }
        });
        self.monitor = Some(child);
        Ok(())
    }

    /// Waits for a flow that was added for packets from an address; when that was.
    pub(crate) fn await_flow(&self, address: &str) -> Result<Instant, Failure> {
        let at = self.seen.at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_missing = |at: &mut HashMap<_, _>| !at.contains_key(address);
        let awaited = self.seen.changed.wait_timeout_while(at, LIMIT, is_missing);
        let (at, _) = awaited.unwrap_or_else(PoisonError::into_inner);
        at.get(address).copied().ok_or_else(|| Failure::Deadline {
            awaited: format!("a flow from {address}"),
            waited: LIMIT,
            seen: format!("{} others", at.len()),
        })
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
