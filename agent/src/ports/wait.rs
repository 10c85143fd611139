//! Waits until the switch and OVN have taken up a port. A wait ends with an update of the port's
//! row, or with an error that rules the update out.

use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use podwire_ovs::client::WaitError;
use podwire_ovs::replica::Db;
use podwire_ovs::transact::{TransactError, Transaction};
use podwire_ovs::unixctl::{Unixctl, UnixctlError};
use podwire_ovs::vswitch::{BY_IFACE_ID, Interface};
use tokio::time::Instant;

use super::state::{is_installed, refusal};
use super::{AddedPort, PortError, Ports};
use crate::plan::ids;

/// After this long without an ofport, ovs-vswitchd is checked.
const SUSPICION: Duration = Duration::from_secs(2);
/// After this long without flows, ovn-controller is asked for the ports.
const SLOW: Duration = Duration::from_millis(250);
/// Time limit for its answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// Time limit for finding out what OVN lacks, after the wait for it failed.
const DIAGNOSIS_DEADLINE: Duration = Duration::from_secs(3);

impl Ports {
    /// Waits until ovs-vswitchd has assigned an ofport to every port.
    ///
    /// # Errors
    /// The switch refused a port, a row was removed or lost its iface-id, ovs-vswitchd is not
    /// alive, or the time is up.
    pub async fn wait_ofports(
        &self,
        ports: &[AddedPort],
        patience: Duration,
    ) -> Result<(), PortError> {
        let deadline = Instant::now() + patience;
        let waits = ports.iter().map(|port| self.wait_ofport(port, deadline));
        try_join_all(waits).await.map(drop)
    }

    async fn wait_ofport(&self, port: &AddedPort, deadline: Instant) -> Result<(), PortError> {
        let started = Instant::now();
        let has_ofport = |interface: &Interface<'_>| interface.ofport().is_some_and(|it| it > 0);
        let suspicious = deadline.min(started + SUSPICION);
        let mut waited = self.wait_interface(port, suspicious, has_ofport).await;
        let mut silent = None;
        if waited.is_err() {
            match self.switch_alive(ANSWER_DEADLINE).await {
                Ok(_) => {}
                // Silent is not dead: with hundreds of new ports, a turn of its main loop may take
                // longer.
                Err(error) if error.is_silence() => silent = Some(error),
                Err(error) => return Err(error),
            }
            waited = self.wait_interface(port, deadline, has_ofport).await;
        }
        waited.unwrap_or_else(|source| {
            Err(silent.unwrap_or(PortError::NoOfport {
                waited: started.elapsed(),
                source,
            }))
        })
    }

    /// Waits until ovn-controller has installed the flows of every port.
    ///
    /// Only when the time is up does it look for the reason, in the southbound database too;
    /// meanwhile it keeps waiting. Returns whether it was slow, and ovn-northd what it waited for.
    ///
    /// # Errors
    /// A row was removed, lost its iface-id, or another row has it too; or the time is up: then
    /// what is missing.
    pub async fn wait_installed(
        &self,
        ports: &[AddedPort],
        patience: Duration,
    ) -> Result<bool, PortError> {
        let started = Instant::now();
        let installed = async |deadline| {
            let waits = ports
                .iter()
                .map(|port| self.wait_interface(port, deadline, is_installed));
            match try_join_all(waits).await {
                Ok(outcomes) => outcomes.into_iter().collect::<Result<(), _>>().map(Some),
                Err(_) => Ok(None),
            }
        };
        let deadline = started + patience;
        if installed(deadline.min(started + SLOW)).await?.is_some() {
            return Ok(false);
        }
        let mut northd = false;
        let in_time = {
            let mut installed = std::pin::pin!(installed(deadline));
            tokio::select! {
                done = &mut installed => done?,
                lacks = self.lacks_binding(ports, deadline) => {
                    northd = lacks;
                    installed.await?
                }
            }
        };
        if in_time.is_some() {
            return Ok(northd);
        }
        let waited = started.elapsed();
        let lacking: Vec<&AddedPort> = ports
            .iter()
            .filter(|port| !self.client.read(|db| shows(db, port, is_installed)))
            .collect();
        let until = Instant::now() + DIAGNOSIS_DEADLINE;
        let diagnosis = tokio::select! {
            diagnosis = self.diagnose(&lacking, until) => diagnosis,
            Ok(Some(())) = installed(until) => return Ok(northd),
        };
        Err(PortError::NotInstalled {
            waited,
            diagnosis: Box::new(diagnosis),
        })
    }

    /// Waits until a port's row meets the condition, or can't any more.
    async fn wait_interface(
        &self,
        port: &AddedPort,
        deadline: Instant,
        wanted: impl Fn(&Interface<'_>) -> bool,
    ) -> Result<Result<(), PortError>, WaitError> {
        self.client
            .wait_row_and_index(
                "Interface",
                port.interface,
                (BY_IFACE_ID, &port.iface_id),
                deadline,
                |db| match hopeless(db, port) {
                    Some(error) => Some(Err(error)),
                    None => shows(db, port, &wanted).then_some(Ok(())),
                },
            )
            .await
    }

    /// Waits until ovs-vswitchd uses the bridge's local port.
    ///
    /// # Errors
    /// [`PortError::NoOfport`] when the time is up.
    pub async fn wait_local_port(&self, patience: Duration) -> Result<(), PortError> {
        let started = Instant::now();
        let awaited = format!("the local port of bridge {}", self.bridge);
        let in_use = |db: &Db| {
            let local = db.interface_by_name(&self.bridge)?;
            local.ofport().filter(|ofport| *ofport > 0).map(drop)
        };
        let waiting = self.client.wait(&awaited, started + patience, in_use);
        waiting.await.map_err(|source| PortError::NoOfport {
            waited: started.elapsed(),
            source,
        })
    }

    /// Whether ovsdb-server answers a query. A hung server keeps its connection until the
    /// connection's probe fails, some seconds later.
    ///
    /// # Errors
    /// [`PortError::DatabaseSilent`].
    pub async fn database_answers(&self, patience: Duration) -> Result<(), PortError> {
        let mut read = Transaction::new();
        read.select("Open_vSwitch", Vec::new(), &["cur_cfg"]);
        match self.client.transact(&read, Instant::now() + patience).await {
            Err(TransactError::Timeout { waited, .. }) => Err(PortError::DatabaseSilent {
                ovsdb: self.ovsdb.clone(),
                waited,
            }),
            // Any other failure belongs to the connection, which reports it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The version of ovs-vswitchd, if its main loop answers. The socket alone proves nothing: a
    /// stopped process keeps it.
    ///
    /// # Errors
    /// [`PortError::SwitchDead`].
    pub async fn switch_alive(&self, patience: Duration) -> Result<String, PortError> {
        let deadline = Instant::now() + patience;
        match ask_daemon(&self.rundir, "ovs-vswitchd", "version", deadline).await {
            Ok(said) => Ok(version_of(&said)),
            Err(source) => Err(PortError::SwitchDead {
                rundir: self.rundir.clone(),
                source,
            }),
        }
    }
}

/// `3.1.0` of `ovs-vswitchd (Open vSwitch) 3.1.0`.
pub fn version_of(said: &str) -> String {
    let first = said.lines().next().unwrap_or_default();
    first.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Runs a command on a daemon's control socket.
pub(super) async fn ask_daemon(
    rundir: &Path,
    daemon: &str,
    command: &str,
    deadline: Instant,
) -> Result<String, UnixctlError> {
    Unixctl::for_daemon(rundir, daemon)?
        .call(command, &[], deadline)
        .await
}

fn shows(db: &Db, port: &AddedPort, wanted: impl Fn(&Interface<'_>) -> bool) -> bool {
    db.interface(port.interface)
        .is_some_and(|interface| wanted(&interface))
}

/// Why a port can never come up, however long one waits.
fn hopeless(db: &Db, port: &AddedPort) -> Option<PortError> {
    let Some(interface) = db.interface(port.interface) else {
        return Some(PortError::RowGone {
            port: port.name.clone(),
        });
    };
    let iface_id = interface.external_id(ids::IFACE_ID);
    if iface_id != Some(port.iface_id.as_str()) {
        return Some(PortError::IfaceIdChanged {
            port: port.name.clone(),
            ours: port.iface_id.clone(),
            now: iface_id.unwrap_or("nothing").to_owned(),
        });
    }
    let other = db
        .interfaces_with(&port.iface_id)
        .filter(|other| other.external_id(ids::BRIDGE) == interface.external_id(ids::BRIDGE))
        .find(|other| other.uuid() != port.interface);
    if let Some(other) = other {
        return Some(PortError::IfaceIdTaken {
            port: port.name.clone(),
            iface_id: port.iface_id.clone(),
            by: other.name().to_owned(),
        });
    }
    let refusal = refusal(&interface)?;
    Some(PortError::Refused {
        port: port.name.clone(),
        text: refusal.to_owned(),
    })
}
