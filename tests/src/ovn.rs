//! An OVN network of several machines: a central one with the databases and ovn-northd, and nodes
//! with ovn-controller.
//!
//! Each is a [`TestNode`], so that every daemon finds its usual paths and all of it ends with the
//! test. The underlay is a Linux bridge in the central machine's namespace. The kernel's geneve
//! sends its packets by the node's own address there. Userspace geneve sends them through an OVS
//! bridge that has the tunnel's address: on each node a netdev bridge `br-phy` holds its end.

mod controller;
mod counters;
mod host;
mod members;
mod pki;
mod secured;
mod tracer;
mod wired;

use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::Signal;
use serde_json::json;

pub use controller::LogicalPort;
pub use counters::{Run, Runs};
pub use host::Router;
pub use members::{Clustered, MEMBERS, Members, RELAYS};
pub use pki::TlsFiles;
pub use secured::{CHASSIS_REMOTE, COMMANDS, CONTROLLER_REMOTES, Keys};
pub use tracer::Tracer;
pub use wired::{BOTH_FAMILIES, door, primary_network};

use crate::failure::{OrFail, Step};
use crate::node::run_in;
use crate::node::{DAEMON_LIMIT, OVSDB_SOCKET};
use crate::ovsdb::Ovsdb;
use crate::process::Daemon;
use crate::watch::await_log;
use crate::words::Words as _;
use crate::{AgentOptions, Datapath, Leftovers, Place, TestNode, datapath};

/// Where OVN's daemons of one machine have their sockets and databases.
const RUN_DIR: &str = "/run/ovn";
const NORTHBOUND: &str = "/run/ovn/ovnnb_db.sock";
const SOUTHBOUND: &str = "/run/ovn/ovnsb_db.sock";
/// The central machine's address on the underlay; the nodes' follow it.
const CENTRAL_ADDRESS: &str = "172.31.0.1";

/// The MTU of pods: the underlay's 1500 bytes less geneve's headers over IPv4 with OVN's option.
pub const POD_MTU: u32 = 1400;

/// The machine with the northbound and southbound databases and ovn-northd.
#[derive(Debug)]
pub struct Central {
    northd: Mutex<Option<Daemon>>,
    /// Ended with the machine.
    databases: Mutex<Vec<Daemon>>,
    machine: TestNode,
}

/// A machine with Open vSwitch and ovn-controller.
#[derive(Debug)]
pub struct OvnNode {
    controller: Mutex<Option<Daemon>>,
    machine: TestNode,
    /// What its underlay subnet, which is then its own, is a link of.
    router: Option<Place>,
    /// The chassis' name, and the host's as OVN knows it.
    pub name: String,
    /// Counts the nodes from 1; a part of its addresses.
    pub number: u8,
}

impl Central {
    /// Starts the databases, empty, and ovn-northd.
    #[track_caller]
    pub fn start() -> Central {
        Central::start_with("")
    }

    /// The same, with the southbound database served by TLS too. The keys are made by ovs-pki(8),
    /// one for each end.
    #[track_caller]
    pub fn with_tls() -> (Central, TlsFiles) {
        let files = TlsFiles::make();
        let [key, certificate, ca] = files.of("ovnsb");
        let central = Central::start_with(&format!(
            "--remote=pssl:6643 --private-key={key} --certificate={certificate} --ca-cert={ca}"
        ));
        (central, files)
    }

    /// A central machine and a node with its switch.
    #[track_caller]
    pub fn with_node() -> (Central, OvnNode) {
        let central = Central::start();
        let node = central.node_with_switch("node-a", 1);
        (central, node)
    }

    /// A central machine and two nodes with their switches.
    #[track_caller]
    pub fn with_two_nodes() -> (Central, [OvnNode; 2]) {
        let central = Central::start();
        let nodes = [
            central.node_with_switch("node-a", 1),
            central.node_with_switch("node-b", 2),
        ];
        (central, nodes)
    }

    #[track_caller]
    fn node_with_switch(&self, name: &str, number: u8) -> OvnNode {
        let node = self.node(name, number);
        self.add_switch(&node);
        node
    }

    #[track_caller]
    fn start_with(flags: &str) -> Central {
        let machine = TestNode::new();
        make_run_dir(&machine);
        for name in ["nb", "sb"] {
            create_database(&machine, name);
        }
        let databases = serve_databases(&machine, flags);
        Central::with_databases(machine, vec![databases])
    }

    /// Has the `ovsdb-server` that is found now serve the databases.
    #[track_caller]
    pub fn restart_databases(&self) {
        let mut databases = lock(&self.databases);
        databases.clear();
        databases.push(serve_databases(&self.machine, ""));
    }

    /// Converts the databases while they are served, as members do that have a newer schema.
    #[track_caller]
    pub fn convert_databases(&self, schemas: &Path) {
        for (name, socket) in [("nb", NORTHBOUND), ("sb", SOUTHBOUND)] {
            let schema = schemas.join(format!("ovn-{name}.ovsschema"));
            let convert = format!("convert unix:{socket} {}", schema.display());
            self.machine.run("ovsdb-client", convert);
        }
    }

    /// A machine whose databases are served, and empty.
    #[track_caller]
    fn with_databases(machine: TestNode, databases: Vec<Daemon>) -> Central {
        // ovsdb-tool leaves the tables empty; northd and the controllers go by their only rows.
        let central = Central {
            northd: Mutex::new(None),
            databases: Mutex::new(databases),
            machine,
        };
        central
            .northbound()
            .transact(&[json!({"op": "insert", "table": "NB_Global", "row": {}})])
            .or_fail();
        central
            .southbound()
            .transact(&[json!({"op": "insert", "table": "SB_Global", "row": {}})])
            .or_fail();
        central.start_northd();
        central.lay_underlay();
        central
    }

    #[track_caller]
    fn lay_underlay(&self) {
        let run = |arguments: &str| self.machine.run("ip", arguments);
        run("link add underlay type bridge");
        run(&format!("address add {CENTRAL_ADDRESS}/24 dev underlay"));
        run("link set underlay up");
        // A userspace datapath takes no packet whose checksum is left to a device.
        self.machine.run("ethtool", "-K underlay tx off");
    }

    /// Whether OVN can mark packets by rows of QoS, which it can from 24.03 on.
    #[track_caller]
    pub fn has_marks() -> bool {
        let schema = std::fs::read_to_string("/usr/share/ovn/ovn-nb.ovsschema");
        let schema = schema.step(|| "read the northbound database's schema");
        schema.or_fail().contains(r#""mark""#)
    }

    /// Starts ovn-northd, which makes the southbound database's content from the northbound one's.
    #[track_caller]
    pub fn start_northd(&self) {
        self.start_northd_with(&[]);
    }

    /// The same, with more in its environment.
    #[track_caller]
    pub fn start_northd_with(&self, environment: &[(&str, &str)]) {
        let [northbound, southbound] = [NORTHBOUND, SOUTHBOUND].map(|it| format!("unix:{it}"));
        self.start_northd_by(&northbound, &southbound, environment);
    }

    /// The same, with the databases at these remotes.
    #[track_caller]
    fn start_northd_by(&self, northbound: &str, southbound: &str, environment: &[(&str, &str)]) {
        let mut command = Command::new("ovn-northd");
        command
            .envs(environment.iter().copied())
            .arg(format!("--ovnnb-db={northbound}"))
            .arg(format!("--ovnsb-db={southbound}"))
            .arg(format!("--pidfile={RUN_DIR}/ovn-northd.pid"))
            .arg("--no-chdir");
        let daemon = self
            .machine
            .start_daemon(&command, "ovn-northd", RUN_DIR)
            .or_fail();
        *lock(&self.northd) = Some(daemon);
    }

    /// Ends ovn-northd: the databases alone stay.
    pub fn end_northd(&self) {
        drop(lock(&self.northd).take());
    }

    /// The process ids of the databases' server and of ovn-northd.
    ///
    /// # Panics
    /// One of them does not run.
    #[track_caller]
    pub fn pids(&self) -> [u32; 2] {
        let databases = lock(&self.databases).first().map(Daemon::pid);
        let northd = lock(&self.northd).as_ref().map(Daemon::pid);
        match (databases, northd) {
            (Some(databases), Some(northd)) => [databases, northd],
            other => panic!("process ids of databases and ovn-northd: {other:?}"),
        }
    }

    /// A relay of the southbound database, on a socket beside that one's: the remote by which every
    /// process reaches it, and its process id. It ends with the machine, or before.
    #[track_caller]
    pub fn relay(&self) -> (String, u32) {
        const RELAY: &str = "/run/ovn/relay.sock";
        let mut command = Command::new("ovsdb-server");
        command
            .arg(format!("--remote=punix:{RELAY}"))
            .arg("--no-chdir")
            .env("OVS_RUNDIR", RUN_DIR)
            .arg(format!("relay:OVN_Southbound:unix:{SOUTHBOUND}"));
        let relay = self
            .machine
            .start_daemon(&command, "ovsdb-server", RUN_DIR)
            .or_fail();
        let pid = relay.pid();
        lock(&self.databases).push(relay);
        (self.local(RELAY), pid)
    }

    /// Ends the relay.
    pub fn end_relay(&self) {
        lock(&self.databases).truncate(1);
    }

    /// As [`Self::local_remote`], the northbound database's.
    pub fn local_northbound(&self) -> String {
        self.local(NORTHBOUND)
    }

    fn local(&self, socket: &str) -> String {
        let path = self.machine.path(socket).display().to_string();
        let own = format!("/proc/{}/", std::process::id());
        format!("unix:{}", path.replace("/proc/self/", &own))
    }

    /// The northbound database.
    pub fn northbound(&self) -> Ovsdb {
        Ovsdb::of(self.machine.path(NORTHBOUND), "OVN_Northbound")
    }

    /// The southbound database.
    pub fn southbound(&self) -> Ovsdb {
        Ovsdb::of(self.machine.path(SOUTHBOUND), "OVN_Southbound")
    }

    /// The southbound database's socket as every process on the real machine can open it, whatever
    /// its namespaces.
    pub fn local_remote(&self) -> String {
        self.local(SOUTHBOUND)
    }

    /// The machine.
    pub fn machine(&self) -> &TestNode {
        &self.machine
    }

    /// A machine with Open vSwitch on the underlay, and an ovn-controller that has joined the
    /// network.
    #[track_caller]
    pub fn node(&self, name: &str, number: u8) -> OvnNode {
        let node = self.node_without_controller(name, number);
        node.make_bridge();
        node.set_remote(&format!("tcp:{CENTRAL_ADDRESS}:6642"));
        node.start_controller();
        self.await_chassis(name);
        node
    }

    /// A machine with Open vSwitch on the underlay that knows of no OVN yet.
    #[track_caller]
    pub fn node_without_controller(&self, name: &str, number: u8) -> OvnNode {
        self.plugged(name, number, None)
    }

    #[track_caller]
    fn plugged(&self, name: &str, number: u8, router: Option<Place>) -> OvnNode {
        let machine = TestNode::with_ovs();
        make_run_dir(&machine);
        let node = OvnNode {
            controller: Mutex::new(None),
            machine,
            router,
            name: name.to_owned(),
            number,
        };
        self.plug(&node);
        node
    }

    /// Gives a node its end of the underlay, with the tunnel's address on it.
    #[track_caller]
    fn plug(&self, node: &OvnNode) {
        let port = format!("to-{}", node.name);
        let target = node.place().network_path();
        let far = node.router.as_ref().unwrap_or(self.machine.place());
        let run = |arguments: &str| run_in(far, "ip", arguments);
        run(&format!(
            "link add {port} type veth peer name eth0 netns {target}"
        ))
        .or_fail();
        if node.router.is_none() {
            run(&format!("link set {port} master underlay")).or_fail();
        }
        run(&format!("link set {port} up")).or_fail();
        run_in(far, "ethtool", format!("-K {port} tx off")).or_fail();
        node.run("ip", "link set eth0 up");
        match datapath() {
            Datapath::System => {}
            Datapath::Netdev => {
                node.vsctl(
                    "add-br br-phy -- add-port br-phy eth0 \
                     -- set bridge br-phy datapath_type=netdev fail_mode=standalone",
                );
            }
        }
        let holder = node.uplink();
        let address = format!("{}/24", node.tunnel_address());
        node.run("ip", format!("address add {address} dev {holder}"));
        node.run("ip", format!("link set {holder} up"));
    }

    /// Waits until an ovn-controller has joined the network under this name.
    #[track_caller]
    pub fn await_chassis(&self, name: &str) {
        self.southbound()
            .wait(
                "Chassis",
                json!([["name", "==", name]]),
                "!=",
                &["name"],
                json!([]),
            )
            .or_fail();
    }
}

impl OvnNode {
    /// How to start the agent here: in OVN mode, and not to wait for long where a test wants it to
    /// fail.
    pub fn agent_options() -> AgentOptions {
        let mtu = POD_MTU.to_string();
        AgentOptions::default().with(format!("--mode ovn --mtu {mtu}"))
    }

    /// The link that has the node's address on the underlay.
    pub fn uplink(&self) -> &'static str {
        match datapath() {
            Datapath::System => "eth0",
            Datapath::Netdev => "br-phy",
        }
    }

    /// The node's address on the underlay.
    pub fn tunnel_address(&self) -> String {
        let subnet = self.router.as_ref().map_or(0, |_| self.number);
        format!("172.31.{subnet}.{}", 1 + u16::from(self.number))
    }

    /// Tells ovn-controller, by the database, where the southbound one is and who it is there.
    #[track_caller]
    pub fn set_remote(&self, remote: &str) {
        self.ovsdb()
            .transact(&[json!({
                "op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["external_ids",
                "insert", ["map", [
                    ["system-id", self.name],
                    ["hostname", self.name],
                    ["ovn-remote", remote],
                    ["ovn-encap-type", "geneve"],
                    ["ovn-encap-ip", self.tunnel_address()],
                    ["ovn-bridge", "br-int"],
                    ["ovn-bridge-datapath-type", datapath().name()],
                ]]]],
            })])
            .or_fail();
    }

    /// Makes br-int as ovn-controller would, unless it is there already. One that has to make it
    /// looks for its OpenFlow socket before ovs-vswitchd has that, and then pauses for a second.
    #[track_caller]
    pub fn make_bridge(&self) {
        self.vsctl(format!(
            "--may-exist add-br br-int \
             -- set bridge br-int datapath_type={} fail_mode=secure",
            datapath().name()
        ));
    }

    /// Sets a key of the switch's own external_ids.
    #[track_caller]
    pub fn set_key(&self, key: &str, value: &str) {
        self.vsctl(format!(
            "--no-wait set open_vswitch . 'external_ids:{key}={value}'"
        ));
    }

    /// Starts ovn-controller, which makes br-int, and waits for that.
    #[track_caller]
    pub fn start_controller(&self) {
        self.start_controller_with(&[]);
    }

    /// The same, with more in its environment.
    #[track_caller]
    pub fn start_controller_with(&self, environment: &[(&str, &str)]) {
        let mut command = Command::new("ovn-controller");
        command
            .envs(environment.iter().copied())
            .arg(format!("unix:{OVSDB_SOCKET}"))
            .arg(format!("--pidfile={RUN_DIR}/ovn-controller.pid"))
            .args(["--overwrite-pidfile", "--no-chdir"]);
        let daemon = self
            .machine
            .start_daemon(&command, "ovn-controller", RUN_DIR)
            .or_fail();
        *lock(&self.controller) = Some(daemon);
        self.await_bridge()
    }

    /// Waits until a sandbox' Interface row says that OVN has installed its port, or until it no
    /// longer does.
    #[track_caller]
    pub fn await_installed(&self, container: &str, installed: bool) {
        let is_installed = json!(["map", [["sandbox", container], ["ovn-installed", "true"]]]);
        let until = if installed { "!=" } else { "==" };
        let conditions = json!([["external_ids", "includes", is_installed]]);
        self.ovsdb()
            .wait("Interface", conditions, until, &["name"], json!([]))
            .or_fail();
    }

    /// Waits until br-int is there.
    #[track_caller]
    fn await_bridge(&self) {
        self.ovsdb()
            .wait(
                "Bridge",
                json!([["name", "==", "br-int"]]),
                "!=",
                &["name"],
                json!([]),
            )
            .or_fail();
    }

    /// Stops ovn-controller with a signal and waits for its end. SIGTERM makes it leave the
    /// network, with its flows; after SIGKILL all stays as it is, its pidfile too.
    #[track_caller]
    pub fn end_controller(&self, signal: Signal) {
        if let Some(daemon) = lock(&self.controller).take() {
            daemon.end_by(signal, DAEMON_LIMIT).or_fail();
        }
    }

    /// Waits until ovn-controller has logged so many times that it is connected to a remote.
    #[track_caller]
    pub fn await_connected(&self, remote: &str, times: usize) {
        let controller = lock(&self.controller);
        let Some(daemon) = controller.as_ref() else {
            panic!("ovn-controller does not run on {}", self.name);
        };
        let text = format!("{remote}: connected");
        let look = |log: &str| {
            let has_enough = log.matches(&text).count() >= times;
            has_enough.then_some(()).ok_or_else(|| log.to_owned())
        };
        let awaited = format!("{times} times {text:?} in ovn-controller's log");
        await_log(daemon, DAEMON_LIMIT, &awaited, look).or_fail();
    }

    /// Has ovn-controller leave the network, as its service's stop does: with its tunnels' ports.
    #[track_caller]
    pub fn leave_network(&self) {
        self.exit_controller("exit");
        // A command without effect, but ovs-vsctl waits until ovs-vswitchd has followed the
        // database.
        self.vsctl("init");
    }

    /// Ends ovn-controller so that the next one takes over its chassis, tunnels and flows.
    #[track_caller]
    pub fn hand_over_controller(&self) {
        self.exit_controller("exit --restart");
    }

    #[track_caller]
    fn exit_controller(&self, request: &str) {
        let Some(daemon) = lock(&self.controller).take() else {
            return;
        };
        let socket = format!("{RUN_DIR}/ovn-controller.{}.ctl", daemon.pid());
        self.run("ovn-appctl", format!("-t {socket} {request}"));
        daemon.await_end(DAEMON_LIMIT).or_fail();
    }

    /// Sends ovn-controller a signal, such as SIGSTOP.
    #[track_caller]
    pub fn signal_controller(&self, signal: Signal) {
        lock(&self.controller)
            .as_ref()
            .map_or(Ok(()), |daemon| daemon.signal(signal))
            .or_fail();
    }

    /// What podwire has left here: what makes up the underlay and the tunnels is not its own.
    #[track_caller]
    pub fn leftovers(&self) -> Leftovers {
        let mut left = self.machine.leftovers();
        left.links.retain(|name| name != "eth0");
        // ovn-controller has a QoS row of its own; ours bears the sandbox.
        let qos = self.ovsdb_rows("QoS").into_iter();
        let foreign: Vec<_> = qos
            .filter(|row| row["external_ids"].get("sandbox").is_none())
            .map(|row| format!("QoS {}", row["_uuid"].as_str().unwrap_or_default()))
            .collect();
        left.rows.retain(|row| {
            let name = row.split(' ').nth(1).unwrap_or_default();
            name != "eth0" && !name.starts_with("ovn-") && !foreign.contains(row)
        });
        left
    }
}

impl Deref for OvnNode {
    type Target = TestNode;

    fn deref(&self) -> &TestNode {
        &self.machine
    }
}

#[track_caller]
fn serve_databases(machine: &TestNode, flags: &str) -> Daemon {
    let mut command = Command::new("ovsdb-server");
    for (name, socket) in [("nb", NORTHBOUND), ("sb", SOUTHBOUND)] {
        command.args([file_of(name), format!("--remote=punix:{socket}")]);
    }
    command.args(["--remote=ptcp:6642:[::]", "--pidfile", "--no-chdir"]);
    command.args(flags.words()).env("OVS_RUNDIR", RUN_DIR);
    let started = machine.start_daemon(&command, "ovsdb-server", RUN_DIR);
    started.or_fail()
}

fn file_of(name: &str) -> String {
    format!("{RUN_DIR}/ovn{name}_db.db")
}

/// Makes an empty database of OVN's, `nb` or `sb`, and returns its file.
#[track_caller]
fn create_database(machine: &TestNode, name: &str) -> String {
    let database = file_of(name);
    let schema = format!("/usr/share/ovn/ovn-{name}.ovsschema");
    machine.run("ovsdb-tool", format!("create {database} {schema}"));
    database
}

#[track_caller]
fn make_run_dir(machine: &TestNode) {
    let directory = machine.path(RUN_DIR);
    std::fs::create_dir(&directory)
        .step(|| format!("make {}", directory.display()))
        .or_fail();
}

fn lock<T>(held: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
