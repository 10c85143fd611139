//! An OVN network of several machines: a central one with the databases and ovn-northd, and nodes
//! with ovn-controller.
//!
//! Each is a [`TestNode`], so that every daemon finds its usual paths and all of it ends with the
//! test. The underlay is a Linux bridge in the central machine's namespace. The kernel's geneve
//! sends its packets by the node's own address there. Userspace geneve sends them through an OVS
//! bridge that has the tunnel's address: on each node a netdev bridge `br-phy` holds its end.

mod controller;
mod host;
mod pki;

use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::Signal;
use serde_json::json;

pub use controller::LogicalPort;
pub use host::Router;
pub use pki::TlsFiles;

use crate::failure::{Failure, Step};
use crate::node::run_in;
use crate::node::{DAEMON_LIMIT, OVSDB_SOCKET};
use crate::ovsdb::Ovsdb;
use crate::process::Daemon;
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
    databases: Daemon,
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
    pub fn start() -> Result<Central, Failure> {
        Central::start_with(&[])
    }

    /// The same, with the southbound database served by TLS too. The keys are made by ovs-pki(8),
    /// one for each end.
    pub fn with_tls() -> Result<(Central, TlsFiles), Failure> {
        let files = TlsFiles::make()?;
        let mut flags: Vec<String> = vec!["--remote=pssl:6643".to_owned()];
        flags.extend(files.flags("ovnsb"));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Ok((Central::start_with(&flags)?, files))
    }

    /// A central machine and a node with its switch.
    pub fn with_node() -> Result<(Central, OvnNode), Failure> {
        let central = Central::start()?;
        let node = central.node_with_switch("node-a", 1)?;
        Ok((central, node))
    }

    /// A central machine and two nodes with their switches.
    pub fn with_two_nodes() -> Result<(Central, [OvnNode; 2]), Failure> {
        let central = Central::start()?;
        let nodes = [
            central.node_with_switch("node-a", 1)?,
            central.node_with_switch("node-b", 2)?,
        ];
        Ok((central, nodes))
    }

    fn node_with_switch(&self, name: &str, number: u8) -> Result<OvnNode, Failure> {
        let node = self.node(name, number)?;
        self.add_switch(&node)?;
        Ok(node)
    }

    fn start_with(flags: &[&str]) -> Result<Central, Failure> {
        let machine = TestNode::new()?;
        make_run_dir(&machine)?;
        let mut command = Command::new("ovsdb-server");
        for (name, socket) in [("nb", NORTHBOUND), ("sb", SOUTHBOUND)] {
            let database = format!("{RUN_DIR}/ovn{name}_db.db");
            let schema = format!("/usr/share/ovn/ovn-{name}.ovsschema");
            machine.run("ovsdb-tool", &["create", &database, &schema])?;
            command.args([database, format!("--remote=punix:{socket}")]);
        }
        command.args(["--remote=ptcp:6642:0.0.0.0", "--pidfile", "--no-chdir"]);
        command.args(flags).env("OVS_RUNDIR", RUN_DIR);
        let databases = machine.start_daemon(&command, "ovsdb-server", RUN_DIR)?;
        // ovsdb-tool leaves the tables empty; northd and the controllers go by their only rows.
        let central = Central {
            northd: Mutex::new(None),
            databases,
            machine,
        };
        central
            .northbound()
            .transact(&[json!({"op": "insert", "table": "NB_Global", "row": {}})])?;
        central
            .southbound()
            .transact(&[json!({"op": "insert", "table": "SB_Global", "row": {}})])?;
        central.start_northd()?;
        let run = |arguments: &[&str]| central.machine.run("ip", arguments);
        run(&["link", "add", "underlay", "type", "bridge"])?;
        run(&[
            "address",
            "add",
            &format!("{CENTRAL_ADDRESS}/24"),
            "dev",
            "underlay",
        ])?;
        run(&["link", "set", "underlay", "up"])?;
        // A userspace datapath takes no packet whose checksum is left to a device.
        central
            .machine
            .run("ethtool", &["-K", "underlay", "tx", "off"])?;
        Ok(central)
    }

    /// Starts ovn-northd, which makes the southbound database's content from the northbound one's.
    pub fn start_northd(&self) -> Result<(), Failure> {
        let mut command = Command::new("ovn-northd");
        command
            .arg(format!("--ovnnb-db=unix:{NORTHBOUND}"))
            .arg(format!("--ovnsb-db=unix:{SOUTHBOUND}"))
            .arg(format!("--pidfile={RUN_DIR}/ovn-northd.pid"))
            .arg("--no-chdir");
        let daemon = self.machine.start_daemon(&command, "ovn-northd", RUN_DIR)?;
        *lock(&self.northd) = Some(daemon);
        Ok(())
    }

    /// Ends ovn-northd: the databases alone stay.
    pub fn end_northd(&self) {
        drop(lock(&self.northd).take());
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

    /// Stops (SIGSTOP) or resumes (SIGCONT) the databases.
    pub fn signal_databases(&self, signal: Signal) -> Result<(), Failure> {
        self.databases.signal(signal)
    }

    /// A machine with Open vSwitch on the underlay, and an ovn-controller that has joined the
    /// network.
    pub fn node(&self, name: &str, number: u8) -> Result<OvnNode, Failure> {
        let node = self.node_without_controller(name, number)?;
        node.make_bridge()?;
        node.set_remote(&format!("tcp:{CENTRAL_ADDRESS}:6642"))?;
        node.start_controller()?;
        self.await_chassis(name)?;
        Ok(node)
    }

    /// A machine with Open vSwitch on the underlay that knows of no OVN yet.
    pub fn node_without_controller(&self, name: &str, number: u8) -> Result<OvnNode, Failure> {
        self.plugged(name, number, None)
    }

    fn plugged(&self, name: &str, number: u8, router: Option<Place>) -> Result<OvnNode, Failure> {
        let machine = TestNode::with_ovs()?;
        make_run_dir(&machine)?;
        let node = OvnNode {
            controller: Mutex::new(None),
            machine,
            router,
            name: name.to_owned(),
            number,
        };
        self.plug(&node)?;
        Ok(node)
    }

    /// Gives a node its end of the underlay, with the tunnel's address on it.
    fn plug(&self, node: &OvnNode) -> Result<(), Failure> {
        let port = format!("to-{}", node.name);
        let target = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            node.place().network().as_raw_fd()
        );
        let far = node.router.as_ref().unwrap_or(self.machine.place());
        let run = |arguments: &[&str]| run_in(far, "ip", arguments);
        run(&[
            "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &target,
        ])?;
        if node.router.is_none() {
            run(&["link", "set", &port, "master", "underlay"])?;
        }
        run(&["link", "set", &port, "up"])?;
        run_in(far, "ethtool", &["-K", &port, "tx", "off"])?;
        node.run("ip", &["link", "set", "eth0", "up"])?;
        match datapath() {
            Datapath::System => {}
            Datapath::Netdev => {
                let bridge = ["datapath_type=netdev", "fail_mode=standalone"];
                let command = ["add-br", "br-phy", "--", "set", "bridge", "br-phy"];
                let port = ["--", "add-port", "br-phy", "eth0"];
                node.vsctl(&[&command[..], &bridge, &port].concat())?;
            }
        }
        let holder = node.uplink();
        let address = format!("{}/24", node.tunnel_address());
        node.run("ip", &["address", "add", &address, "dev", holder])?;
        node.run("ip", &["link", "set", holder, "up"])?;
        Ok(())
    }

    /// Waits until an ovn-controller has joined the network under this name.
    pub fn await_chassis(&self, name: &str) -> Result<(), Failure> {
        self.southbound().wait(
            "Chassis",
            json!([["name", "==", name]]),
            "!=",
            &["name"],
            json!([]),
        )
    }
}

impl OvnNode {
    /// How to start the agent here: in OVN mode, and not to wait for long where a test wants it to
    /// fail.
    pub fn agent_options() -> AgentOptions {
        let mtu = POD_MTU.to_string();
        AgentOptions::default().with(["--mode", "ovn", "--mtu", &mtu])
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
    pub fn set_remote(&self, remote: &str) -> Result<(), Failure> {
        self.ovsdb().transact(&[json!({
            "op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["external_ids", "insert", ["map", [
                ["system-id", self.name],
                ["hostname", self.name],
                ["ovn-remote", remote],
                ["ovn-encap-type", "geneve"],
                ["ovn-encap-ip", self.tunnel_address()],
                ["ovn-bridge", "br-int"],
                ["ovn-bridge-datapath-type", datapath().name()],
            ]]]],
        })])?;
        Ok(())
    }

    /// Makes br-int as ovn-controller would, unless it is there already. One that has to make it
    /// looks for its OpenFlow socket before ovs-vswitchd has that, and then pauses for a second.
    pub fn make_bridge(&self) -> Result<(), Failure> {
        let kind = format!("datapath_type={}", datapath().name());
        let command = [
            "--may-exist",
            "add-br",
            "br-int",
            "--",
            "set",
            "bridge",
            "br-int",
        ];
        let command: Vec<&str> = command
            .into_iter()
            .chain([&*kind, "fail_mode=secure"])
            .collect();
        self.vsctl(&command).map(drop)
    }

    /// Sets a key of the switch's own external_ids.
    pub fn set_key(&self, key: &str, value: &str) -> Result<(), Failure> {
        let pair = format!("external_ids:{key}={value}");
        self.vsctl(&["--no-wait", "set", "open_vswitch", ".", &pair])
            .map(drop)
    }

    /// Starts ovn-controller, which makes br-int, and waits for that.
    pub fn start_controller(&self) -> Result<(), Failure> {
        let mut command = Command::new("ovn-controller");
        command
            .arg(format!("unix:{OVSDB_SOCKET}"))
            .arg(format!("--pidfile={RUN_DIR}/ovn-controller.pid"))
            .args(["--overwrite-pidfile", "--no-chdir"]);
        let daemon = self
            .machine
            .start_daemon(&command, "ovn-controller", RUN_DIR)?;
        *lock(&self.controller) = Some(daemon);
        self.await_bridge()
    }

    /// Waits until a sandbox' Interface row says that OVN has installed its port, or until it no
    /// longer does.
    pub fn await_installed(&self, container: &str, installed: bool) -> Result<(), Failure> {
        let is_installed = json!(["map", [["sandbox", container], ["ovn-installed", "true"]]]);
        let until = if installed { "!=" } else { "==" };
        let conditions = json!([["external_ids", "includes", is_installed]]);
        self.ovsdb()
            .wait("Interface", conditions, until, &["name"], json!([]))
    }

    /// Waits until br-int is there.
    fn await_bridge(&self) -> Result<(), Failure> {
        self.ovsdb().wait(
            "Bridge",
            json!([["name", "==", "br-int"]]),
            "!=",
            &["name"],
            json!([]),
        )
    }

    /// Stops ovn-controller with a signal and waits for its end. SIGTERM makes it leave the
    /// network, with its flows; after SIGKILL all stays as it is, its pidfile too.
    pub fn end_controller(&self, signal: Signal) -> Result<(), Failure> {
        match lock(&self.controller).take() {
            Some(daemon) => daemon.end_by(signal, DAEMON_LIMIT).map(drop),
            None => Ok(()),
        }
    }

    /// Has ovn-controller leave the network, as its service's stop does: with its tunnels' ports.
    pub fn leave_network(&self) -> Result<(), Failure> {
        let Some(daemon) = lock(&self.controller).take() else {
            return Ok(());
        };
        let socket = format!("{RUN_DIR}/ovn-controller.{}.ctl", daemon.pid());
        self.run("ovn-appctl", &["-t", &socket, "exit"])?;
        daemon.await_end(DAEMON_LIMIT)?;
        // A command without effect, but ovs-vsctl waits until ovs-vswitchd has followed the database.
        self.vsctl(&["init"]).map(drop)
    }

    /// Sends ovn-controller a signal, such as SIGSTOP.
    pub fn signal_controller(&self, signal: Signal) -> Result<(), Failure> {
        lock(&self.controller)
            .as_ref()
            .map_or(Ok(()), |daemon| daemon.signal(signal))
    }

    /// What podwire has left here: what makes up the underlay and the tunnels is not its own.
    pub fn leftovers(&self) -> Result<Leftovers, Failure> {
        let mut left = self.machine.leftovers()?;
        left.links.retain(|name| name != "eth0");
        // ovn-controller has a QoS row of its own; ours bears the sandbox.
        let qos = self.ovsdb_rows("QoS")?.into_iter();
        let foreign: Vec<_> = qos
            .filter(|row| row["external_ids"].get("sandbox").is_none())
            .map(|row| format!("QoS {}", row["_uuid"].as_str().unwrap_or_default()))
            .collect();
        left.rows.retain(|row| {
            let name = row.split(' ').nth(1).unwrap_or_default();
            name != "eth0" && !name.starts_with("ovn-") && !foreign.contains(row)
        });
        Ok(left)
    }
}

impl Deref for OvnNode {
    type Target = TestNode;

    fn deref(&self) -> &TestNode {
        &self.machine
    }
}

fn make_run_dir(machine: &TestNode) -> Result<(), Failure> {
    let directory = machine.path(RUN_DIR);
    std::fs::create_dir(&directory).step(|| format!("make {}", directory.display()))
}

fn lock(daemon: &Mutex<Option<Daemon>>) -> std::sync::MutexGuard<'_, Option<Daemon>> {
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}
