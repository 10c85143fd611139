//! What is not a time: the plugin's peak memory, the system calls of an ADD, and what an idle agent
//! does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_tests::{Agent, TestNode, plugin_binary};

use crate::cpu::memory;
use crate::error::{Error, Step};
use crate::report::Idle;
use crate::run::{Verb, batch, settle};
use crate::seat::Seat;
use crate::subject::Podwire;

/// ADDs whose system calls are counted.
const TRACED: usize = 20;
/// How long an idle agent is watched.
const IDLE: Duration = Duration::from_secs(60);

/// VmHWM of the plugin in an ADD, in bytes, when it has sent its request; an agent that never
/// answers holds it there. (ru_maxrss would be that of the process that forked it.)
///
/// # Errors
/// It could not be run.
pub fn plugin_peak(node: &TestNode, seat: &Seat<'_>) -> Result<u64, Error> {
    const SOCKET: &str = "/run/bench-agent.sock";
    let listener = node
        .place()
        .run(|| UnixListener::bind(SOCKET))
        .step(|| format!("listen on {SOCKET}"))?;
    let mut conf = podwire_tests::conf();
    conf["runtimeConfig"] =
        serde_json::json!({"io.kubernetes.cri.pod-annotations": seat.pod.annotations});
    conf["agentSocket"] = SOCKET.into();
    let (input, mut fill) = std::io::pipe().step(|| "make a pipe")?;
    std::io::Write::write_all(&mut fill, conf.to_string().as_bytes()).step(|| "fill a pipe")?;
    drop(fill);
    let mut command = Command::new(plugin_binary());
    command
        .envs(seat.pod.environment("ADD"))
        .stdin(Stdio::from(input))
        .stdout(Stdio::null());
    let mut child = node
        .place()
        .run(|| command.spawn())
        .step(|| "start podwire-cni")?;
    let (mut stream, _) = listener.accept().step(|| "await podwire-cni")?;
    let mut first = [0];
    stream.read_exact(&mut first).step(|| "await a request")?;
    let peak = memory(child.id(), "VmHWM");
    child.kill().step(|| "end podwire-cni")?;
    child.wait().step(|| "wait for podwire-cni")?;
    peak
}

/// How many system calls one ADD takes, in the agent and in the plugin.
///
/// # Errors
/// strace could not be run.
pub fn system_calls(
    node: &TestNode,
    agent: &Agent<'_>,
    podwire: &Podwire<'_>,
    seat: &Seat<'_>,
) -> Result<BTreeMap<String, f64>, Error> {
    let seats = std::slice::from_ref(seat);
    let mut agents = 0;
    for _ in 0..TRACED {
        let strace = Strace::attach(node, agent.pid())?;
        batch(node, podwire, seats, 1, Verb::Add)?;
        agents += returned_calls(&strace.detach(node)?).values().sum::<u64>();
        batch(node, podwire, seats, 1, Verb::Del)?;
        settle(node)?;
    }
    let mut calls = BTreeMap::new();
    calls.insert("agent".to_owned(), agents as f64 / TRACED as f64);
    Ok(calls)
}

/// What the agent does while nothing is asked of it.
///
/// # Errors
/// strace could not be run.
pub fn idle(node: &TestNode, agent: &Agent<'_>, pods: usize) -> Result<Idle, Error> {
    await_closed(node, agent.pid())?;
    let strace = Strace::attach(node, agent.pid())?;
    // The measure is what happens in this time, so there is no event to wait for.
    thread::sleep(IDLE);
    let calls = returned_calls(&strace.detach(node)?);
    let beyond_keepalive = beyond_keepalive(&calls);
    Ok(Idle {
        seconds: IDLE.as_secs_f64(),
        pods,
        calls,
        beyond_keepalive,
    })
}

/// Waits until the agent has closed what the last ADDs had open: a packet socket takes an RCU grace
/// period, one after the other.
fn await_closed(node: &TestNode, pid: u32) -> Result<(), Error> {
    let path = format!("/proc/{pid}/fd");
    let open = || {
        let list = std::fs::read_dir(&path).step(|| format!("list {path}"))?;
        Ok::<_, Error>(list.count())
    };
    let mut before = open()?;
    loop {
        // It waits for a grace period of its own.
        settle(node)?;
        let now = open()?;
        if now == before {
            return Ok(());
        }
        before = now;
    }
}

/// The system calls that OVSDB's keepalives do not explain. One keepalive, sent by either side, is
/// one `sendto` of ours, and around it the wake-ups of a timer, a socket and at most two threads;
/// who wakes for anything else makes other calls, or more of them than the sends account for.
fn beyond_keepalive(calls: &BTreeMap<String, u64>) -> u64 {
    const CALLS_OF_ONE: u64 = 12;
    const OF_KEEPALIVE: [&str; 7] = [
        "epoll_wait",
        "recvfrom",
        "sendto",
        "read",
        "write",
        "futex",
        "restart_syscall",
    ];
    let count = |wanted: bool| -> u64 {
        calls
            .iter()
            .filter(|(name, _)| OF_KEEPALIVE.contains(&name.as_str()) == wanted)
            .map(|(_, count)| count)
            .sum()
    };
    let sent = calls.get("sendto").copied().unwrap_or_default();
    count(false) + count(true).saturating_sub(sent * CALLS_OF_ONE)
}

/// strace on all threads of a process.
pub(crate) struct Strace {
    child: Child,
    listener: JoinHandle<()>,
}

impl Strace {
    const RECORD: &str = "/run/strace";

    /// Attaches to a process of a node.
    ///
    /// # Errors
    /// strace could not be run.
    pub(crate) fn attach(node: &TestNode, pid: u32) -> Result<Self, Error> {
        let mut command = Command::new("strace");
        command
            .args(["-f", "-o", Self::RECORD, "-p", &pid.to_string()])
            .stderr(Stdio::piped());
        let mut child = node
            .place()
            .run(|| command.spawn())
            .step(|| "start strace")?;
        let errors = child.stderr.take();
        let mut messages = errors
            .into_iter()
            .flat_map(|errors| BufReader::new(errors).lines());
        let attached = messages.next();
        if !matches!(&attached, Some(Ok(line)) if line.contains("attached")) {
            let said = std::io::Error::other(format!("{attached:?}"));
            return Err(said).step(|| format!("attach strace to {pid}"));
        }
        // It says so of every new thread too, and would end if nobody listened.
        let listener = thread::spawn(move || messages.for_each(drop));
        Ok(Self { child, listener })
    }

    /// Detaches; returns the record, one system call a line.
    ///
    /// # Errors
    /// strace could not be ended, or its record not read.
    pub(crate) fn detach(mut self, node: &TestNode) -> Result<String, Error> {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap_or(i32::MAX));
        kill(pid, Signal::SIGINT).step(|| "end strace")?;
        self.child.wait().step(|| "wait for strace")?;
        // It ends when strace's standard error does; a panic in it would be a bug of ours alone.
        let _ = self.listener.join();
        let record = node.path(Self::RECORD);
        std::fs::read_to_string(&record).step(|| "read strace's record")
    }
}

/// The calls of a record that returned, by name.
fn returned_calls(record: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for name in record.lines().filter_map(returned_call) {
        *calls.entry(name.to_owned()).or_default() += 1;
    }
    calls
}

/// The name of the call that a line of strace's record shows returning; those cut off by the detach
/// (`<unfinished ...>`, `<detached ...>`) did not.
fn returned_call(line: &str) -> Option<&str> {
    let (_, event) = line.split_once(' ')?;
    let event = event.trim_start();
    if event.ends_with("<unfinished ...>") || event.ends_with("<detached ...>") {
        return None;
    }
    match event.strip_prefix("<... ") {
        Some(resumed) => resumed.split_whitespace().next(),
        None => event.split_once('(').map(|(name, _)| name),
    }
    .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_polls_is_told_from_one_that_answers_keepalives() {
        let calls = |calls: &[(&str, u64)]| {
            calls
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        let quiet = calls(&[("epoll_wait", 24), ("recvfrom", 24), ("sendto", 12)]);
        assert_eq!(beyond_keepalive(&quiet), 0);
        let polling = calls(&[("epoll_wait", 600), ("sendto", 12)]);
        assert_eq!(beyond_keepalive(&polling), 612 - 144);
        assert_eq!(beyond_keepalive(&calls(&[("openat", 2)])), 2);
    }

    #[test]
    fn a_call_counts_once_and_only_when_it_returns() {
        assert_eq!(returned_call("7 read(3, \"\", 1) = 0"), Some("read"));
        assert_eq!(returned_call("7 read(3,  <unfinished ...>"), None);
        assert_eq!(
            returned_call("7 <... read resumed>\"\", 1) = 0"),
            Some("read")
        );
        assert_eq!(returned_call("7 epoll_wait(3,  <detached ...>"), None);
        assert_eq!(returned_call("7 +++ exited with 0 +++"), None);
    }
}
