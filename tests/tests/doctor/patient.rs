//! A node, and who follows the doctor's advice on it.
//!
//! Each command is run by a shell as it is printed. What a node namespace has no systemd, kubelet
//! or kernel module for is a program of that name, first in PATH, that has this process do what the
//! real one would.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use nix::sys::stat::Mode;
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, agent_binary, plugin_binary};
use serde_json::Value;

pub(crate) const CONF_DIR: &str = "/run/cni/net.d";
pub(crate) const BIN_DIR: &str = "/run/cni/bin";
const STAND_INS: &str = "/run/stand-ins";
/// A finding may hide behind another, but not many deep.
const ROUNDS: usize = 6;

/// Asks, and ends as it is told.
const STAND_IN: &str = r#"#!/bin/sh
name=${0##*/}
if [ "$name" = podwire ] && [ "$1" != agent ]; then exec /run/stand-ins/real/podwire "$@"; fi
echo "$name $*" > /run/stand-ins/asked
read -r status < /run/stand-ins/answer
exit "$status"
"#;

/// One thing that the doctor says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: String,
    pub(crate) wrong: bool,
    pub(crate) what: String,
    pub(crate) fix: Vec<String>,
    pub(crate) look: Vec<String>,
}

/// A node with the runtime's directories.
pub(crate) struct Patient<'node> {
    pub(crate) node: &'node TestNode,
    pub(crate) agent: Option<Agent<'node>>,
    pub(crate) options: AgentOptions,
    /// The pods that kubelet has on the node.
    pub(crate) pods: RefCell<Vec<Pod<'node>>>,
    /// What others do for a command that names them: true when they did it.
    pub(crate) others: Box<dyn Fn(&str) -> bool + 'node>,
    /// Whether something starts the agent again when it ends.
    pub(crate) is_supervised: bool,
    /// What a reader fills in for the words in capitals.
    pub(crate) fill_in: Vec<(&'static str, String)>,
    pub(crate) followed: Vec<String>,
    asked: BufReader<File>,
    answer: File,
}

impl<'node> Patient<'node> {
    /// With the plugin installed, no configuration, and no agent.
    pub(crate) fn new(node: &'node TestNode, options: AgentOptions) -> Patient<'node> {
        for directory in [CONF_DIR, BIN_DIR, "/run/stand-ins/real"] {
            fs::create_dir_all(node.path(directory)).unwrap();
        }
        let plugin = node.path(&format!("{BIN_DIR}/podwire-cni"));
        fs::copy(plugin_binary(), plugin).unwrap();
        // As a package has them: the plugin beside the binary.
        for (name, binary) in [
            ("podwire", agent_binary()),
            ("podwire-cni", plugin_binary()),
        ] {
            let place = format!("{STAND_INS}/real/{name}");
            File::create(node.path(&place)).unwrap();
            node.run("mount", format!("--bind {} {place}", binary.display()));
        }
        for name in ["systemctl", "kubectl", "podman", "modprobe", "podwire"] {
            let path = node.path(&format!("{STAND_INS}/{name}"));
            fs::write(&path, STAND_IN).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let pipe = |name: &str| {
            let path = node.path(&format!("{STAND_INS}/{name}"));
            nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
            // Both ends, so that it neither waits for another one nor ends.
            File::options().read(true).write(true).open(path).unwrap()
        };
        Patient {
            node,
            agent: None,
            options,
            pods: RefCell::default(),
            others: Box::new(|_| false),
            is_supervised: false,
            fill_in: Vec::new(),
            followed: Vec::new(),
            asked: BufReader::new(pipe("asked")),
            answer: pipe("answer"),
        }
    }

    /// With a configuration and a running agent as well: nothing is wrong with it.
    pub(crate) fn healthy(node: &'node TestNode, options: AgentOptions) -> Patient<'node> {
        let mut patient = Self::new(node, options);
        patient.write_conf("10-podwire.conf", r#"{"name":"pods","type":"podwire-cni"}"#);
        patient.start_agent();
        patient.is_healthy();
        patient
    }

    pub(crate) fn write_conf(&self, name: &str, text: &str) {
        fs::write(self.node.path(&format!("{CONF_DIR}/{name}")), text).unwrap();
    }

    /// Starts the agent; one that somebody killed has ended before.
    pub(crate) fn start_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.await_end();
        }
        self.agent = Some(self.node.start_agent(&self.options));
    }

    pub(crate) fn stop_agent(&mut self) {
        self.agent.take().unwrap().stop();
    }

    /// A pod that kubelet wires; its host link's name.
    pub(crate) fn wire(&self, name: &str) -> String {
        let pod = self.node.pod(name);
        pod.add().success();
        self.is_run(pod)
    }

    pub(crate) fn is_run(&self, pod: Pod<'node>) -> String {
        let link = pod.host_link().to_owned();
        self.pods.borrow_mut().push(pod);
        link
    }

    /// The doctor's exit code, and what it says.
    pub(crate) fn ask(&self) -> (Option<i32>, Vec<Finding>) {
        let mut arguments = vec!["doctor", "-o", "json"];
        arguments.extend(["--conf-dir", CONF_DIR, "--bin-dir", BIN_DIR]);
        let (code, examined) = self.node.podwire_json(&arguments);
        let text = |it: &Value| it.as_str().unwrap().to_owned();
        let list = |it: &Value| it.as_array().unwrap().iter().map(text).collect();
        let findings = examined.as_array().unwrap().iter();
        let findings = findings.flat_map(|it| it["findings"].as_array().unwrap());
        let findings = findings.map(|it| Finding {
            kind: text(&it["kind"]),
            wrong: it["wrong"] == true,
            what: text(&it["what"]),
            fix: list(&it["fix"]),
            look: list(&it["look"]),
        });
        (code, findings.collect())
    }

    pub(crate) fn is_healthy(&self) {
        let (code, findings) = self.ask();
        let wrong: Vec<Finding> = findings.into_iter().filter(|it| it.wrong).collect();
        assert_eq!((code, wrong), (Some(0), vec![]));
    }

    /// Follows the doctor until nothing is wrong. At first it must have said these kinds and words,
    /// in this order.
    pub(crate) fn healthy_after(&mut self, said: &[&str]) {
        for round in 0..ROUNDS {
            let (code, mut findings) = self.ask();
            findings.retain(|it| it.wrong);
            if round == 0 {
                let all = format!("{findings:#?}");
                let mut rest = &*all;
                for word in said {
                    let found = rest.split_once(word);
                    rest = found
                        .unwrap_or_else(|| panic!("{word:?} is not in {all}"))
                        .1;
                }
            }
            assert_eq!(code, Some(i32::from(!findings.is_empty())));
            let Some(first) = findings.first() else {
                return;
            };
            assert!(!first.fix.is_empty(), "nothing fixes {first:#?}");
            for command in first.fix.clone() {
                self.follow(&command);
            }
        }
        let left = self.ask().1;
        panic!("still wrong after {:#?}: {left:#?}", self.followed);
    }

    /// For what no command of this node fixes: it is told, and no command is promised to.
    pub(crate) fn complains_of(&self, kind: &str, words: &str) {
        let findings = self.ask().1;
        let mut of_kind = findings.iter().filter(|it| it.kind == kind);
        let found = of_kind.find(|it| it.what.contains(words));
        let found = found.unwrap_or_else(|| panic!("no {kind} {words:?} in {findings:#?}"));
        assert!(found.fix.is_empty(), "{found:#?}");
    }

    /// For what hinders no pod: it is told, and gone once its commands were run.
    pub(crate) fn follows_note(&mut self, kind: &str, words: &str) {
        let (code, findings) = self.ask();
        let found = findings.iter().find(|it| it.kind == kind);
        let found = found.unwrap_or_else(|| panic!("no {kind} in {findings:#?}"));
        assert!(!found.wrong && found.what.contains(words), "{found:#?}");
        assert!(!found.fix.is_empty(), "nothing fixes {found:#?}");
        assert_eq!(code, Some(0), "{findings:#?}");
        for command in found.fix.clone() {
            self.follow(&command);
        }
        let left = self.ask().1;
        assert!(left.iter().all(|it| it.kind != kind), "{left:#?}");
    }

    /// Runs a command as it is printed, and what it asks others for.
    fn follow(&mut self, printed: &str) {
        self.followed.push(printed.to_owned());
        let mut command = printed.to_owned();
        for (word, text) in &self.fill_in {
            command = command.replace(word, text);
        }
        let script = format!("PATH={STAND_INS}:$PATH\n{command}\nstatus=$?\nwait\nexit $status");
        let node = self.node;
        let shell = thread::spawn({
            let place = node.place().clone();
            move || {
                let mut shell = std::process::Command::new("sh");
                shell.args(["-c", &script]).current_dir("/");
                let limit = std::time::Duration::from_secs(60);
                let run = || podwire_tests::process::finish(shell, b"", limit);
                let done = place.run(run).unwrap();
                let end = || fs::write("/run/stand-ins/asked", "ended\n");
                place.run(end).unwrap();
                done
            }
        });
        loop {
            let mut line = String::new();
            self.asked.read_line(&mut line).unwrap();
            match line.trim() {
                "ended" => break,
                asked => {
                    let status = self.perform(asked);
                    writeln!(self.answer, "{status}").unwrap();
                }
            }
        }
        let done = shell.join().unwrap();
        assert!(done.status.success(), "{command}: {}", done.stderr);
        if self.is_supervised && command.starts_with("kill ") {
            self.start_agent();
        }
        if command.contains("podwire.toml") {
            let agent = self.agent.as_ref().unwrap();
            agent.await_log("changed: ");
        }
        if command.contains("datapath_type") {
            // The switch makes the bridge anew, and with it the socket that takes its flows.
            let agent = self.agent.as_ref().unwrap();
            agent.await_ready(true);
        }
    }

    /// What systemd, kubelet, podman and the kernel do; their exit code.
    fn perform(&mut self, asked: &str) -> u8 {
        let words: Vec<&str> = asked.split(' ').collect();
        match words[..] {
            ["systemctl", "restart", "openvswitch-switch"] => {
                self.node.kill_vswitchd();
                self.node.kill_ovsdb_server();
                self.node.start_ovsdb_server();
                self.node.start_vswitchd();
                if let Some(agent) = &self.agent {
                    agent.await_ready(true);
                }
            }
            ["systemctl", "start", "podwire"] => self.start_agent(),
            ["systemctl", "restart", "podwire"] => {
                if let Some(agent) = self.agent.take() {
                    agent.kill();
                }
                self.start_agent();
            }
            ["podwire", "agent"] => self.start_agent(),
            _ if (self.others)(asked) => {}
            ["kubectl", "-n", _, "delete", "pod", name] | ["podman", "restart", name] => {
                self.replace(name);
            }
            _ => return 1,
        }
        0
    }

    /// The pod goes, and its controller makes another one.
    fn replace(&self, name: &str) {
        let mut pods = self.pods.borrow_mut();
        let index = pods.iter().position(|pod| pod.name == name).unwrap();
        let old = pods.remove(index);
        old.del().success();
        let new = old.another_sandbox();
        new.add().success();
        pods.push(new);
    }

    /// A pod is wired and let go again.
    pub(crate) fn serves(&self) {
        let pod = self.node.pod("probe");
        pod.add().success();
        pod.del().success();
    }
}
