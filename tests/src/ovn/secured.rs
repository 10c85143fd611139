//! OVN's databases as docs/cluster.md sets them up: a server for each, as ovn-ctl starts them, keys
//! of `podwire-controller keys`, OVN's access control for chassis, and the controllers' own way
//! into the southbound database.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CENTRAL_ADDRESS, Central, NORTHBOUND, RUN_DIR, SOUTHBOUND};
use crate::binaries::{controller_binary, workspace};
use crate::failure::{OrFail, Step};
use crate::node::DAEMON_LIMIT;
use crate::process::{Daemon, Finished, finish};
use crate::words::Words;
use crate::{TestNode, ovn};

/// The directory of the keys in docs/cluster.md, and the machine's address there.
const DOCUMENTED: (&str, &str) = ("/etc/podwire/keys", "192.0.2.1");

/// The commands of docs/cluster.md that set up the databases.
pub const COMMANDS: [&str; 4] = [
    "ovn-nbctl set-ssl /etc/podwire/keys/northbound/tls.key \
     /etc/podwire/keys/northbound/tls.crt /etc/podwire/keys/northbound/ca.crt",
    "ovn-nbctl set-connection pssl:6641",
    "ovn-sbctl set-ssl /etc/podwire/keys/southbound/tls.key \
     /etc/podwire/keys/southbound/tls.crt /etc/podwire/keys/southbound/ca.crt",
    "ovn-sbctl set-connection role=ovn-controller pssl:6642",
];

/// Where a chassis finds the southbound database.
pub const CHASSIS_REMOTE: &str = "ssl:172.31.0.1:6642";
/// Where a controller finds the databases.
pub const CONTROLLER_REMOTES: [&str; 2] = ["ssl:172.31.0.1:6641", "ssl:172.31.0.1:16642"];

/// Keys in a directory that goes with this value.
#[derive(Debug)]
pub struct Keys {
    directory: PathBuf,
}

impl Keys {
    /// Keys for the central machine, and for nodes whose chassis has their name.
    #[track_caller]
    pub fn make(nodes: &[&str]) -> Keys {
        Keys::make_for(CENTRAL_ADDRESS, nodes)
    }

    /// The same, for databases at these addresses, separated by commas.
    #[track_caller]
    pub fn make_for(servers: &str, nodes: &[&str]) -> Keys {
        let directory = std::env::temp_dir().join(format!("podwire-keys.{}", crate::hex(16)));
        let keys = Keys { directory };
        let nodes = nodes.iter().map(|node| format!(" --chassis {node}={node}"));
        let nodes: String = nodes.collect();
        keys.run(&format!("--server {servers}{nodes}"))
            .success("podwire-controller keys");
        keys
    }

    /// Runs `podwire-controller keys` for this directory.
    #[track_caller]
    pub fn run(&self, arguments: &str) -> Finished {
        let mut command = Command::new(controller_binary());
        command
            .arg("keys")
            .arg(&self.directory)
            .args(arguments.words());
        finish(command, b"", DAEMON_LIMIT).or_fail()
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Private key, certificate and CA certificate of `controller`, `chassis/node-a` and so on.
    pub fn of(&self, place: &str) -> [String; 3] {
        let place = self.directory.join(place);
        ["tls.key", "tls.crt", "ca.crt"].map(|file| place.join(file).display().to_string())
    }

    /// The same files, copied to where nothing replaces them.
    #[track_caller]
    pub fn keep(&self, place: &str) -> [String; 3] {
        self.of(place).map(|file| {
            let kept = format!("{file}.kept");
            std::fs::copy(&file, &kept).step(|| "copy a key").or_fail();
            kept
        })
    }

    /// Replaces everything, the CAs too, by the directory of another run: file by file, in the
    /// order in which a shell names them.
    #[track_caller]
    pub fn replace(&self) {
        let nodes = std::fs::read_dir(self.directory.join("chassis"));
        let nodes = nodes.step(|| "list the nodes").or_fail();
        let nodes: Vec<String> = nodes
            .flatten()
            .map(|node| node.file_name().to_string_lossy().into_owned())
            .collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let other = Keys::make(&nodes);
        let nodes = nodes.iter().map(|node| format!("chassis/{node}"));
        let fixed = ["northbound", "southbound", "controller"].map(str::to_owned);
        for place in fixed.into_iter().chain(nodes) {
            let mut files = self
                .of(&place)
                .into_iter()
                .zip(other.of(&place))
                .collect::<Vec<_>>();
            files.sort();
            for (old, new) in files {
                std::fs::copy(new, old).step(|| "copy a key").or_fail();
            }
        }
    }

    /// A command of the documentation, for this directory and the central machine.
    fn translated(&self, command: &str) -> String {
        let (directory, address) = DOCUMENTED;
        let own = self.directory.display().to_string();
        command
            .replace(directory, &own)
            .replace(address, CENTRAL_ADDRESS)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Central {
    /// A central machine whose databases have TLS, with keys for these nodes.
    #[track_caller]
    pub fn secured(nodes: &[&str]) -> (Central, Keys) {
        let keys = Keys::make(nodes);
        let machine = TestNode::new();
        ovn::make_run_dir(&machine);
        let mut servers = Vec::new();
        for (name, database, table, socket) in [
            ("nb", "OVN_Northbound", "NB_Global", NORTHBOUND),
            ("sb", "OVN_Southbound", "SB_Global", SOUTHBOUND),
        ] {
            let file = ovn::create_database(&machine, name);
            // As start_ovsdb__ of ovn-ctl does.
            let mut command = Command::new("ovsdb-server");
            command
                .arg(format!("--remote=punix:{socket}"))
                .arg(format!("--remote=db:{database},{table},connections"))
                .arg(format!("--pidfile={RUN_DIR}/ovn{name}_db.pid"))
                .arg(format!("--private-key=db:{database},SSL,private_key"))
                .arg(format!("--certificate=db:{database},SSL,certificate"))
                .arg(format!("--ca-cert=db:{database},SSL,ca_cert"))
                .args(["--no-chdir", &file])
                .env("OVS_RUNDIR", RUN_DIR);
            servers.push(
                machine
                    .start_daemon(&command, "ovsdb-server", RUN_DIR)
                    .or_fail(),
            );
        }
        let central = Central::with_databases(machine, servers);
        for command in COMMANDS {
            let command = keys.translated(command);
            let (program, arguments) = command.split_once(' ').unwrap_or((&command, ""));
            central.machine().run(program, arguments);
        }
        let relay = central.start_relay(&keys);
        ovn::lock(&central.databases).push(relay);
        (central, keys)
    }

    /// Has the databases' servers drop all clients, which then connect again.
    #[track_caller]
    pub fn drop_clients(&self) {
        for server in &ovn::lock(&self.databases)[..2] {
            self.command_of(server, "reconnect");
        }
    }

    /// Opens a port of the northbound database, such as `ptcp:6649:127.0.0.1`.
    #[track_caller]
    pub fn open_northbound(&self, listener: &str) {
        let command = format!("add-remote {listener}");
        self.command_of(&ovn::lock(&self.databases)[0], &command);
    }

    /// Closes one, with its connections.
    #[track_caller]
    pub fn close_northbound(&self, listener: &str) {
        let command = format!("remove-remote {listener}");
        self.command_of(&ovn::lock(&self.databases)[0], &command);
    }

    #[track_caller]
    fn command_of(&self, server: &Daemon, command: &str) {
        let socket = format!("{RUN_DIR}/ovsdb-server.{}.ctl", server.pid());
        let arguments = format!("-t {socket} ovsdb-server/{command}");
        self.machine().run("ovs-appctl", arguments);
    }

    /// Starts what the unit podwire-southbound.service starts.
    #[track_caller]
    fn start_relay(&self, keys: &Keys) -> Daemon {
        let unit = workspace().join("deploy/systemd/podwire-southbound.service");
        let unit = std::fs::read_to_string(&unit)
            .step(|| "read the unit")
            .or_fail();
        let lines = unit.lines();
        let start = lines
            .filter_map(|line| line.strip_prefix("ExecStart="))
            .next();
        let words = keys.translated(start.unwrap_or_default()).words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let machine = self.machine();
        let log = machine.path("/run/log/podwire-southbound.log");
        Daemon::start(machine.keeper(), &command, &log).or_fail()
    }
}
