//! The commands that start and restart daemons on this node: a unit's if the service manager has
//! one, otherwise Kubernetes' if the agent runs in a pod.

use std::path::Path;

use podwire_daemon::process::{is_in_pod, sees_systemd};

/// The directories of units (systemd.unit(5)).
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The command that starts the agent.
pub(in super::super) fn start_agent() -> String {
    if sees_systemd() && has_unit("podwire") {
        "systemctl start podwire".to_owned()
    } else if is_in_pod() {
        // kubelet starts the container again by itself; the log says why it ended.
        "kubectl -n podwire-system logs daemonset/podwire --previous".to_owned()
    } else {
        "podwire agent &".to_owned()
    }
}

/// The command that replaces a working agent, the one with this pid, by another.
pub(in super::super) fn replace_agent(pid: u32) -> String {
    replaced(pid, format!("kill {pid}"), "podwire agent &")
}

/// The command that replaces a hanging agent, the one with this pid.
pub(super) fn restart_agent(pid: u32, socket: &Path) -> String {
    // Its lock is released when the kernel has ended it.
    let run_dir = socket.parent().unwrap_or(Path::new("/run/podwire"));
    let again = format!("flock {} true; podwire agent &", run_dir.display());
    replaced(pid, format!("kill -KILL {pid}"), &again)
}

/// How to end the agent with this pid by a command, and start another, unless somebody does.
fn replaced(pid: u32, end: String, again: &str) -> String {
    if is_pods(pid) {
        // kubelet restarts the container of its pod.
        end
    } else if sees_systemd() && has_unit("podwire") {
        "systemctl restart podwire".to_owned()
    } else {
        format!("{end}; {again}")
    }
}

/// Whether a process is in a pod.
fn is_pods(pid: u32) -> bool {
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
    cgroup.is_ok_and(|cgroup| cgroup.contains("kubepods"))
}

/// The command that shows the log of the agent with this pid.
pub(super) fn agent_log(pid: u32) -> String {
    match is_pods(pid) {
        true => "kubectl -n podwire-system logs daemonset/podwire".to_owned(),
        false => "journalctl -u podwire".to_owned(),
    }
}

/// Whether the node role is a unit of the service manager.
pub(super) fn has_node_unit() -> bool {
    sees_systemd() && has_unit("podwire-node")
}

/// The command that replaces a hanging node role, the one with this pid; None if nobody starts
/// another.
pub(super) fn restart_node_role(pid: Option<u32>) -> Option<String> {
    if has_node_unit() {
        return Some("systemctl restart podwire-node".to_owned());
    }
    let pid = pid.filter(|pid| is_pods(*pid))?;
    Some(format!("kill -KILL {pid}"))
}

/// The command that shows the node role's log.
pub(super) fn node_log() -> String {
    match has_node_unit() {
        true => "journalctl -u podwire-node -n 20".to_owned(),
        false => "kubectl -n podwire-system logs daemonset/podwire-node --tail 20".to_owned(),
    }
}

/// The command that starts Open vSwitch if it is not running, and restarts it if it hangs.
pub(super) fn restart_switch() -> String {
    // Debian's name of the unit, then Fedora's.
    restart(
        &["openvswitch-switch", "openvswitch"],
        "podwire-openvswitch",
    )
}

/// The command that starts ovn-controller.
pub(super) fn restart_controller() -> String {
    restart(&["ovn-controller"], "podwire-ovn-controller")
}

/// The command that restarts the first of these units that the machine has. Where that can't be
/// seen, from a pod, or where it has none, also the one that replaces the pod with this name on
/// this node, as a comment.
fn restart(units: &[&str], pod: &str) -> String {
    let unit = units.iter().find(|unit| has_unit(unit));
    let by_unit = format!("systemctl restart {}", unit.unwrap_or(&units[0]));
    if unit.is_some() || !is_in_pod() {
        return by_unit;
    }
    let node = std::env::var("PODWIRE_NODE_NAME").unwrap_or_else(|_| "$(hostname)".to_owned());
    format!(
        "{by_unit} # if it is a pod: kubectl -n podwire-system delete pod \
         -l app.kubernetes.io/name={pod} --field-selector spec.nodeName={node}"
    )
}

fn has_unit(name: &str) -> bool {
    let name = format!("{name}.service");
    UNITS
        .iter()
        .any(|units| Path::new(units).join(&name).exists())
}
