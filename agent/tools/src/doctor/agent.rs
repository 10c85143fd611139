//! Checks the agent, its socket, and its reports about its pods.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::stat::{major, minor};
use podwire_netns::Netlink;

use super::service::{agent_log, restart_agent, start_agent};
use super::switch::ObservedSwitch;
use super::{Examined, Finding, Kind};
use crate::paint::short_id;
use crate::time::{ago, now_micros};
use crate::{AgentSocket, ToolError};
use podwire::config::{Mode, Source};
use podwire::inspect::{AuditList, Failure, LeftoverList, NorthdWaits, StatusView};
use podwire::plan::AttachmentKey;
use podwire::ports::PortRecord;

/// Checks whether the agent answers, who can reach it, and its own report.
pub(super) async fn examine(
    socket: &Path,
    asked: &Result<StatusView, ToolError>,
    seen: &ObservedSwitch,
    netlink: &Netlink,
) -> Examined {
    let mut findings = rights(socket);
    let mut says = String::new();
    match asked {
        Ok(status) => {
            says = format!("podwire {} answers on {}", status.version, socket.display());
            findings.extend(status_findings(status, seen));
        }
        Err(error) => {
            let reason = error.to_string();
            let what = reason.lines().next().unwrap_or_default().to_owned();
            let fix = match error {
                ToolError::NoAgent { .. } => start_agent(),
                _ => restart_silent_agent(socket),
            };
            findings.push(Finding::wrong(Kind::AgentSilent, what).fix(fix));
            let veths = netlink.list_veths().await.unwrap_or_default();
            let has_link = |port: &&PortRecord| veths.iter().any(|link| link.name == port.name);
            let stale = seen.ports.iter().filter(|port| !has_link(port)).count();
            if stale > 0 {
                let what = format!(
                    "{stale} ports of podwire's have no link any more; the agent removes them when \
                     it starts"
                );
                findings.push(Finding::wrong(Kind::PortsWithoutLinks, what).fix(start_agent()));
            }
        }
    }
    Examined {
        about: Kind::AgentSilent.about(),
        seen: says,
        findings,
    }
}

/// The command that replaces an agent that does not answer on this socket.
pub(in super::super) fn restart_silent_agent(socket: &Path) -> String {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    match holder(directory) {
        Some(pid) => restart_agent(pid, socket),
        None => start_agent(),
    }
}

/// The process that holds the lock of a run directory, according to proc_locks(5). The socket
/// does not tell: systemd may have made it, and a hanging agent accepts no connection.
pub(super) fn holder(directory: &Path) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let directory = std::fs::metadata(directory).ok()?;
    let device = directory.dev();
    let (major, minor) = (major(device), minor(device));
    let file = format!("{major:02x}:{minor:02x}:{}", directory.ino());
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, place, ..] if place == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// Only root may use the socket, and the directory in which it could be replaced.
fn rights(socket: &Path) -> Vec<Finding> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let mut findings = Vec::new();
    for (path, wanted) in [(directory, 0o700), (socket, 0o600)] {
        let Ok(found) = std::fs::symlink_metadata(path) else {
            continue;
        };
        let mode = found.mode() & 0o777;
        let path = path.display();
        if found.uid() != 0 {
            let what = format!("{path} belongs to uid {}, and must be root's", found.uid());
            findings.push(
                Finding::wrong(Kind::SocketOwner, what).fix(format!("chown root:root {path}")),
            );
        }
        if mode & !wanted != 0 {
            let what =
                format!("{path} has mode {mode:o}, and others than root must have no part in it");
            findings.push(
                Finding::wrong(Kind::SocketMode, what).fix(format!("chmod {wanted:o} {path}")),
            );
        }
    }
    findings
}

/// Problems reported by the agent that were not already seen from outside.
fn status_findings(status: &StatusView, seen: &ObservedSwitch) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_told = status.controller.iter().any(|it| !it.ok)
        || !status.vswitchd.ok
        || !status.database.current
        || seen.switch.bridge.is_none();
    for source in &status.sources {
        let Some(problem) = &source.problem else {
            continue;
        };
        let what = format!("the pods of {} can't be read: {problem}", source.place);
        let finding = match source.is_read {
            // The pods that it knows are served; nothing is lost until a new one comes.
            true => Finding::note(Kind::SourceUnreadable, what),
            false => Finding::wrong(Kind::SourceUnreadable, what),
        };
        findings.push(match source.source == Source::Kube.name() {
            true => finding.look(agent_log(status.pid)),
            false => finding,
        });
    }
    let told_by_source = status.sources.iter().any(|it| it.problem.is_some());
    if !status.ready && !is_told && !told_by_source {
        let what = format!("it would serve no ADD: {}", status.reasons.join("; "));
        findings.push(Finding::wrong(Kind::NotReady, what).look(agent_log(status.pid)));
    }
    if status.spool.entries > 0 {
        let what = format!(
            "DELs in the spool that could not be carried out: {}; the agent's log has the reason, \
             and the agent tries again when it starts",
            status.spool.entries
        );
        findings.push(Finding::wrong(Kind::SpoolWaits, what).look(agent_log(status.pid)));
    }
    if let Some(problem) = &status.spool.problem {
        findings.push(Finding::wrong(
            Kind::SpoolUnreadable,
            format!("spool: {problem}"),
        ));
    }
    for subnet in status.subnets.iter().filter(|it| it.used >= it.capacity) {
        let what = format!(
            "subnet {} has no address left, because pods use all of them; give the node another \
             --subnet",
            subnet.subnet
        );
        findings.push(Finding::wrong(Kind::SubnetFull, what).look("podwire ports"));
    }
    for pod in &status.awaited {
        findings.push(awaited(pod, status));
    }
    findings.extend(status.failures.iter().map(failed));
    findings.extend(status.northd.as_ref().map(slow_northd));
    findings
}

/// ADDs waited for ovn-northd, which no command of this node makes quicker.
fn slow_northd(waits: &NorthdWaits) -> Finding {
    let what = format!(
        "{} of the {} ADDs of the last ten minutes waited for ovn-northd, up to {} ms: \
         ovn-controller had not got the pod's port from the southbound database. \
         podwire-controller status says which version of OVN works and what helps, as does \
         docs/scale.md",
        waits.adds, waits.of, waits.longest_ms
    );
    Finding::note(Kind::NorthdSlow, what).look("podwire timings --verbs ADD")
}

/// The last operation of a pod failed. If it was an ADD, the pod has no network.
fn failed(failure: &Failure) -> Finding {
    let whose = match (&failure.pod, failure.container.is_empty()) {
        (Some(pod), _) => format!(" of {pod}"),
        (None, false) => format!(" of container {}", short_id(&failure.container)),
        (None, true) => String::new(),
    };
    let what = format!(
        "the last {}{whose} failed {} with code {}: {}",
        failure.verb,
        ago(failure.started_unix_micros, now_micros()),
        failure.code,
        failure.msg
    );
    match (failure.verb.as_str(), &failure.pod) {
        ("ADD", Some(pod)) => {
            Finding::wrong(Kind::AddFailed, what).look(format!("podwire timings {pod}"))
        }
        ("ADD", None) => Finding::wrong(Kind::AddFailed, what).look("podwire timings"),
        _ => Finding::note(Kind::OperationFailed, what),
    }
}

/// An ADD waits for what another program has to write.
fn awaited(pod: &str, status: &StatusView) -> Finding {
    let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
    let what = format!("an ADD of pod {pod} waits for its network annotation");
    let finding = Finding::wrong(Kind::AnnotationAwaited, what);
    let dir = status
        .sources
        .iter()
        .find(|it| it.source == Source::Dir.name());
    match dir {
        _ if status.mode == Mode::Ovn.name() => finding
            .look(format!("kubectl -n {namespace} describe pod {name}"))
            .look("kubectl -n ovn-kubernetes logs deployment/ovnkube-control-plane"),
        Some(dir) => finding.look(format!(
            "grep -l 'name: *{name}' {}/* # and add k8s.ovn.org/pod-networks to its annotations",
            dir.place
        )),
        None => finding.fix(format!(
            "kubectl -n {namespace} annotate pod {name} \
             k8s.ovn.org/pod-networks='{{\"default\":{{\"mac_address\":\"MAC\",\
             \"ip_addresses\":[\"ADDRESS/LENGTH\"]}}}}'"
        )),
    }
}

/// Problems of the agent's attachments, each of which it checks.
pub(super) async fn examine_pods(agent: &AgentSocket, seen: &ObservedSwitch) -> Option<Examined> {
    let agent = agent.clone().checking();
    let audits: AuditList = agent.get("/v1/check").await.ok()?;
    let mut leftovers: LeftoverList = agent.get("/v1/gc").await.ok()?;
    // What can't be removed, the check names too.
    leftovers.leftovers.retain(|it| it.problem.is_none());
    let mut findings = Vec::new();
    if let Some(first) = leftovers.leftovers.first() {
        let what = format!(
            "attachments left over: {}, such as {}: {}",
            leftovers.leftovers.len(),
            first.key,
            first.reason
        );
        findings.push(Finding::wrong(Kind::LeftOver, what).fix("podwire gc"));
    }
    if leftovers.qos_rows > 0 {
        let rows = crate::gc::qos_rows(leftovers.qos_rows);
        let what = format!("{rows} of ports that somebody removed: no port uses them any more");
        findings.push(Finding::wrong(Kind::QosLeftOver, what).fix("podwire gc"));
    }
    let is_left = |key: &AttachmentKey| leftovers.leftovers.iter().any(|it| it.key == *key);
    for audit in audits.attachments.iter().filter(|it| !is_left(&it.key)) {
        let whose = audit.pod.clone().unwrap_or_else(|| audit.key.to_string());
        for difference in &audit.differences {
            let what = format!("{whose}: {}", difference.what);
            let finding = Finding::wrong(Kind::Attachment(difference.kind), what);
            findings.push(match (&difference.fix, &audit.pod) {
                (Some(fix), _) => finding.fix(fix.clone()),
                // A new sandbox would have the same problem.
                (None, Some(pod)) if seen.is_well() => finding.fix(recreate(pod)),
                (None, _) => finding.look("podwire check"),
            });
        }
    }
    Some(Examined {
        about: Kind::LeftOver.about(),
        seen: format!("{} attachments as they should be", audits.attachments.len()),
        findings,
    })
}

/// A pod whose network can't be repaired from here gets a new sandbox.
fn recreate(pod: &str) -> String {
    match pod.split_once('/') {
        Some((namespace, name)) => format!("kubectl -n {namespace} delete pod {name}"),
        None => format!("podman restart {pod}"),
    }
}
