//! `make soak DURATION=<seconds>`: random ADD, DEL, CHECK and GC of hundreds of pods, sixteen at a time, while the agent, the
//! plugin, ovsdb-server and ovs-vswitchd are killed at random.
//!
//! A verb may fail with a code that says "again" while something is dead. What may not be is judged at the end, when all is
//! up again: a living pod without its port or its traffic, or anything left of one that has gone.

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
    let node = TestNode::with_ovs()?;
    let options = SUBNETS
        .iter()
        .fold(AgentOptions::default(), |options, subnet| {
            options.subnet(subnet)
        });
    let agent = node.start_agent(&options)?;
    println!("{PODS} pods, {AT_A_TIME} at a time, for {duration:?}");
    let tally = Tally::default();
    let storm = Storm::new(&node, &tally, PODS)?;
    let until = Instant::now() + duration;
    let agent = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|_| scope.spawn(|| storm.work(until)))
            .collect();
        let agent = storm.kill_at_random(agent, until);
        for worker in workers {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        agent
    })?;
    let mut wrong = storm.judge_living(&agent)?;
    wrong.extend(storm.remove_all()?);
    let leftovers = node.leftovers()?;
    if !leftovers.is_empty() {
        wrong.push(format!("left behind: {leftovers}"));
    }
    let spooled = std::fs::read_dir(node.path("/run/podwire/spool"))
        .step(|| "list the spool")?
        .count();
    if spooled > 0 {
        wrong.push(format!("{spooled} DELs are still in the spool"));
    }
    agent.stop()?;
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
