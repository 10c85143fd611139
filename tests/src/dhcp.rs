//! DHCP servers.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::failure::OrFail;
use crate::node::{DAEMON_LIMIT, TestNode, run_in};
use crate::place::Place;
use crate::process::Daemon;
use crate::watch::await_log;

/// Where dnsmasq keeps its leases.
const LEASES: &str = "/run/log/leases";
/// Where Kea reads its configuration, and keeps its leases.
const KEA: &str = "/run/log/kea.json";
const KEA_LEASES: &str = "/run/log/kea-leases.csv";
/// Where radvd reads its configuration, and notes its process.
const RADVD: &str = "/run/log/radvd.conf";
const RADVD_PID: &str = "/run/log/radvd.pid";

/// A DHCP server, or a router's advertisements, on a link eth0. Dropping it kills it.
#[derive(Debug)]
pub struct Dhcp {
    daemon: Daemon,
    leases: PathBuf,
}

impl Dhcp {
    /// Starts dnsmasq(8) in a place, with these arguments; its files are the node's.
    #[track_caller]
    pub fn dnsmasq(node: &TestNode, place: &Place, arguments: &[&str]) -> Self {
        let mut command = inside(place, "dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--port=0",
            "--interface=eth0",
            "--bind-interfaces",
            "--dhcp-authoritative",
            "--user=root",
            "--log-facility=-",
            "--conf-file=/dev/null",
        ]);
        command.arg(format!("--dhcp-leasefile={LEASES}"));
        command.args(arguments);
        Self::await_started(
            node,
            &command,
            "dnsmasq",
            LEASES,
            "sockets bound exclusively",
        )
    }

    /// Starts Kea in a place, with this configuration of its `Dhcp4`; its files are the node's. Its
    /// leases may be as short as wanted.
    #[track_caller]
    pub fn kea(node: &TestNode, place: &Place, dhcp4: &Value) -> Self {
        Self::kea_of(node, place, "4", dhcp4)
    }

    /// The same for IPv6.
    #[track_caller]
    pub fn kea6(node: &TestNode, place: &Place, dhcp6: &Value) -> Self {
        Self::kea_of(node, place, "6", dhcp6)
    }

    #[track_caller]
    fn kea_of(node: &TestNode, place: &Place, family: &str, of_family: &Value) -> Self {
        let program = format!("kea-dhcp{family}");
        let mut of_family = of_family.clone();
        of_family["interfaces-config"] = json!({ "interfaces": ["eth0"] });
        of_family["lease-database"] = json!({
            "type": "memfile", "name": KEA_LEASES, "lfc-interval": 0,
        });
        of_family["loggers"] = json!([{
            "name": program, "severity": "INFO", "output_options": [{ "output": "stdout" }],
        }]);
        let member = format!("Dhcp{family}");
        let config = json!({ member: of_family }).to_string();
        std::fs::write(node.path(KEA), config).expect("the node's own directory can be written");
        let mut command = inside(place, &program);
        command.args(["-c", KEA]);
        command.env("KEA_PIDFILE_DIR", "/run/log");
        command.env("KEA_LOCKFILE_DIR", "none");
        let ready = format!("DHCP{family}_STARTED");
        Self::await_started(node, &command, "kea", KEA_LEASES, &ready)
    }

    /// Starts radvd(8) in a place, with these lines about its eth0.
    #[track_caller]
    pub fn radvd(node: &TestNode, place: &Place, lines: &str) -> Self {
        let config = format!("interface eth0 {{ AdvSendAdvert on; {lines} }};");
        std::fs::write(node.path(RADVD), config).expect("the node's own directory can be written");
        let mut command = inside(place, "radvd");
        command.args([
            "-n", "-d", "1", "-m", "stderr", "-C", RADVD, "-p", RADVD_PID,
        ]);
        Self::await_started(node, &command, "radvd", RADVD, "version")
    }

    #[track_caller]
    fn await_started(
        node: &TestNode,
        command: &Command,
        name: &str,
        leases: &str,
        ready: &str,
    ) -> Self {
        let log = node.path(&format!("/run/log/{name}.log"));
        let earlier = std::fs::read_to_string(&log).unwrap_or_default();
        let server = Self {
            daemon: Daemon::start(node.keeper(), command, &log).or_fail(),
            leases: node.path(leases),
        };
        server.await_count(ready, earlier.matches(ready).count() + 1);
        server
    }

    /// What it has logged, with what an earlier one has.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.daemon.log()).unwrap_or_default()
    }

    /// How often its log has this text.
    pub fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Waits until its log has this text so often.
    #[track_caller]
    pub fn await_count(&self, text: &str, count: usize) {
        let awaited = format!("{count} times {text} in the DHCP server's log");
        let look = |log: &str| {
            let has_enough = log.matches(text).count() >= count;
            has_enough.then_some(()).ok_or_else(|| log.to_owned())
        };
        await_log(&self.daemon, DAEMON_LIMIT, &awaited, look).or_fail();
    }

    /// The clients that have a lease of dnsmasq's: MAC address, address and client identifier.
    pub fn clients(&self) -> Vec<String> {
        let leases = std::fs::read_to_string(&self.leases).unwrap_or_default();
        let leases = leases
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let leases = leases.filter(|words| words.len() == 5);
        leases
            .map(|words| format!("{} {} {}", words[1], words[2], words[4]))
            .collect()
    }

    /// Ends it; it keeps its leases for the next one.
    #[track_caller]
    pub fn stop(self) {
        self.daemon.end_by(Signal::SIGTERM, DAEMON_LIMIT).or_fail();
    }

    /// Ends it; the next one knows nothing of its leases.
    #[track_caller]
    pub fn stop_and_forget(self) {
        let leases = self.leases.clone();
        self.stop();
        std::fs::remove_file(leases).expect("a server that has run has a file of leases");
    }
}

/// Has a server in a place hear only what is for every server, or all again. One with raw sockets,
/// such as Kea, hears all.
#[track_caller]
pub(crate) fn hear_only_broadcasts(place: &Place, so: bool) {
    let lines: &[&str] = match so {
        true => &[
            "add table ip deaf",
            "add chain ip deaf in { type filter hook input priority 0 ; }",
            "add rule ip deaf in ip daddr != 255.255.255.255 udp dport 67 drop",
        ],
        false => &["delete table ip deaf"],
    };
    for line in lines {
        run_in(place, "nft", *line).or_fail();
    }
}

/// A program in a place's network, with the files of whoever starts it.
fn inside(place: &Place, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", place.network_path()));
    command.arg(program);
    command
}
