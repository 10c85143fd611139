//! OVN's part of a port: whether ovn-controller works, and what a port lacks that it has not
//! installed.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use podwire_daemon::output::part;
use podwire_ovs::client::TlsKeys;
use podwire_ovs::replica::Db;
use podwire_ovs::transact::Transaction;
use podwire_ovs::unixctl::UnixctlError;
use podwire_ovs::vswitch::chassis_entry;
use tokio::time::Instant;

use super::southbound::{Binding, Southbound, SouthboundError, View};
use super::wait::ask_daemon;
use super::{AddedPort, Ports};

/// Why ovn-controller installs nothing.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// It does not answer.
    #[error("ovn-controller does not answer (control socket in {}): {source}; is it running?",
        rundir.display())]
    Silent {
        /// The directory of its pidfile and control socket.
        rundir: PathBuf,
        /// Why it could not be reached.
        source: UnixctlError,
    },
    /// It has no connection to the southbound database.
    #[error(
        "ovn-controller is {status} to its southbound database{}",
        Remote(remote)
    )]
    NotConnected {
        /// `ovn-remote`, if set.
        remote: Option<String>,
        /// The connection's status as ovn-controller reports it.
        status: String,
    },
}

/// Why ports have not been installed, as far as this node can see.
#[derive(Debug)]
pub struct Diagnosis {
    /// What is wrong with ovn-controller.
    controller: Option<ControllerError>,
    /// What each port lacks, by iface-id; or why this could not be read.
    ports: Result<Vec<(String, Missing)>, SouthboundError>,
}

/// What a port lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Missing {
    #[error(
        "no logical port: the southbound database has none of this name, so the controller has not \
         created it yet, or ovn-northd has not processed it"
    )]
    LogicalPort,
    #[error(
        "its logical port is another pod's: options:iface-id-ver is {theirs}, and this pod's uid \
         is {}",
        .ours.as_deref().unwrap_or("unknown")
    )]
    OtherPod {
        theirs: String,
        ours: Option<String>,
    },
    #[error(
        "its logical port is for chassis {requested} (options:requested-chassis), but this is \
         {this}{}",
        part("; claimed by another chassis: ", .holder.as_ref(), "")
    )]
    OtherRequested {
        requested: String,
        this: String,
        holder: Option<String>,
    },
    #[error("claimed by another chassis: {holder}, but this is {this}")]
    OtherChassis { holder: String, this: String },
    #[error("this node is not in the southbound database: there is no chassis {this}")]
    Chassis { this: String },
    #[error("ovn-controller has not claimed its logical port")]
    Claim,
    #[error(
        "the port is on bridge {ours}, and ovn-controller's is {theirs} (external_ids:ovn-bridge)"
    )]
    Bridge { ours: String, theirs: String },
    #[error(
        "flows not yet installed: ovn-controller has claimed its logical port, but has not \
         reported it installed"
    )]
    Flows,
}

impl Ports {
    /// Whether ovn-controller answers and is connected.
    ///
    /// # Errors
    /// See [`ControllerError`].
    pub async fn controller_connected(&self, patience: Duration) -> Result<(), ControllerError> {
        let rundir = &self.ovn.rundir;
        let deadline = Instant::now() + patience;
        match ask_daemon(rundir, "ovn-controller", "connection-status", deadline).await {
            Ok(status) if status.trim() == "connected" => Ok(()),
            Ok(status) => Err(ControllerError::NotConnected {
                remote: self.client.read(|db| node_key(db, "ovn-remote")),
                status: status.trim().to_owned(),
            }),
            Err(source) => Err(ControllerError::Silent {
                rundir: rundir.clone(),
                source,
            }),
        }
    }

    /// The files with which the southbound database is asked, in the order of the status.
    pub async fn southbound_keys(&self, deadline: Instant) -> Vec<PathBuf> {
        let tls = self.southbound(deadline).await.ok().and_then(|it| it.tls);
        tls.map_or_else(Vec::new, |keys| {
            vec![keys.private_key, keys.certificate, keys.ca_certificate]
        })
    }

    /// Whether ovn-controller has not yet got one of these ports from the southbound database: it
    /// is ovn-northd that they wait for then. The question costs that database nothing.
    pub(super) async fn lacks_binding(&self, ports: &[AddedPort], deadline: Instant) -> bool {
        let rundir = &self.ovn.rundir;
        let command = "debug/dump-local-bindings";
        // A busy one answers late, and then it is what the ADD waits for.
        let Ok(bindings) = ask_daemon(rundir, "ovn-controller", command, deadline).await else {
            return false;
        };
        let lacking = ports.iter().map(|port| port.iface_id.as_str());
        let lacking = lacking.filter(|iface_id| !has_binding(&bindings, iface_id));
        let lacking: Vec<&str> = lacking.collect();
        if !lacking.is_empty() {
            tracing::info!(
                ports = lacking.join(" "),
                "ovn-controller has not got the logical port: waiting for ovn-northd"
            );
        }
        !lacking.is_empty()
    }

    /// Finds out what ports lack that ovn-controller has not installed.
    pub(super) async fn diagnose(&self, ports: &[&AddedPort], deadline: Instant) -> Diagnosis {
        let patience = deadline.saturating_duration_since(Instant::now());
        let (controller, ports) = tokio::join!(
            self.controller_connected(patience),
            self.missing(ports, deadline)
        );
        Diagnosis {
            controller: controller.err(),
            ports,
        }
    }

    async fn missing(
        &self,
        ports: &[&AddedPort],
        deadline: Instant,
    ) -> Result<Vec<(String, Missing)>, SouthboundError> {
        let southbound = self.southbound(deadline).await?;
        let iface_ids: Vec<&str> = ports.iter().map(|port| port.iface_id.as_str()).collect();
        let view = southbound.view(&iface_ids, deadline).await?;
        let other_bridge = self.client.read(|db| node_key(db, "ovn-bridge"));
        let other_bridge = other_bridge.filter(|theirs| *theirs != self.bridge);
        let missing = ports.iter().zip(&view.bindings).map(|(port, binding)| {
            let ours = port.iface_id_ver.as_deref();
            let missing = match missing(&view, &southbound.chassis, binding.as_ref(), ours) {
                Missing::Claim if let Some(theirs) = &other_bridge => Missing::Bridge {
                    ours: self.bridge.clone(),
                    theirs: theirs.clone(),
                },
                missing => missing,
            };
            (port.iface_id.clone(), missing)
        });
        Ok(missing.collect())
    }

    async fn southbound(&self, deadline: Instant) -> Result<Southbound, SouthboundError> {
        let key = |name| {
            let found = self.client.read(|db| node_key(db, name));
            found.ok_or(SouthboundError::NotSet(name))
        };
        let remote = match &self.ovn.remote {
            Some(remote) => remote.clone(),
            None => key("ovn-remote")?,
        };
        let chassis = key("system-id")?;
        let tls = match &self.ovn.tls {
            Some(keys) => Some(keys.clone()),
            None if remote.contains("ssl:") => self.switch_keys(deadline).await,
            None => None,
        };
        Ok(Southbound {
            remote,
            chassis,
            tls,
        })
    }

    /// The keys of Open vSwitch's own TLS connections. No replica holds them, because nothing else
    /// needs them.
    async fn switch_keys(&self, deadline: Instant) -> Option<TlsKeys> {
        let mut transaction = Transaction::new();
        let columns = &["private_key", "certificate", "ca_cert"];
        let keys = transaction.select("SSL", Vec::new(), columns).index();
        let found = self.client.transact(&transaction, deadline).await.ok()?;
        let row = found.rows(keys).first()?;
        let file = |column| Some(row.column(column)?.as_str()?.into());
        Some(TlsKeys {
            private_key: file("private_key")?,
            certificate: file("certificate")?,
            ca_certificate: file("ca_cert")?,
        })
    }
}

/// A key of the node's external_ids, as [`chassis_entry`] reads it; None if it is empty.
pub(super) fn node_key(db: &Db, name: &str) -> Option<String> {
    let (_, value) = chassis_entry(db, name);
    (!value.is_empty()).then_some(value)
}

/// Whether ovn-controller has a logical port, in its own words: `name: [PORT], OVS interface name
/// : [NAME], num binding lports : [1]` (`binding_dump_local_bindings` in controller/binding.c).
fn has_binding(bindings: &str, iface_id: &str) -> bool {
    let start = format!("name: [{iface_id}],");
    let line = bindings.lines().find(|line| line.starts_with(&start));
    line.is_some_and(|line| !line.ends_with("num binding lports : [0]"))
}

/// The first condition that keeps a port from getting its flows, in the order in which OVN needs
/// them.
fn missing(view: &View, this: &str, binding: Option<&Binding>, uid: Option<&str>) -> Missing {
    let this = this.to_owned();
    let Some(hostname) = &view.this_chassis else {
        return Missing::Chassis { this };
    };
    let Some(binding) = binding else {
        return Missing::LogicalPort;
    };
    if let Some(theirs) = &binding.iface_id_ver
        && uid != Some(theirs)
    {
        return Missing::OtherPod {
            theirs: theirs.clone(),
            ours: uid.map(str::to_owned),
        };
    }
    if let Some(requested) = &binding.requested_chassis
        && *requested != this
        && requested != hostname
    {
        return Missing::OtherRequested {
            requested: requested.clone(),
            this,
            holder: binding.chassis.clone(),
        };
    }
    match &binding.chassis {
        None => Missing::Claim,
        Some(holder) if *holder == this => Missing::Flows,
        Some(holder) => Missing::OtherChassis {
            holder: holder.clone(),
            this,
        },
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.controller.iter().map(ToString::to_string));
        match &self.ports {
            Ok(ports) => parts.extend(
                ports
                    .iter()
                    .map(|(iface_id, missing)| format!("{iface_id}: {missing}")),
            ),
            Err(error) => parts.push(error.to_string()),
        }
        f.write_str(&parts.join("; "))
    }
}

/// ` unix:/run/ovn/ovnsb_db.sock`, or that none is set.
struct Remote<'a>(&'a Option<String>);

impl fmt::Display for Remote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(remote) => write!(f, " {remote}"),
            None => f.write_str(": external_ids:ovn-remote is not set in Open_vSwitch"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(binding: Option<Binding>) -> View {
        View {
            this_chassis: Some("host-a".to_owned()),
            bindings: vec![binding],
        }
    }

    fn said(view: &View, uid: Option<&str>) -> String {
        let binding = view.bindings[0].as_ref();
        missing(view, "node-a", binding, uid).to_string()
    }

    fn bound(chassis: Option<&str>) -> Binding {
        Binding {
            chassis: chassis.map(str::to_owned),
            ..Binding::default()
        }
    }

    #[test]
    fn each_missing_thing_has_its_own_words() {
        let not_there = View::default();
        assert!(
            missing(&not_there, "node-a", None, None)
                .to_string()
                .contains("no chassis node-a")
        );
        for (binding, words) in [
            (None, "no logical port"),
            (Some(bound(None)), "has not claimed"),
            (Some(bound(Some("node-a"))), "flows not yet installed"),
            (
                Some(bound(Some("node-b"))),
                "claimed by another chassis: node-b",
            ),
        ] {
            let said = said(&view(binding), Some("uid"));
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_port_that_ovn_controller_has_only_as_an_interface_has_no_binding() {
        let bindings = "Local bindings:\n\
                        name: [tests_web], OVS interface name : [p1], num binding lports : [1]\n\
                        primary lport : [tests_web]\n\
                        ----------------------------------------\n\
                        name: [tests_db], OVS interface name : [p2], num binding lports : [0]\n";
        assert!(has_binding(bindings, "tests_web"));
        assert!(!has_binding(bindings, "tests_db"));
        assert!(!has_binding(bindings, "tests_we"));
    }

    #[test]
    fn a_logical_port_of_another_pod_is_named_with_both_uids() {
        let binding = Binding {
            iface_id_ver: Some("new".to_owned()),
            ..bound(Some("node-b"))
        };
        let view = view(Some(binding));
        let text = said(&view, Some("old"));
        assert!(
            text.contains("iface-id-ver is new") && text.contains("uid is old"),
            "{text}"
        );
        assert!(said(&view, None).contains("unknown"));
        assert!(said(&view, Some("new")).contains("another chassis"));
    }

    #[test]
    fn a_request_is_met_by_name_or_host_name_of_the_chassis() {
        for (requested, words) in [
            ("node-a", "flows"),
            ("host-a", "flows"),
            ("node-b", "for chassis node-b"),
        ] {
            let binding = Binding {
                requested_chassis: Some(requested.to_owned()),
                ..bound(Some("node-a"))
            };
            let said = said(&view(Some(binding)), None);
            assert!(said.contains(words), "{said}");
        }
    }
}
