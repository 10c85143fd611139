//! Checks Open vSwitch and OVN, without the agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, Remote, State};
use podwire_ovs::openflow::management_socket;
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use podwire_ovs::vswitch;
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::conntrack::Table;
use super::service::{agent_log, restart_controller, restart_switch, start_agent};
use super::{Examined, Finding, Kind, Places};
use podwire::config::Wait;
use podwire::inspect::StatusView;
use podwire::ports::{
    BridgeView, MappingFault, PortRecord, SwitchView, mapping_faults, version_of,
};

/// Time limit of each daemon's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The number of the bridge's ports from which [`MAX_IDLE`] is proposed. docs/scale.md has the
/// costs.
const MANY_PORTS: usize = 250;

/// The key of `Open_vSwitch`'s `other_config` that says how long Open vSwitch keeps an idle flow,
/// in milliseconds (ovs-vswitchd.conf.db(5)).
const MAX_IDLE: &str = "max-idle";

/// The state of Open vSwitch and OVN.
#[derive(Debug)]
pub(super) struct ObservedSwitch {
    pub(super) bridge: String,
    /// Why the database can't be read.
    database: Result<(), String>,
    pub(super) switch: SwitchView,
    /// Podwire's own ports.
    pub(super) ports: Vec<PortRecord>,
    /// The version of ovs-vswitchd, or why it does not answer.
    vswitchd: Result<String, String>,
    /// Whether ovs-vswitchd has created the bridge: the database keeps the bridge's columns even if
    /// it could not.
    is_made: bool,
    /// ovs-vswitchd's pidfile.
    pidfile: PathBuf,
    /// ovs-vswitchd's limit of open files, if it runs.
    descriptors: Option<u64>,
    /// Whether [`MAX_IDLE`] is set.
    has_max_idle: bool,
    /// Whether OVN is in use here, and whether ovn-controller is connected.
    controller: Option<Result<(), String>>,
    /// What is wrong with the bridges of OVN's physical networks.
    mappings: Vec<MappingFault>,
    /// The kernel's connection tracking table.
    tracking: Option<Table>,
    /// The agent's process, if it answers.
    agent: Option<u32>,
}

/// Reads the database, the daemons' state and their limits.
pub(super) async fn look(places: &Places, status: Option<&StatusView>) -> ObservedSwitch {
    let socket = places.database(status);
    let bridge = places.bridge(status);
    let rundir = socket.parent().unwrap_or(Path::new("/"));
    let client = Client::start(ClientConfig::new(
        Remote::Unix(socket.clone()),
        vswitch::DATABASE,
        vswitch::tables(),
    ));
    let synced = client.synced(Instant::now() + PATIENCE).await;
    let database = match (synced, client.state()) {
        (Ok(()), _) => Ok(()),
        (
            Err(_),
            State::Disconnected {
                last_error: Some(error),
                ..
            },
        ) => Err(error.to_string()),
        (Err(error), _) => Err(error.to_string()),
    };
    let (switch, ports, has_max_idle, mappings) = client.read(|db| {
        let has_max_idle = db
            .open_vswitch()
            .is_some_and(|root| root.other_config().str(MAX_IDLE).is_some());
        let switch = SwitchView::read(db, &bridge);
        let ports = PortRecord::ours(db);
        let mappings = mapping_faults(db, &ports);
        (switch, ports, has_max_idle, mappings)
    });
    let is_made = UnixStream::connect(management_socket(rundir, &bridge))
        .await
        .is_ok();
    let pidfile = rundir.join("ovs-vswitchd.pid");
    let vswitchd = ask(rundir, "ovs-vswitchd", "version").await;
    // If the agent waits for the ofport only, ovn-controller does not matter.
    let uses_ovn = match status {
        Some(status) => status.wait == Wait::OvnInstalled.name(),
        None => switch.ovn.remote.is_some(),
    };
    let controller = match uses_ovn {
        true => Some(connected(&places.ovn_rundir, status).await),
        false => None,
    };
    ObservedSwitch {
        bridge,
        database,
        switch,
        ports,
        vswitchd: vswitchd
            .map(|said| version_of(&said))
            .map_err(|error| format!("ovs-vswitchd does not answer: {error}")),
        descriptors: descriptors(&pidfile),
        has_max_idle,
        pidfile,
        controller,
        mappings,
        tracking: Table::read(),
        is_made,
        agent: status.map(|status| status.pid),
    }
}

/// Whether ovn-controller is connected; as the agent reports it, if there is one.
async fn connected(rundir: &Path, status: Option<&StatusView>) -> Result<(), String> {
    if let Some(controller) = status.and_then(|status| status.controller.as_ref()) {
        return controller.problem.clone().map_or(Ok(()), Err);
    }
    match ask(rundir, "ovn-controller", "connection-status").await {
        Ok(said) if said.trim() == "connected" => Ok(()),
        Ok(said) => Err(format!(
            "ovn-controller is {} to its southbound database",
            said.trim()
        )),
        Err(error) => Err(format!("ovn-controller does not answer: {error}")),
    }
}

async fn ask(rundir: &Path, daemon: &str, command: &str) -> Result<String, UnixctlError> {
    Unixctl::for_daemon(rundir, daemon)?
        .call(command, &[], Instant::now() + PATIENCE)
        .await
}

/// The ovs-vswitchd process that belongs to a database's socket.
pub(in super::super) fn vswitchd(socket: &Path) -> Option<u32> {
    let pid = socket.parent()?.join("ovs-vswitchd.pid");
    std::fs::read_to_string(pid).ok()?.trim().parse().ok()
}

/// ovs-vswitchd's soft limit of open files; each port needs one or more.
fn descriptors(pidfile: &Path) -> Option<u64> {
    let pid = std::fs::read_to_string(pidfile).ok()?;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", pid.trim())).ok()?;
    let line = limits
        .lines()
        .find_map(|it| it.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl ObservedSwitch {
    /// Whether everything that all pods depend on answers: otherwise every pod has the problem, and
    /// a new one would have it too.
    pub(super) fn is_well(&self) -> bool {
        let controller = self.controller.as_ref().is_none_or(Result::is_ok);
        self.database.is_ok() && self.vswitchd.is_ok() && controller && self.switch.bridge.is_some()
    }
}

/// Checks the switch.
pub(super) fn examine(seen: &ObservedSwitch) -> Examined {
    let mut findings = Vec::new();
    if let Err(problem) = &seen.database {
        let what = format!("its database does not answer: {problem}");
        findings.push(Finding::wrong(Kind::DatabaseSilent, what).fix(restart_switch()));
    } else if let Err(problem) = &seen.vswitchd {
        findings.push(Finding::wrong(Kind::VswitchdSilent, problem.clone()).fix(restart_switch()));
    } else {
        findings.extend(bridge(seen));
    }
    if let (Some(limit), Some(bridge)) = (seen.descriptors, &seen.switch.bridge)
        && bridge.ports as u64 > limit / 2
    {
        let what = format!(
            "ovs-vswitchd may open {limit} files and has {} ports; it loses those that it has no \
             files for",
            bridge.ports
        );
        // Not with pidof: ovs-ctl starts a monitor process with the same name.
        let command = format!(
            "prlimit --nofile=65536:65536 --pid $(cat {})",
            seen.pidfile.display()
        );
        findings.push(Finding::wrong(Kind::FileLimit, what).fix(command));
    }
    findings.extend(many_ports(seen));
    let bridge = seen.switch.bridge.as_ref().map_or_else(String::new, |it| {
        format!(
            ", {} with {} ports on datapath {}",
            seen.bridge, it.ports, it.datapath
        )
    });
    Examined {
        about: Kind::DatabaseSilent.about(),
        seen: format!(
            "{}, database and ovs-vswitchd answer{bridge}",
            seen.vswitchd.as_deref().unwrap_or_default()
        ),
        findings,
    }
}

/// What makes a switch with many ports cheaper.
fn many_ports(seen: &ObservedSwitch) -> Option<Finding> {
    let ports = seen.switch.bridge.as_ref()?.ports;
    if ports < MANY_PORTS || seen.has_max_idle {
        return None;
    }
    let what = format!(
        "bridge {} has {ports} ports. Whenever a pod comes or goes, ovs-vswitchd translates again \
         each flow that a packet has met in the last 10 s. Where pods come and go often, have it \
         keep idle flows for 1 s (docs/scale.md)",
        seen.bridge
    );
    let command = format!("ovs-vsctl set Open_vSwitch . other_config:{MAX_IDLE}=1000");
    Some(Finding::note(Kind::ManyPorts, what).fix(command))
}

fn bridge(seen: &ObservedSwitch) -> Option<Finding> {
    let name = &seen.bridge;
    let theirs = seen.switch.ovn.bridge.as_ref();
    if let Some(bridge) = &seen.switch.bridge {
        let error = match &bridge.error {
            Some(error) => error,
            None if seen.is_made => return None,
            None => "ovs-vswitchd has not created it; its log has the reason",
        };
        let what = format!(
            "bridge {name} on datapath {} does not work: {error}",
            bridge.datapath
        );
        let without_kernel =
            bridge.datapath == "system" && !Path::new("/sys/module/openvswitch").exists();
        return Some(match without_kernel {
            true => Finding::wrong(Kind::DatapathMissing, what).fix(format!(
                "modprobe openvswitch || ovs-vsctl set bridge {name} datapath_type=netdev"
            )),
            false => Finding::wrong(Kind::BridgeError, what)
                .look("journalctl -u ovs-vswitchd -u openvswitch-switch"),
        });
    }
    let missing = format!("bridge {name} is missing");
    Some(match (&seen.controller, theirs) {
        (Some(_), Some(theirs)) if theirs != name => {
            let what =
                format!("{missing}: external_ids:ovn-bridge makes ovn-controller use {theirs}");
            Finding::wrong(Kind::OtherBridge, what).fix(format!(
                "ovs-vsctl set open_vswitch . external_ids:ovn-bridge={name}"
            ))
        }
        // ovn-controller re-creates it as long as it runs, so it does not run, or hangs.
        (Some(_), _) => Finding::wrong(Kind::BridgeMissing, missing).fix(restart_controller()),
        (None, _) if let Some(pid) = seen.agent => Finding::wrong(
            Kind::BridgeMissing,
            format!("{missing}, and the agent does not create it; its log has the reason"),
        )
        .look(agent_log(pid)),
        (None, _) => Finding::wrong(
            Kind::BridgeMissing,
            format!("{missing}; the agent creates it when it starts"),
        )
        .fix(start_agent()),
    })
}

/// Checks OVN's part of the node, if OVN is in use.
pub(super) fn examine_ovn(seen: &ObservedSwitch) -> Option<Examined> {
    let controller = seen.controller.as_ref()?;
    let ovn = &seen.switch.ovn;
    let mut findings = Vec::new();
    if seen.database.is_ok() {
        if ovn.remote.is_none() {
            let what = "external_ids:ovn-remote is not set, so ovn-controller knows no southbound \
                        database";
            let command =
                "ovs-vsctl set open_vswitch . external_ids:ovn-remote=tcp:SOUTHBOUND:6642";
            findings.push(Finding::wrong(Kind::OvnRemoteUnset, what).fix(command));
        } else if let Err(problem) = controller {
            findings.push(
                Finding::wrong(Kind::ControllerSilent, problem.clone()).fix(restart_controller()),
            );
        }
        if ovn.encap_ip.is_none() {
            let what = "external_ids:ovn-encap-ip is not set, so there is no tunnel to other nodes";
            let command = "ovs-vsctl set open_vswitch . external_ids:ovn-encap-type=geneve \
                           external_ids:ovn-encap-ip=ADDRESS";
            findings.push(Finding::wrong(Kind::EncapIpUnset, what).fix(command));
        }
    }
    findings.extend(seen.mappings.iter().map(mapping));
    // The userspace datapath has a table of its own.
    let on_kernel = |it: &BridgeView| it.datapath == "system";
    if controller.is_ok() && seen.switch.bridge.as_ref().is_some_and(on_kernel) {
        findings.extend(seen.tracking.and_then(Table::examine));
    }
    Some(Examined {
        about: Kind::OvnRemoteUnset.about(),
        seen: format!(
            "chassis {}, ovn-controller is connected to {}",
            ovn.chassis.as_deref().unwrap_or("unknown"),
            ovn.remote.as_deref().unwrap_or("nothing")
        ),
        findings,
    })
}

/// A fault of the bridges of physical networks.
fn mapping(fault: &MappingFault) -> Finding {
    let (by, pods) = match fault {
        MappingFault::Entry { problem, fix } => {
            return Finding::wrong(Kind::MappingWrong, problem.clone()).fix(fix.clone());
        }
        MappingFault::Unmapped { by, pods } => (by, pods),
    };
    let kind = match by.has_mapping() {
        true => Kind::MappingBridgeMissing,
        false => Kind::MappingMissing,
    };
    let users = match pods.len() {
        0 => String::new(),
        _ => format!(" (pods on it: {})", pods.join(", ")),
    };
    let (network, problem) = (&by.network, by.problem());
    let what = format!("physical network {network} is not connected{users}: {problem}");
    Finding::wrong(kind, what).fix(by.fix())
}
