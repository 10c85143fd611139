//! Checks `podwire node run`, if it has configured this machine.

use std::io;
use std::path::Path;

use podwire_node::Role;

use super::agent::holder;
use super::service::{has_node_unit, node_log, restart_node_role};
use super::{Examined, Finding, Kind};

/// Checks the role's state; None if it never ran.
pub(super) async fn examine(directory: &Path) -> Option<Examined> {
    let (seen, findings) = match podwire_node::role(directory).await.transpose()? {
        Ok(role) => (role.status.clone(), findings(&role, directory)),
        Err(error) => (String::new(), vec![unreadable(&error, directory)]),
    };
    Some(Examined {
        about: Kind::NodeRoleEnded.about(),
        seen,
        findings,
    })
}

fn findings(role: &Role, directory: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !role.runs {
        let what = format!(
            "podwire node run does not run: nothing restores the {} items that it created here, \
             and services no longer follow the cluster",
            role.made
        );
        let ended = Finding::wrong(Kind::NodeRoleEnded, what);
        findings.push(match has_node_unit() {
            true => ended.fix("systemctl start podwire-node"),
            false => ended.look(node_log()),
        });
    } else if role.hangs {
        let what = format!("podwire node run {}", role.said());
        let silent = Finding::wrong(Kind::NodeRoleSilent, what);
        findings.push(match restart_node_role(holder(directory)) {
            Some(command) => silent.fix(command),
            None => silent.look(node_log()),
        });
    } else if !role.well {
        let what = format!("podwire node run: {}", role.status);
        findings.push(Finding::wrong(Kind::NodeRoleUnwell, what).look(node_log()));
    }
    if let Some(nic) = &role.unconfirmed {
        let unconfirmed = Finding::wrong(Kind::NicUnconfirmed, nic.clone());
        findings.push(unconfirmed.fix("podwire node confirm"));
    }
    if let Some(last) = role.restored.last() {
        let what = format!(
            "items that podwire node run restored: {}, the last at {}: {} ({}); changed by {}",
            role.restored.len(),
            last.at,
            last.item,
            last.was,
            last.by
        );
        let file = directory.join("restored").display().to_string();
        findings.push(Finding::note(Kind::NodeRoleRestored, what).look(format!("cat {file}")));
    }
    findings
}

fn unreadable(error: &io::Error, directory: &Path) -> Finding {
    let what = format!("the state of podwire node run can't be read: {error}");
    Finding::wrong(Kind::NodeRoleUnreadable, what).look(format!("ls -l {}", directory.display()))
}
