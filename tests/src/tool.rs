//! The tools of `podwire` as a person at a shell of the node runs them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::failure::{OrFail, Step};
use crate::process::{Finished, finish};
use crate::words::Words;
use crate::{TestNode, agent_binary};

/// How long a tool may take: longer than each of its own deadlines.
const LIMIT: Duration = Duration::from_secs(60);

impl TestNode {
    /// Runs `podwire` on the node, in a terminal of no size and no colours.
    #[track_caller]
    pub fn podwire(&self, arguments: impl Words) -> Finished {
        let mut command = Command::new(agent_binary());
        command.args(arguments.words());
        self.place().run(|| finish(command, b"", LIMIT)).or_fail()
    }

    /// [`TestNode::podwire`] that must print JSON, and with which exit code it ended.
    #[track_caller]
    pub fn podwire_json(&self, arguments: impl Words) -> (Option<i32>, Value) {
        let done = self.podwire(arguments);
        let json = serde_json::from_str(&done.stdout);
        let json = json.unwrap_or_else(|error| panic!("not JSON ({error}): {done:?}"));
        (done.status.code(), json)
    }

    /// Runs a line of shell on the node, where `podwire` is the one under test.
    #[track_caller]
    pub fn shell(&self, line: &str) -> Finished {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir("/");
        let binary = agent_binary();
        let directory = binary.parent().map(|it| it.display().to_string());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", directory.unwrap_or_default()));
        self.place().run(|| finish(command, b"", LIMIT)).or_fail()
    }

    /// Makes a pod's pair anew by the same names and addresses, and its row in the same turn of
    /// ovs-vswitchd's main loop: the switch keeps its socket on the old link, and says that all is
    /// well. `shell` runs a line in which $H is the host end and $N the pod's namespace.
    #[track_caller]
    pub fn deafen_port(&self, container: &str, shell: impl FnOnce(&str)) {
        let row = self
            .interface_of(container)
            .expect("a wired pod has its row");
        let ids = row["external_ids"].as_object().expect("ids are a map");
        let ids: Vec<String> = ids
            .iter()
            .map(|(key, value)| format!("'external_ids:\"{key}\"={value}'"))
            .collect();
        self.signal_vswitchd(Signal::SIGSTOP);
        shell(&format!(
            "HM=$(cat /sys/class/net/$H/address)
         inside() {{ nsenter --net=$N \"$@\"; }}
         PM=$(inside ip -o link show eth0 | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/')
         A=$(inside ip -o addr show eth0 scope global | awk '{{print $4}}')
         R=$(inside ip route show default; inside ip -6 route show default)
         ovs-vsctl --no-wait del-port $H -- add-port br-int $H -- set interface $H {}
         ip link del $H
         ip link add $H address $HM mtu 1500 type veth peer name eth0 netns $N address $PM mtu 1500
         ip link set $H up
         inside ip link set eth0 up
         inside ethtool -K eth0 tx off
         for a in $A; do inside ip addr add $a dev eth0; done
         echo \"$R\" | sed 's/ metric.*//' | while read route; do inside ip route add $route; done",
            ids.join(" ")
        ));
        self.signal_vswitchd(Signal::SIGCONT);
        self.await_ofport_of(container);
    }

    /// Starts `podwire` on the node and goes on reading what it prints.
    #[track_caller]
    pub fn podwire_live(&self, arguments: impl Words) -> Live {
        let mut command = Command::new(agent_binary());
        command
            .args(arguments.words())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = self
            .place()
            .run(|| command.spawn())
            .step(|| "start podwire")
            .or_fail();
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take();
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|it| BufReader::new(it).lines());
            for line in lines.map_while(Result::ok) {
                // The one who reads may have seen enough.
                let _ = sender.send(line);
            }
        });
        Live { child, lines }
    }
}

/// A tool that runs on. Dropping it kills it.
#[derive(Debug)]
pub struct Live {
    child: Child,
    lines: Receiver<String>,
}

impl Live {
    /// Waits for a line that holds all of these words, and returns it; lines before it are passed
    /// over.
    #[track_caller]
    pub fn await_line(&self, words: &[&str]) -> String {
        let began = Instant::now();
        let mut seen = Vec::new();
        loop {
            match self
                .lines
                .recv_timeout(LIMIT.saturating_sub(began.elapsed()))
            {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) => seen.push(line),
                Err(end) => panic!("waited for a line with {words:?}: {end}; instead: {seen:#?}"),
            }
        }
    }

    /// Asks it to end (SIGTERM).
    #[track_caller]
    pub fn terminate(&self) {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, Signal::SIGTERM).step(|| "end podwire").or_fail();
    }

    /// Waits until it has ended.
    #[track_caller]
    pub fn await_end(mut self) -> ExitStatus {
        // Its output ends with it.
        while self.lines.recv_timeout(LIMIT).is_ok() {}
        self.child.wait().step(|| "wait for podwire").or_fail()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
