//! Labels that change, and policies that come, one at a time: until the databases have what they
//! cause, and until a node has the flows.

use std::time::{Duration, Instant};

use podwire_tests::Failure;

use super::measure::{Bench, Changes, Figure, megabytes, seconds};
use super::node::Node;
use super::northd::Recomputes;
use super::policies::{self, CHANGED, app};
use super::southbound::{Southbound, member};
use crate::process::processor_time;

impl Bench<'_> {
    pub(crate) fn policies(
        &mut self,
        policies: u32,
        count: u32,
        figures: &mut Vec<Figure>,
    ) -> Result<Vec<Changes>, Failure> {
        let mut node = Node::start(self.cluster);
        node.bind(self.cluster, self.rows)?;
        self.northd.settle()?;
        let mut changes = self.labels(&node, (policies, count), figures)?;
        let (mut processor, mut wall) = (Vec::new(), Vec::new());
        let before = self.northd.recomputes();
        // With many pods each takes seconds.
        for turn in 0..count.min(30) {
            let used = self.northd.processor_time()?;
            let began = Instant::now();
            self.rows.add_policy(self.cluster, policies + turn)?;
            wall.push(self.northd.settle()? - began);
            processor.push(self.northd.processor_time()? - used);
        }
        let counts = [before, self.northd.recomputes()];
        changes.push(Changes::new(
            "policy, until all is done",
            processor,
            wall,
            counts,
        ));
        let [all, of_acls] = self.logical_flows();
        figures.push(("logical flows", all, ""));
        figures.push(("logical flows of ACLs", of_acls, ""));
        figures.push(("OpenFlow flows of the node", node.flows(), ""));
        let [northd, databases] = self.northd.resident()?;
        figures.push(("ovn-northd, resident", megabytes(northd * 1024), "MB"));
        figures.push(("ovsdb-server, resident", megabytes(databases * 1024), "MB"));
        figures.push(("southbound database", self.size()?, "MB"));
        self.restart(figures)?;
        Ok(changes)
    }

    /// Each pod gets the label, and loses it again, which is not measured: before, the node has no
    /// flow for packets from it.
    fn labels(
        &mut self,
        node: &Node,
        (policies, count): (u32, u32),
        figures: &mut Vec<Figure>,
    ) -> Result<Vec<Changes>, Failure> {
        let northbound = Southbound::northbound(&self.cluster.central)?;
        let controller = node.controller()?;
        // The node has flows for the endpoints of services.
        let pods = policies::changeable(self.cluster);
        let pods = pods.map(|number| (number, self.rows.address(self.cluster, number)));
        let pods = pods.filter(|(_, address)| !node.has_flow(address));
        let pods: Vec<(u32, String)> = pods.take(count as usize).collect();
        let mut processor = Vec::new();
        let mut walls = [Vec::new(), Vec::new(), Vec::new()];
        let (mut on_node, mut counts) = (Duration::ZERO, [Recomputes::default(); 2]);
        for (number, address) in pods.iter().cycle().take(count as usize) {
            let (number, awaited) = (*number, member(address));
            for database in [&northbound, &self.southbound] {
                database.forget(&awaited);
            }
            counts[0] += self.northd.recomputes();
            let used = [self.northd.processor_time()?, processor_time(controller)?];
            let began = Instant::now();
            let labels = [app(number), CHANGED];
            self.rows
                .relabel(self.cluster, (policies, number), labels)?;
            walls[1].push(self.southbound.await_seen(&awaited)? - began);
            walls[0].push(northbound.await_seen(&awaited)? - began);
            walls[2].push(node.await_flow(address)? - began);
            self.northd.settle()?;
            processor.push(self.northd.processor_time()? - used[0]);
            on_node += processor_time(controller)? - used[1];
            counts[1] += self.northd.recomputes();
            let labels = [CHANGED, app(number)];
            self.rows
                .relabel(self.cluster, (policies, number), labels)?;
            node.await_no_flow(address)?;
            self.northd.settle()?;
        }
        let of_each = seconds(on_node / count) * 1e3;
        figures.push(("a label, ovn-controller, processor", of_each, "ms"));
        let kinds = [
            "label, until northbound",
            "label, until southbound",
            "label, until the flow",
        ];
        let all = kinds.into_iter().zip(walls);
        let changes = all.map(|(kind, wall)| Changes::new(kind, processor.clone(), wall, counts));
        Ok(changes.collect())
    }
}
