//! What an ADD and a DEL make ovs-vswitchd do: turns of its main loop that reconfigure, requests to
//! the kernel, flow translations. Counts, so they are the same on any machine under any load.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use podwire_tests::TestNode;
use serde::Serialize;

use crate::error::Error;
use crate::perf::{Functions, Perf};
use crate::profile::Strace;
use crate::run::{Verb, await_idle, batch, settle};
use crate::seat::Seat;
use crate::subject::Subject;

/// Operations that are counted.
const COUNTED: usize = 5;
/// Operations that strace sees; they take long.
const TRACED: usize = 2;
/// Each of its threads adds what it has counted to the totals once a second
/// (COVERAGE_CLEAR_INTERVAL).
const COUNTERS_LAG: Duration = Duration::from_millis(1100);

/// Requests for a link's state, which strace shows and no counter counts.
const GETLINK: &str = "RTM_GETLINK";
/// The same as strace shows it of a socket whose protocol it does not know: the message's length
/// and its type, 18 (linux/rtnetlink.h).
const GETLINK_BYTES: &str = r"\0\0\0\22\0";
/// Flows that send what they match to many ports.
const FLOODS: &str = "floods";
/// More ports than a flow of one destination has: the port, the local one and a copy of each.
const FEW_PORTS: usize = 4;

/// Means per operation, by counter.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SwitchWork {
    /// Of an ADD.
    pub add: BTreeMap<String, f64>,
    /// Of a DEL.
    pub del: BTreeMap<String, f64>,
    /// Milliseconds of its processor time for an ADD, by function with what it called; empty unless
    /// asked for.
    pub add_functions: Functions,
    /// The same of a DEL.
    pub del_functions: Functions,
}

/// Attaches and detaches one pod some times, and counts.
///
/// # Errors
/// An operation failed, or strace or perf could not be run.
pub fn work(
    node: &TestNode,
    subject: &dyn Subject,
    seat: &Seat<'_>,
    by_function: bool,
) -> Result<SwitchWork, Error> {
    let mut work = SwitchWork::default();
    let vswitchd = vswitchd(node)?;
    let seats = std::slice::from_ref(seat);
    for _ in 0..COUNTED {
        for (verb, means) in [(Verb::Add, &mut work.add), (Verb::Del, &mut work.del)] {
            node.appctl("revalidator/purge");
            let before = counters(node)?;
            batch(node, subject, seats, 1, verb)?;
            await_idle(node)?;
            let flows = node.appctl("dpctl/dump-flows");
            *means.entry(FLOODS.to_owned()).or_default() += floods(&flows) as f64 / COUNTED as f64;
            for (name, after) in counters(node)? {
                let before = before.get(&name).copied().unwrap_or_default();
                *means.entry(name).or_default() += (after - before) as f64 / COUNTED as f64;
            }
        }
    }
    if by_function {
        [work.add_functions, work.del_functions] = functions(node, subject, seats, 1, COUNTED)?;
    }
    // strace slows the switch down, so that turns which would merge do not: it sees operations of
    // its own.
    for _ in 0..TRACED {
        for (verb, means) in [(Verb::Add, &mut work.add), (Verb::Del, &mut work.del)] {
            settle(node)?;
            let strace = Strace::attach(node, vswitchd)?;
            batch(node, subject, seats, 1, verb)?;
            await_idle(node)?;
            let record = strace.detach(node)?;
            let requests = record.lines().filter(|line| asks_for_link(line)).count();
            *means.entry(GETLINK.to_owned()).or_default() += requests as f64 / TRACED as f64;
        }
    }
    Ok(work)
}

/// Milliseconds of ovs-vswitchd's processor time for an ADD and for a DEL, by function with what it
/// called.
///
/// # Errors
/// An operation failed, or perf could not be run.
pub fn functions(
    node: &TestNode,
    subject: &dyn Subject,
    seats: &[Seat<'_>],
    threads: usize,
    rounds: usize,
) -> Result<[Functions; 2], Error> {
    let vswitchd = vswitchd(node)?;
    let mut add = Perf::attach(node, vswitchd, "add")?;
    let mut del = Perf::attach(node, vswitchd, "del")?;
    for _ in 0..rounds {
        for (verb, perf) in [(Verb::Add, &mut add), (Verb::Del, &mut del)] {
            settle(node)?;
            perf.during(|| {
                batch(node, subject, seats, threads, verb)?;
                await_idle(node)
            })?;
        }
    }
    let operations = (rounds * seats.len()) as f64;
    let mut means = [add.detach(node)?, del.detach(node)?];
    for time in means.iter_mut().flat_map(|it| it.values_mut()) {
        *time /= operations;
    }
    Ok(means)
}

/// The pid of ovs-vswitchd.
fn vswitchd(node: &TestNode) -> Result<u32, Error> {
    let daemons = crate::cpu::daemons(node)?;
    let vswitchd = daemons.iter().find(|(name, _)| name == "ovs-vswitchd");
    Ok(vswitchd.map_or(0, |(_, pid)| pid.unsigned_abs()))
}

/// What has been counted until now, by the names of `coverage/show` (OVS, lib/coverage.h). There is
/// no event to wait for.
fn counters(node: &TestNode) -> Result<BTreeMap<String, u64>, Error> {
    thread::sleep(COUNTERS_LAG);
    // A thread that slept adds when it wakes.
    await_idle(node)?;
    Ok(totals(&node.appctl("coverage/show")))
}

/// Whether a line of strace's record is a request for a link's state.
fn asks_for_link(line: &str) -> bool {
    line.contains("send") && (line.contains(GETLINK) || line.contains(GETLINK_BYTES))
}

/// How many flows of `dpctl/dump-flows` send a packet to more than a few ports.
fn floods(flows: &str) -> usize {
    let actions = flows
        .lines()
        .filter_map(|line| line.rsplit_once("actions:"));
    let outputs = actions.map(|(_, actions)| {
        let ports = actions
            .split(',')
            .filter(|it| it.trim().parse::<u32>().is_ok());
        ports.count()
    });
    outputs.filter(|outputs| *outputs > FEW_PORTS).count()
}

/// Each counter's total; one that has never been counted is not on the page.
fn totals(page: &str) -> BTreeMap<String, u64> {
    let counter = |line: &str| {
        let name = line.split_whitespace().next()?;
        let total = line.rsplit_once("total:")?.1.trim().parse().ok()?;
        Some((name.to_owned(), total))
    };
    page.lines().filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_a_link_is_known_by_name_and_by_its_bytes() {
        let bytes = r#"(19, {msg_iov=[{iov_base="0\0\0\0\22\0\1\08\0\0\0+", iov_len=48}], 0) = 48"#;
        assert!(asks_for_link(&format!("7 sendmsg{bytes}")));
        assert!(!asks_for_link(&format!("7 recvmsg{bytes}")));
        assert!(asks_for_link(
            "7 sendto(45, [{nlmsg_len=20, nlmsg_type=RTM_GETLINK, nlmsg_flags=0x301"
        ));
    }

    #[test]
    fn a_flow_to_many_ports_is_a_flood() {
        let flows = "in_port(3),eth_type(0x0806), packets:0, bytes:0, used:never, \
                     actions:1,2,4,5,6,7\nin_port(3),eth_type(0x0800), packets:2, bytes:196, \
                     used:0.4s, actions:ct(zone=1),2\nin_port(4), actions:drop\n";
        assert_eq!(floods(flows), 1);
    }

    #[test]
    fn each_counter_of_the_page_is_read() {
        let page = "Event coverage, avg rate over last: 5 seconds, last minute, last hour,  \
                    hash=5dd1dbc4:\nbridge_reconfigure         0.0/sec     0.050/sec        \
                    0.0008/sec   total: 3\nxlate_actions              0.2/sec     0.117/sec        \
                    0.0019/sec   total: 12\n115 events never hit\n";
        let expected = [("bridge_reconfigure", 3), ("xlate_actions", 12)];
        assert_eq!(
            totals(page),
            expected
                .map(|(name, total)| (name.to_owned(), total))
                .into()
        );
    }
}
