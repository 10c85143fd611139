//! A node: its own namespaces, its own Open vSwitch, and what pods left behind on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::failure::{Failure, OrFail, Step, tail};
use crate::ovsdb::{self, Ovsdb, Row};
use crate::place::{Keeper, Place, RESOLV_CONF};
use crate::process::{self, Daemon};
use crate::watch::await_seen;
use crate::words::Words;
use crate::{Agent, AgentOptions, Pod};

/// How long a daemon may take to come up or go. Ample: what it bounds takes milliseconds.
pub(crate) const DAEMON_LIMIT: Duration = Duration::from_secs(15);

/// How long a tool such as ip or ping may take.
const TOOL_LIMIT: Duration = Duration::from_secs(30);

pub(crate) const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const DATABASE: &str = "/run/openvswitch/conf.db";

/// The database's socket, at the same path on every node.
pub(crate) const OVSDB_SOCKET: &str = "/run/openvswitch/db.sock";

/// A machine as far as its programs can tell; see the crate's documentation.
///
/// Dropped during a panic it prints the logs of its daemons first.
#[derive(Debug)]
pub struct TestNode {
    // Fields drop in this order: the daemons, then the thread that spawned them.
    vswitchd: Mutex<Option<Daemon>>,
    ovsdb_server: Mutex<Option<Daemon>>,
    keeper: Keeper,
}

impl TestNode {
    /// A node on which nothing runs yet.
    #[expect(clippy::new_without_default, reason = "it starts programs")]
    #[track_caller]
    pub fn new() -> TestNode {
        let keeper = Keeper::start().or_fail();
        let node = TestNode {
            vswitchd: Mutex::new(None),
            ovsdb_server: Mutex::new(None),
            keeper,
        };
        node.run("ip", "link set lo up");
        node
    }

    /// A node with a running Open vSwitch that has no bridge yet.
    #[track_caller]
    pub fn with_ovs() -> TestNode {
        let node = TestNode::new();
        node.start_ovsdb_server();
        node.start_vswitchd();
        node
    }

    /// Where the node's programs run.
    pub fn place(&self) -> &Place {
        self.keeper.place()
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// A path of the node, such as `/run/podwire/agent.sock`, as this process can open it from any
    /// thread.
    pub fn path(&self, path: &str) -> PathBuf {
        self.keeper.outside(path)
    }

    /// Has the node ask this name server, and no other.
    #[track_caller]
    pub fn name_server(&self, address: &str) {
        // Where the machine's is a link to a file in /run, that is not there.
        let script = r#"real=$(readlink -m /etc/resolv.conf)
            case $real in /run/*) mkdir -p "$(dirname "$real")"; echo "$1" >"$real";; esac
            echo "$1" >"$0""#;
        let line = format!("nameserver {address}");
        self.run("sh", ["-c", script, RESOLV_CONF, &line]);
    }

    /// Runs a program on the node and returns its standard output.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: impl Words) -> String {
        run_in(self.place(), program, arguments).or_fail()
    }

    /// Removes a directory that a program makes again at once, so that `rm` may find it no longer
    /// empty.
    #[track_caller]
    pub fn remove_under(&self, directory: &str) {
        self.run("sh", ["-c", &format!("rm -r {directory}; true")]);
    }

    /// Starts ovsdb-server, on the database that is there or a new one, and waits until it listens.
    #[track_caller]
    pub fn start_ovsdb_server(&self) {
        let fresh = !self.path(DATABASE).exists();
        if fresh {
            self.run("ovsdb-tool", format!("create {DATABASE} {SCHEMA}"));
        }
        let mut command = Command::new("ovsdb-server");
        command.args([
            DATABASE,
            &format!("--remote=punix:{OVSDB_SOCKET}"),
            "--pidfile",
            "--no-chdir",
            "-vconsole:info",
        ]);
        // Its main() opens the remotes before the control socket.
        let daemon = self.start_ovs_daemon(&command, "ovsdb-server").or_fail();
        *lock(&self.ovsdb_server) = Some(daemon);
        if fresh {
            // As `ovs-vsctl init` does: the one row that ovs-vswitchd waits for.
            self.ovsdb()
                .transact(&[json!({"op": "insert", "table": "Open_vSwitch", "row": {}})])
                .or_fail();
        }
    }

    /// Starts ovs-vswitchd and waits until it has taken up the configuration. ovsdb-server must
    /// run.
    #[track_caller]
    pub fn start_vswitchd(&self) {
        self.start_vswitchd_with(&[]);
    }

    /// The same, with further flags of ovs-vswitchd(8).
    #[track_caller]
    pub fn start_vswitchd_with(&self, flags: &[String]) {
        let mut command = Command::new("ovs-vswitchd");
        command.args([
            &format!("unix:{OVSDB_SOCKET}"),
            "--pidfile",
            "--no-chdir",
            "-vconsole:info",
        ]);
        command.args(flags);
        let daemon = self.start_ovs_daemon(&command, "ovs-vswitchd").or_fail();
        *lock(&self.vswitchd) = Some(daemon);
        self.await_vswitchd();
    }

    /// Runs a command of ovs-vswitchd, as `ovs-appctl` does, and returns what it printed.
    #[track_caller]
    pub fn appctl(&self, arguments: impl Words) -> String {
        let words = arguments.words();
        let pid = lock(&self.vswitchd).as_ref().map_or(0, Daemon::pid);
        let socket = self.path(&format!("/run/openvswitch/ovs-vswitchd.{pid}.ctl"));
        let request = json!({"method": words[0], "params": words[1..], "id": 0});
        let reply = ovsdb::ask(&socket, &request).or_fail();
        match reply["result"].as_str() {
            Some(printed) if reply["error"].is_null() => printed.to_owned(),
            _ => panic!("ovs-vswitchd's answer to {request}: {reply}"),
        }
    }

    /// Waits until ovs-vswitchd has compared every cached flow with its tables as they are now.
    #[track_caller]
    pub fn await_revalidated(&self) {
        // The first one ends a round that may have begun before the tables changed
        // (ofproto-dpif-upcall.c, `upcall_unixctl_dump_wait`).
        for _ in 0..2 {
            self.appctl("revalidator/wait");
        }
    }

    /// Waits until ovs-vswitchd has applied what the database says now.
    #[track_caller]
    pub fn await_vswitchd(&self) {
        let database = self.ovsdb();
        let results = database.transact(&[
            json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["cur_cfg"]}),
            json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg",
                "+=", 1]]}),
        ]).or_fail();
        let before = &results[0]["rows"][0]["cur_cfg"];
        let rows = json!([{"cur_cfg": before}]);
        database
            .wait("Open_vSwitch", json!([]), "!=", &["cur_cfg"], rows)
            .or_fail();
    }

    /// Stops ovsdb-server in good order (SIGTERM).
    #[track_caller]
    pub fn stop_ovsdb_server(&self) {
        end(&self.ovsdb_server, Signal::SIGTERM).or_fail();
    }

    /// Kills ovsdb-server; its socket file stays behind.
    #[track_caller]
    pub fn kill_ovsdb_server(&self) {
        end(&self.ovsdb_server, Signal::SIGKILL).or_fail();
    }

    /// Stops ovs-vswitchd in good order (SIGTERM).
    #[track_caller]
    pub fn stop_vswitchd(&self) {
        end(&self.vswitchd, Signal::SIGTERM).or_fail();
    }

    /// Kills ovs-vswitchd; its pid file and control socket stay behind.
    #[track_caller]
    pub fn kill_vswitchd(&self) {
        end(&self.vswitchd, Signal::SIGKILL).or_fail();
    }

    /// Sends a signal, such as SIGSTOP, to ovs-vswitchd.
    #[track_caller]
    pub fn signal_vswitchd(&self, signal: Signal) {
        lock(&self.vswitchd)
            .as_ref()
            .map_or(Ok(()), |daemon| daemon.signal(signal))
            .or_fail();
    }

    /// Sends a signal, such as SIGSTOP, to ovsdb-server.
    #[track_caller]
    pub fn signal_ovsdb_server(&self, signal: Signal) {
        lock(&self.ovsdb_server)
            .as_ref()
            .map_or(Ok(()), |daemon| daemon.signal(signal))
            .or_fail();
    }

    /// Kills ovsdb-server and takes the database away: the next start makes an empty one.
    #[track_caller]
    pub fn lose_database(&self) {
        self.kill_ovsdb_server();
        std::fs::remove_file(self.path(DATABASE))
            .step(|| "remove the database")
            .or_fail();
    }

    /// Waits until ovs-vswitchd has given the interface of this name an ofport.
    pub fn await_ofport(&self, interface: &str) -> Result<(), Failure> {
        let limit = u64::try_from(DAEMON_LIMIT.as_millis()).unwrap_or(u64::MAX);
        let of_name = json!([["name", "==", interface]]);
        self.ovsdb().transact(&[json!({
            "op": "wait", "timeout": limit, "table": "Interface", "where": of_name,
            "columns": ["name"], "until": "==", "rows": [{"name": interface}],
        })])?;
        self.ovsdb().transact(&[json!({
            "op": "wait", "timeout": limit, "table": "Interface", "where": of_name,
            "columns": ["ofport"], "until": "!=", "rows": [{"ofport": ["set", []]}],
        })])?;
        Ok(())
    }

    /// Waits until Open vSwitch has a port for a container, or has none any more.
    #[track_caller]
    pub fn await_port(&self, container: &str, present: bool) {
        let of_container = json!([[
            "external_ids",
            "includes",
            ["map", [["sandbox", container]]]
        ]]);
        let until = if present { "!=" } else { "==" };
        let none = json!([]);
        self.ovsdb()
            .wait("Interface", of_container, until, &["name"], none)
            .or_fail();
    }

    /// Waits until ovs-vswitchd has given a sandbox' port an ofport, and returns the Interface row.
    #[track_caller]
    pub fn await_ofport_of(&self, container: &str) -> Row {
        let conditions = json!([
            [
                "external_ids",
                "includes",
                ["map", [["sandbox", container]]]
            ],
            ["ofport", ">", 0],
        ]);
        self.ovsdb()
            .wait("Interface", conditions, "!=", &["name"], json!([]))
            .or_fail();
        let row = self.interface_of(container);
        row.ok_or_else(|| Failure::Unlike {
            object: format!("the Interface row of {container}"),
            expected: "still there".into(),
            seen: "gone".into(),
        })
        .or_fail()
    }

    /// The node's database.
    pub fn ovsdb(&self) -> Ovsdb {
        Ovsdb::at(self.path(OVSDB_SOCKET))
    }

    /// All rows of a table of the node's database.
    #[track_caller]
    pub fn ovsdb_rows(&self, table: &str) -> Vec<Row> {
        self.ovsdb().rows(table).or_fail()
    }

    /// The Interface row of a container's first interface, known by its external_ids.
    #[track_caller]
    pub fn interface_of(&self, container: &str) -> Option<Row> {
        let mut rows = self.ovsdb_rows("Interface").into_iter();
        rows.find(|row| row["external_ids"]["sandbox"] == container)
    }

    /// One of the external_ids of the Interface row of a container's interface.
    #[track_caller]
    pub fn external_id(&self, container: &str, pod_ifname: &str, key: &str) -> Option<String> {
        let rows = self.ovsdb_rows("Interface");
        let mut ids = rows.iter().map(|row| &row["external_ids"]);
        let ids = ids.find(|ids| ids["sandbox"] == container && ids["pod-if-name"] == pod_ifname);
        ids.and_then(|ids| Some(ids[key].as_str()?.to_owned()))
    }

    /// Runs `ovs-vsctl`, which waits for ovs-vswitchd to apply a change unless told not to, and
    /// returns its output.
    #[track_caller]
    pub fn vsctl(&self, arguments: impl Words) -> String {
        self.run("ovs-vsctl", arguments.after("--timeout=10"))
    }

    /// Starts the agent and waits until it says that it is ready.
    #[track_caller]
    pub fn start_agent(&self, options: &AgentOptions) -> Agent<'_> {
        Agent::start(self, options).or_fail()
    }

    /// A pod sandbox with an empty network namespace, of the pod `tests/<name>`.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Pod<'_> {
        Pod::new(self, name).or_fail()
    }

    /// The names of the node's daemons and of everything that they have started, sorted.
    #[track_caller]
    pub fn processes(&self) -> Vec<String> {
        let processes = process::with_environment(&self.process_mark()).or_fail();
        processes.into_iter().map(|process| process.name).collect()
    }

    /// `VARIABLE=value`, in the environment of every process of this node and of no other.
    pub fn process_mark(&self) -> String {
        let (variable, value) = self.keeper.mark();
        format!("{variable}={value}")
    }

    fn start_ovs_daemon(&self, command: &Command, name: &str) -> Result<Daemon, Failure> {
        self.start_daemon(command, name, "/run/openvswitch")
    }

    /// Starts a daemon, and waits for nothing.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start_bare(&self, command: &Command, name: &str) -> Result<Daemon, Failure> {
        let log = self.path(&format!("/run/log/{name}.log"));
        Daemon::start(&self.keeper, command, &log)
    }

    /// Starts a daemon of Open vSwitch or OVN whose control socket is in `rundir`, and waits for
    /// that.
    pub(crate) fn start_daemon(
        &self,
        command: &Command,
        name: &str,
        rundir: &str,
    ) -> Result<Daemon, Failure> {
        let daemon = self.start_bare(command, name)?;
        let control = self.path(&format!("{rundir}/{name}.{}.ctl", daemon.pid()));
        let look = || {
            let log = || std::fs::read_to_string(daemon.log()).unwrap_or_default();
            let found = control.exists().then_some(());
            found.ok_or_else(|| format!("its log says:\n{}", log()))
        };
        let awaited = format!("the control socket of {name}");
        await_seen(&self.path(rundir), &daemon, DAEMON_LIMIT, &awaited, look)?;
        Ok(daemon)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

impl TestNode {
    /// Copies the node's logs into a directory of the machine.
    pub fn keep_logs(&self, directory: &Path) -> Result<(), Failure> {
        let logs = self.path("/run/log");
        for entry in std::fs::read_dir(&logs)
            .step(|| format!("list {}", logs.display()))?
            .flatten()
        {
            std::fs::copy(entry.path(), directory.join(entry.file_name())).step(|| "copy a log")?;
        }
        Ok(())
    }

    /// The last lines of every log of the node.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.path("/run/log"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let name = entry.file_name();
            text.push_str(&format!("---- the end of {}\n", name.to_string_lossy()));
            text.push_str(&tail(&log));
        }
        text
    }
}

/// Runs a program in a place and returns its standard output.
///
/// # Errors
/// It fails, or does not end in time.
pub fn run_in(place: &Place, program: &str, arguments: impl Words) -> Result<String, Failure> {
    let arguments = arguments.words();
    let mut command = Command::new(program);
    command.args(&arguments);
    let command = process::bound_to_parent(&command);
    let finished = place.run(|| process::finish(command, b"", TOOL_LIMIT))?;
    finished.output(&format!("{program} {}", arguments.join(" ")))
}

fn end(daemon: &Mutex<Option<Daemon>>, signal: Signal) -> Result<(), Failure> {
    match lock(daemon).take() {
        Some(daemon) => daemon.end_by(signal, DAEMON_LIMIT).map(drop),
        None => Ok(()),
    }
}

fn lock(daemon: &Mutex<Option<Daemon>>) -> MutexGuard<'_, Option<Daemon>> {
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}
