//! One run of the benchmark from beginning to end.

use std::path::PathBuf;
use std::time::Instant;

use podwire_tests::{Agent, AgentOptions, TestNode};

use crate::bars::bars;
use crate::cells::{Cell, Extent};
use crate::error::Error;
use crate::netlink::Way;
use crate::profile;
use crate::report::{CellReport, FloorWays, Memory, PortsLevel, Report};
use crate::run::{Entrant, Verb, batch, cell, settle};
use crate::sample::{NETLINK, median};
use crate::seat::{SUBNET_V4, SUBNET_V6, Seat, Stack};
use crate::subject::{BridgePlugin, Floor, Forking, Podwire};
use crate::{group_commit, machine, ovn, switch};

/// The bridge that everybody but the `bridge` plugin uses.
const BRIDGE: &str = "br-int";

/// How often each way of making a link is measured.
const AHEAD_ROUNDS: usize = 20;

/// What an operator can set of ovs-vswitchd, and whether its flows stay.
#[derive(Clone, Debug, Default)]
pub struct SwitchSettings {
    /// Further flags of ovs-vswitchd(8).
    pub flags: Vec<String>,
    /// `key=value` in `other_config` of the row of `Open_vSwitch`.
    pub config: Vec<String>,
    /// Whether the flows of what was measured before stay in the datapath.
    pub keeps_flows: bool,
}

impl SwitchSettings {
    /// A node with an Open vSwitch that has these settings.
    fn start(&self) -> TestNode {
        let node = TestNode::new();
        node.start_ovsdb_server();
        for setting in &self.config {
            let column = format!("other_config:{setting}");
            node.run(
                "ovs-vsctl",
                ["--no-wait", "set", "Open_vSwitch", ".", &column],
            );
        }
        node.start_vswitchd_with(&self.flags);
        node
    }
}

/// What a run is to do.
#[derive(Clone, Debug)]
pub struct Order {
    /// How much.
    pub extent: Extent,
    /// The binary that does nothing.
    pub empty: PathBuf,
    /// Only the cells of these names; all when empty.
    pub only: Vec<String>,
    /// Only the subjects of these names; all when empty.
    pub subjects: Vec<String>,
    /// How many other pods are there in the cell `ports`, in ascending order.
    pub present: Vec<usize>,
    /// Whether the switch's functions are measured in the cells `ports`, `ovn` and `ovn-eight`.
    pub functions: bool,
    /// Further flags of the agent's.
    pub agent_flags: Vec<String>,
    /// What an operator can set of the switch.
    pub switch: SwitchSettings,
}

impl Order {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn invited<'a>(&self, entrants: &[Entrant<'a>]) -> Vec<Entrant<'a>> {
        let is_named = |entrant: &Entrant<'_>| {
            let name = entrant.subject.name();
            self.subjects.is_empty() || self.subjects.iter().any(|subject| subject == name)
        };
        entrants.iter().filter(|it| is_named(it)).copied().collect()
    }
}

/// Makes a node, measures, and returns what was found. `progress` is told what is under way.
///
/// # Errors
/// Something failed that must not: see [`Error`].
pub fn run(order: &Order, progress: &mut dyn FnMut(&str)) -> Result<Report, Error> {
    let began = Instant::now();
    let mut machine = machine::look()?;
    machine::raise_descriptor_limit()?;
    let node = order.switch.start();
    let options = AgentOptions::default()
        .subnet(SUBNET_V4)
        .subnet(SUBNET_V6)
        .with(["--log", "warn"])
        .with(&order.agent_flags);
    let agent = node.start_agent(&options);
    let mut stage = Stage {
        order,
        node: &node,
        agent: &agent,
        seats: Vec::new(),
        dual_seats: Vec::new(),
    };
    stage.more_seats(1)?;
    let (floor, ways) = stage.choose_floor(progress)?;
    let podwire = Podwire::new(&agent)?;
    let forking = Forking::new(BRIDGE);
    let bridge = BridgePlugin;
    let extent = order.extent;

    let everyone = |slow: usize, slowest: usize| {
        vec![
            Entrant {
                subject: &floor,
                every: 1,
            },
            Entrant {
                subject: &podwire,
                every: 1,
            },
            Entrant {
                subject: &bridge,
                every: slow,
            },
            Entrant {
                subject: &forking,
                every: slowest,
            },
        ]
    };
    let mut cells = Vec::new();
    let few = extent.slow();
    for (situation, entrants) in [
        (extent.one(), everyone(1, 4)),
        (extent.eight(), everyone(few, usize::MAX)[..3].to_vec()),
        (extent.thirty_two(), everyone(2, 4)[..3].to_vec()),
        (extent.burst(), everyone(1, usize::MAX)[..3].to_vec()),
    ] {
        if order.wants(situation.name) {
            cells.push(stage.measure(situation, &entrants, progress)?);
        }
    }
    if order.wants("dual") {
        cells.push(stage.dual(&everyone(1, 4)[..3], progress)?);
    }
    if order.wants("bridges") {
        cells.push(stage.bridges(progress)?);
    }
    let with_ovn: Vec<Cell> = [extent.ovn(), extent.ovn_eight()]
        .into_iter()
        .filter(|situation| order.wants(situation.name))
        .collect();
    if !with_ovn.is_empty() {
        cells.extend(ovn::measure(
            with_ovn,
            &order.agent_flags,
            order.functions,
            progress,
        )?);
    }
    let mut throughput = Vec::new();
    if order.wants("throughput") {
        for situation in extent.throughput() {
            throughput.push(stage.measure(situation, &everyone(1, 1)[..3], progress)?);
        }
    }
    let mut comparison = None;
    if order.wants("group-commit") {
        progress("group commit against one transaction per request");
        stage.more_seats(200)?;
        let seats = &stage.seats[..200];
        comparison = Some(group_commit::compare(
            &node,
            BRIDGE,
            seats,
            extent.commit_rounds(),
        )?);
    }
    let mut ahead = None;
    if order.wants("ahead") {
        progress("a link made before its ADD");
        ahead = Some(crate::ahead::compare(&node, &stage.seats[0], AHEAD_ROUNDS)?);
    }
    let mut memory = Memory::default();
    let mut system_calls = Default::default();
    if order.wants("profile") {
        progress("memory and system calls");
        memory.plugin_peak = Some(profile::plugin_peak(&node, &stage.seats[0])?);
        system_calls = profile::system_calls(&node, &agent, &podwire, &stage.seats[0])?;
    }
    let mut ports = Vec::new();
    let mut idle = None;
    if order.wants("ports") {
        let entrants = &everyone(1, 1)[..2];
        ports = stage.beside_ports(entrants, &podwire, &mut memory, &mut idle, progress)?;
    }
    machine.load.push(machine::load());
    machine.seconds = began.elapsed().as_secs_f64();
    let mut report = Report {
        machine,
        extent,
        floor: ways,
        cells,
        throughput,
        ports,
        group_commit: comparison,
        ahead,
        memory,
        system_calls,
        idle,
        bars: Vec::new(),
        changes: Vec::new(),
    };
    report.bars = bars(&report);
    Ok(report)
}

struct Stage<'a> {
    order: &'a Order,
    node: &'a TestNode,
    agent: &'a Agent<'a>,
    seats: Vec<Seat<'a>>,
    dual_seats: Vec<Seat<'a>>,
}

/// The number of the first seat with both address families.
const FIRST_DUAL: usize = 60_000;

impl Stage<'_> {
    fn more_seats(&mut self, wanted: usize) -> Result<(), Error> {
        while self.seats.len() < wanted {
            let seat = Seat::new(self.node, self.seats.len(), Stack::V4)?;
            self.seats.push(seat);
        }
        Ok(())
    }

    fn more_dual_seats(&mut self, wanted: usize) -> Result<(), Error> {
        while self.dual_seats.len() < wanted {
            let number = FIRST_DUAL + self.dual_seats.len();
            let seat = Seat::new(self.node, number, Stack::Dual)?;
            self.dual_seats.push(seat);
        }
        Ok(())
    }

    fn measure(
        &mut self,
        situation: Cell,
        entrants: &[Entrant<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<CellReport, Error> {
        self.more_seats(situation.pods)?;
        let mut told = |round: usize| {
            let (title, of) = (situation.title, situation.rounds);
            progress(&format!(
                "{title} ({} threads), round {}/{of}",
                situation.threads,
                round + 1
            ));
        };
        let entrants = self.order.invited(entrants);
        let measured = cell(self.node, &situation, &entrants, &self.seats, &mut told)?;
        Ok(CellReport {
            cell: situation,
            measured,
        })
    }

    fn dual(
        &mut self,
        entrants: &[Entrant<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<CellReport, Error> {
        self.more_dual_seats(1)?;
        let situation = self.order.extent.dual();
        let mut told = |round: usize| {
            progress(&format!("{}, round {}", situation.title, round + 1));
        };
        let entrants = self.order.invited(entrants);
        let measured = cell(
            self.node,
            &situation,
            &entrants,
            &self.dual_seats[..1],
            &mut told,
        )?;
        Ok(CellReport {
            cell: situation,
            measured,
        })
    }

    /// The same ADD on the node's own bridge and on a second one, and pods with a network on each
    /// of three, in turn.
    fn bridges(&mut self, progress: &mut dyn FnMut(&str)) -> Result<CellReport, Error> {
        const OTHERS: [&str; 2] = ["br-second", "br-third"];
        let own = self
            .node
            .vsctl(format!("get bridge {BRIDGE} datapath_type"));
        let datapath = own.trim();
        for other in OTHERS {
            self.node.vsctl(format!(
                "add-br {other} -- set bridge {other} datapath_type={datapath}"
            ));
        }
        let [second, third] = OTHERS;
        let on = |name, bridges: &[_]| Ok::<_, Error>(Podwire::new(self.agent)?.on(name, bridges));
        let subjects = [
            on("first bridge", &[BRIDGE])?,
            on("second bridge", &[second])?,
            on("three networks", &[BRIDGE, second, third])?,
        ];
        let entrants = subjects
            .each_ref()
            .map(|subject| Entrant { subject, every: 1 });
        let measured = self.measure(self.order.extent.bridges(), &entrants, progress);
        for other in OTHERS {
            self.node.vsctl(format!("del-br {other}"));
        }
        measured
    }

    /// Measures the three ways of sending the floor's messages in turn, and takes the fastest.
    fn choose_floor(&self, progress: &mut dyn FnMut(&str)) -> Result<(Floor, FloorWays), Error> {
        const ROUNDS: usize = 30;
        progress("the floor's three ways");
        let first = Floor::new(self.order.empty.clone(), Way::Batched, BRIDGE);
        let floors = Way::ALL.map(|way| first.with_way(way));
        let mut times = vec![Vec::new(); floors.len()];
        for round in 0..ROUNDS {
            for turn in 0..floors.len() {
                let number = (round + turn) % floors.len();
                let seats = &self.seats[..1];
                let (added, _) = batch(self.node, &floors[number], seats, 1, Verb::Add)?;
                times[number].extend(crate::bars::part(&added, NETLINK));
                batch(self.node, &floors[number], seats, 1, Verb::Del)?;
                settle(self.node)?;
            }
        }
        let medians: Vec<(Way, f64)> = floors
            .iter()
            .zip(times)
            .filter_map(|(floor, times)| Some((floor.way(), median(times)?)))
            .collect();
        let fastest = medians.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let way = fastest.map_or(Way::Batched, |(way, _)| *way);
        let ways = FloorWays {
            chosen: Some(way),
            messages: way.messages().to_vec(),
            medians,
        };
        Ok((first.with_way(way), ways))
    }

    /// Attaches more and more pods by podwire, and measures further ones beside them. All of them
    /// have both address families: what the kernel says by itself for IPv6 is a part of what a pod
    /// costs beside others.
    fn beside_ports(
        &mut self,
        entrants: &[Entrant<'_>],
        podwire: &Podwire<'_>,
        memory: &mut Memory,
        idle: &mut Option<crate::report::Idle>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<PortsLevel>, Error> {
        const AT_ONCE: usize = 16;
        let mut levels = Vec::new();
        let mut attached = 1;
        for &present in &self.order.present {
            progress(&format!("attaching {present} pods"));
            // The first seat is that of the pods that are measured.
            self.more_dual_seats(present + 1)?;
            let new = &self.dual_seats[attached..=present];
            batch(self.node, podwire, new, AT_ONCE, Verb::Add)?;
            attached = present + 1;
            settle(self.node)?;
            let resident = crate::cpu::memory(self.agent.pid(), "VmRSS")?;
            memory.agent.insert(present, resident);
            if present == 500 {
                memory.agent_with_500_pods = Some(resident);
                progress("an idle agent with 500 pods, for a minute");
                *idle = Some(profile::idle(self.node, self.agent, present)?);
            }
            let situation = Cell {
                keeps_flows: self.order.switch.keeps_flows,
                ..self.order.extent.beside_ports()
            };
            let mut told = |round: usize| {
                progress(&format!(
                    "beside {present} pods, round {}/{}",
                    round + 1,
                    situation.rounds
                ));
            };
            let entrants = self.order.invited(entrants);
            let measured = cell(
                self.node,
                &situation,
                &entrants,
                &self.dual_seats,
                &mut told,
            )?;
            progress(&format!("what ovs-vswitchd does beside {present} pods"));
            let switch = switch::work(
                self.node,
                podwire,
                &self.dual_seats[0],
                self.order.functions,
            )?;
            levels.push(PortsLevel {
                present,
                measured,
                switch,
            });
        }
        progress("detaching them");
        // Not all at once: ovs-vswitchd takes longer for 1000 than a fixture waits for it.
        for seats in self.dual_seats[1..attached].chunks(100) {
            batch(self.node, podwire, seats, AT_ONCE, Verb::Del)?;
            settle(self.node)?;
        }
        self.node.leftovers();
        Ok(levels)
    }
}
