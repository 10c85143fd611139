//! `make soak DURATION=<seconds>`: random ADD, DEL, CHECK and GC of hundreds of pods, sixteen at a
//! time, some shaped, some with a container id that was used before, while the agent, the plugin,
//! ovsdb-server and ovs-vswitchd are killed or hang and ports are removed by hand, at random.
//!
//! A verb may fail with a code that says "again" while something is dead. After each phase, when
//! all is up again, every living pod must answer a ping of another pod; at the end nothing may be
//! left of those that have gone, in any table of Open vSwitch.

mod storm;
mod tally;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use podwire_tests::{AgentOptions, Failure, Step, TestNode};

use storm::Storm;
use tally::Tally;

/// Sandboxes that are worked on at the same time.
const AT_A_TIME: usize = 16;
/// Pods, of which about half live at any time.
const PODS: usize = 240;
/// Storms, each followed by a look at every living pod.
const PHASES: u32 = 4;
/// The tables of Open vSwitch whose rows nothing else keeps alive (vswitch.ovsschema, `isRoot`),
/// and those of ports.
const TABLES: [&str; 9] = [
    "AutoAttach",
    "Bridge",
    "Flow_Sample_Collector_Set",
    "Interface",
    "Manager",
    "Mirror",
    "Port",
    "QoS",
    "Queue",
];
/// Room for every pod in each of its sandboxes that may still be held.
const SUBNETS: [&str; 2] = ["10.9.0.0/20", "fd09::/64"];

fn main() -> ExitCode {
    let seconds = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 60,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => {
            eprintln!("podwire-soak: expected a number of seconds");
            return ExitCode::FAILURE;
        }
    };
    match soak(Duration::from_secs(seconds)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("podwire-soak: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything was as it must be.
fn soak(duration: Duration) -> Result<bool, Failure> {
    let node = TestNode::with_ovs();
    let options = SUBNETS
        .iter()
        .fold(AgentOptions::default(), |options, subnet| {
            options.subnet(subnet)
        });
    let mut agent = node.start_agent(&options);
    let before = rows(&node)?;
    println!("{PODS} pods, {AT_A_TIME} at a time, for {duration:?}");
    let tally = Tally::default();
    let storm = Storm::new(&node, &tally, PODS)?;
    let mut wrong = Vec::new();
    for phase in 1..=PHASES {
        let until = Instant::now() + duration / PHASES;
        agent = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_A_TIME)
                .map(|_| scope.spawn(|| storm.work(until)))
                .collect();
            let agent = storm.break_at_random(agent, until);
            for worker in workers {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            agent
        })?;
        let found = storm.judge_living(&agent)?;
        wrong.extend(
            found
                .into_iter()
                .map(|what| format!("phase {phase}: {what}")),
        );
    }
    wrong.extend(storm.remove_all()?);
    let after = rows(&node)?;
    if after != before {
        wrong.push(format!("rows: {after:?} instead of {before:?}"));
    }
    let leftovers = node.leftovers();
    if !leftovers.is_empty() {
        wrong.push(format!("left behind: {leftovers}"));
    }
    let spooled = std::fs::read_dir(node.path("/run/podwire/spool"))
        .step(|| "list the spool")?
        .count();
    if spooled > 0 {
        wrong.push(format!("{spooled} DELs are still in the spool"));
    }
    agent.stop();
    print!("{tally}");
    for problem in &wrong {
        println!("WRONG  {problem}");
    }
    if !wrong.is_empty() {
        let logs = std::env::temp_dir();
        node.keep_logs(&logs)?;
        println!("logs are in {}", logs.display());
    }
    Ok(wrong.is_empty())
}

/// How many rows each table has.
fn rows(node: &TestNode) -> Result<Vec<(&'static str, usize)>, Failure> {
    let count = |table| Ok((table, node.ovsdb_rows(table).len()));
    TABLES.into_iter().map(count).collect()
}
