//! The commands that start and restart daemons on this node: a unit's where the service manager has
//! one, else Kubernetes' where the agent runs in a pod.

use std::path::Path;

/// Where systemd as the node's init is known by (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// Where units are (systemd.unit(5)).
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The command that starts the agent.
pub(in super::super) fn start_agent() -> String {
    if is_systemd() && has_unit("podwire") {
        "systemctl start podwire".to_owned()
    } else {
        "podwire agent &".to_owned()
    }
}

/// The command that lets another agent take over from that of this process, which works.
pub(in super::super) fn replace_agent(pid: u32) -> String {
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if cgroup.contains("kubepods") {
        format!("kill {pid}")
    } else if is_systemd() && has_unit("podwire") {
        "systemctl restart podwire".to_owned()
    } else {
        format!("kill {pid}; podwire agent &")
    }
}

/// The command that replaces the agent of this process, which hangs.
pub(super) fn restart_agent(pid: u32, socket: &Path) -> String {
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if cgroup.contains("kubepods") {
        // Its pod's container is started again by kubelet.
        format!("kill -KILL {pid}")
    } else if is_systemd() && has_unit("podwire") {
        "systemctl restart podwire".to_owned()
    } else {
        // Its lock goes when the kernel has ended it.
        let run_dir = socket.parent().unwrap_or(Path::new("/run/podwire"));
        format!(
            "kill -KILL {pid}; flock {} true; podwire agent &",
            run_dir.display()
        )
    }
}

/// The command that shows the log of the agent of this process.
pub(super) fn agent_log(pid: u32) -> String {
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    match cgroup.contains("kubepods") {
        true => "kubectl -n podwire-system logs daemonset/podwire".to_owned(),
        false => "journalctl -u podwire".to_owned(),
    }
}

/// Whether the node role is the service manager's.
pub(super) fn has_node_unit() -> bool {
    is_systemd() && has_unit("podwire-node")
}

/// The command that shows the node role's log.
pub(super) fn node_log() -> String {
    match has_node_unit() {
        true => "journalctl -u podwire-node -n 20".to_owned(),
        false => "kubectl -n podwire-system logs daemonset/podwire-node --tail 20".to_owned(),
    }
}

/// The command that starts Open vSwitch where it does not run, and replaces what hangs.
pub(super) fn restart_switch() -> String {
    // Debian's name of the unit, then Fedora's.
    let unit = match has_unit("openvswitch") && !has_unit("openvswitch-switch") {
        true => "openvswitch",
        false => "openvswitch-switch",
    };
    format!("systemctl restart {unit}")
}

/// The command that starts ovn-controller.
pub(super) fn restart_controller() -> String {
    "systemctl restart ovn-controller".to_owned()
}

fn is_systemd() -> bool {
    Path::new(SYSTEMD).exists()
}

fn has_unit(name: &str) -> bool {
    let name = format!("{name}.service");
    UNITS
        .iter()
        .any(|units| Path::new(units).join(&name).exists())
}
