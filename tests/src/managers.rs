//! What manages a machine's network beside podwire: systemd-networkd, NetworkManager, firewalld,
//! each the real one, on a node and with a D-Bus of the node's own.

use std::process::Command;
use std::time::Instant;

use crate::TestNode;
use crate::failure::Failure;
use crate::node::{DAEMON_LIMIT, run_in};
use crate::process::Daemon;

/// Everybody may own, call and hear everything: what is tested is not who may.
const BUS: &str = r#"<busconfig><type>system</type>
<listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy>
</busconfig>"#;

/// Without udev, for /sys is read-only; without polkit. Its log is for who looks after a failure.
const NETWORK_MANAGER: &str = "[main]\nplugins=keyfile\nauth-polkit=false\nno-auto-default=*\n\
                               [logging]\nlevel=DEBUG\n";

/// A manager, and the bus that it is on. Dropping it kills both.
#[derive(Debug)]
pub struct Manager<'node> {
    node: &'node TestNode,
    _bus: Daemon,
    daemon: Daemon,
}

impl<'node> Manager<'node> {
    /// systemd-networkd, with these files in /run/systemd/network, name and content.
    pub fn networkd(node: &'node TestNode, files: &[(&str, &str)]) -> Result<Self, Failure> {
        // What an earlier one has left says how links were.
        let directories = "rm -rf /run/systemd/netif; mkdir -p /run/systemd/network \
                           /run/systemd/netif/links /run/systemd/netif/leases; chown -R \
                           systemd-network: /run/systemd/netif";
        node.run("sh", ["-c", directories]);
        for (name, text) in files {
            write(node, &format!("/run/systemd/network/{name}"), text);
        }
        let command = Command::new("/usr/lib/systemd/systemd-networkd");
        Self::start(node, &command, &["networkctl", "list"])
    }

    /// NetworkManager, which takes up nothing by itself.
    pub fn network_manager(node: &'node TestNode) -> Result<Self, Failure> {
        // As after a boot: what an operator has said of a link is kept there.
        node.run("sh", ["-c", "rm -rf /run/NetworkManager; mkdir -p /run/nm"]);
        Self::network_manager_again(node)
    }

    /// NetworkManager, which goes on with what an earlier one has left.
    pub fn network_manager_again(node: &'node TestNode) -> Result<Self, Failure> {
        write(node, "/run/nm/NetworkManager.conf", NETWORK_MANAGER);
        let mut command = Command::new("NetworkManager");
        command.arg("--debug").args(
            [
                ("config", "NetworkManager.conf"),
                ("config-dir", "conf.d"),
                ("system-config-dir", "lib"),
                ("state-file", "state"),
                ("pid-file", "pid"),
                ("intern-config", "intern"),
            ]
            .map(|(flag, file)| format!("--{flag}=/run/nm/{file}")),
        );
        Self::start(node, &command, &["nmcli", "general"])
    }

    /// Has NetworkManager ask its dispatcher before it takes a profile from a device, with this
    /// script there (NetworkManager-dispatcher(8)). It has to be called before NetworkManager
    /// starts.
    pub fn before_down(node: &TestNode, script: &str) {
        let scripts = "/etc/NetworkManager/dispatcher.d";
        node.run("mount", ["-t", "tmpfs", "none", scripts]);
        node.run("mkdir", format!("{scripts}/pre-down.d"));
        let path = format!("{scripts}/pre-down.d/50-test");
        write(node, &path, script);
        node.run("chmod", format!("755 {path}"));
    }

    /// NetworkManager's dispatcher. Dropping it kills it.
    pub fn dispatcher(&self) -> Result<impl Drop + use<>, Failure> {
        let mut command = Command::new("/usr/lib/NetworkManager/nm-dispatcher");
        command.arg("--persist");
        let log = self.node.path("/run/log/dispatcher.log");
        let daemon = Daemon::start(self.node.keeper(), &command, &log)?;
        let until = Instant::now() + DAEMON_LIMIT;
        let asked =
            "busctl introspect org.freedesktop.nm_dispatcher /org/freedesktop/nm_dispatcher";
        let asked: Vec<&str> = asked.split(' ').collect();
        await_answer(self.node, &asked, &daemon, until)?;
        Ok(daemon)
    }

    /// firewalld with its usual zones.
    pub fn firewalld(node: &'node TestNode) -> Result<Self, Failure> {
        node.run("mkdir", "-p /run/firewalld-config");
        let mut command = Command::new("firewalld");
        command.args([
            "--nofork",
            "--nopid",
            "--system-config=/run/firewalld-config",
        ]);
        command.arg("--log-file=/run/log/firewalld-own.log");
        Self::start(node, &command, &["firewall-cmd", "--state"])
    }

    /// Starts it beside a bus, and waits until `asked` is answered.
    fn start(node: &'node TestNode, command: &Command, asked: &[&str]) -> Result<Self, Failure> {
        // A node's /sys is its own already.
        node.run("mount", "-o remount,bind,ro /sys");
        node.run("mkdir", "-p /run/dbus");
        write(node, "/run/dbus.conf", BUS);
        let mut bus = Command::new("dbus-daemon");
        bus.args(["--config-file=/run/dbus.conf", "--nofork", "--nopidfile"]);
        let log = |name| node.path(&format!("/run/log/{name}.log"));
        let bus = Daemon::start(node.keeper(), &bus, &log("bus"))?;
        let until = Instant::now() + DAEMON_LIMIT;
        await_answer(node, &["busctl", "--no-pager", "list"], &bus, until)?;
        let daemon = Daemon::start(node.keeper(), command, &log("manager"))?;
        await_answer(node, asked, &daemon, until)?;
        Ok(Self {
            node,
            _bus: bus,
            daemon,
        })
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.daemon.log()).unwrap_or_default()
    }

    /// The node that it is on.
    pub fn node(&self) -> &TestNode {
        self.node
    }
}

/// Asks until it is answered: a client alone knows when a service is there.
fn await_answer(
    node: &TestNode,
    asked: &[&str],
    daemon: &Daemon,
    until: Instant,
) -> Result<(), Failure> {
    loop {
        let Err(error) = run_in(node.place(), asked[0], &asked[1..]) else {
            return Ok(());
        };
        if daemon.ended().is_some() || Instant::now() > until {
            let log = std::fs::read_to_string(daemon.log()).unwrap_or_default();
            return Err(Failure::Deadline {
                awaited: format!("an answer to {asked:?}"),
                waited: DAEMON_LIMIT,
                seen: format!("{error}, and its log says:\n{log}"),
            });
        }
    }
}

#[track_caller]
fn write(node: &TestNode, path: &str, text: &str) {
    let line = format!("cat >{path} <<'END'\n{text}\nEND");
    node.run("sh", ["-c", &line]);
}
