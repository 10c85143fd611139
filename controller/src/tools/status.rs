use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use podwire_daemon::output::Format;
use podwire_ovs::certificate::ending;
use podwire_ovs::client::Client as Ovsdb;
use podwire_ovs::nb::{EPOCH, Table};
use podwire_ovs::protocol::TlsKeys;
use podwire_ovs::replica::TableSpec;
use serde::Serialize;
use tokio::time::Instant;

use super::ovn::{self, Northd, Size};
use super::round::Round;
use super::{REACH, ToolError, View, reach_database};
use crate::config::Config;
use crate::lease::{DELAYS, NAME};
use crate::write::Write;

/// The maximum number of problems shown to people.
const MOST: usize = 20;

/// The content of a status.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// There is a leader, and no problem.
    is_well: bool,
    /// The leader, or why there is none.
    leader: String,
    /// The epoch of the last term.
    epoch: Option<String>,
    nodes: usize,
    /// Those on the pod network.
    pods: usize,
    /// Those with cluster IPs.
    services: usize,
    /// By table.
    rows: BTreeMap<&'static str, usize>,
    /// Why the southbound database can't be asked; null if it answers, or is not named.
    southbound: Option<String>,
    /// ovn-northd and the nodes, as the leader sees them.
    northd: Northd,
    /// What OVN answered, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<Round>,
    /// The changes that a leader would make now.
    pending: Pending,
    /// Objects whose rows can't be brought in line, with reasons.
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Pending {
    operations: usize,
    writes: usize,
}

#[derive(Debug, Serialize)]
struct Problem {
    object: String,
    reason: &'static str,
    message: String,
}

/// The leader, the number of objects, and the problems; true if all is well. With `ask`, OVN is
/// asked how long a change takes, for so long at most.
///
/// # Errors
/// See [`ToolError`].
pub async fn status(
    config: &Config,
    format: Format,
    ask: Option<Duration>,
) -> Result<(String, bool), ToolError> {
    let (view, southbound) = tokio::join!(View::open(config), southbound(config));
    let mut view = view?;
    let leases: Api<Lease> = Api::namespaced(view.client.clone(), &config.lease_namespace);
    let lease = leases.get_opt(NAME).await?;
    let (leader, has_leader) = leader(lease.as_ref());
    let (epoch, version, rows) = view.ovsdb.read(|db| {
        let key = |column, key| db.nb_global()?.map(column).str(key);
        let epoch = key("external_ids", EPOCH).map(str::to_owned);
        let version = key("options", ovn::VERSION).map(ovn::version);
        let rows = Table::ALL.map(|table| (table.name(), db.len(table.name())));
        (epoch, version, rows.into())
    });
    let annotations = lease
        .as_ref()
        .and_then(|it| it.metadata.annotations.as_ref());
    let report = annotations
        .and_then(|it| it.get(DELAYS))
        .filter(|_| has_leader);
    let report = report.and_then(|text| serde_json::from_str(text).ok());
    let step = view.pending();
    let warnings = step.writes.iter().filter_map(|(key, write)| match write {
        Write::Warning {
            reason, message, ..
        } => Some(Problem {
            object: key.to_string(),
            reason,
            message: message.to_string(),
        }),
        _ => None,
    });
    let mut problems: Vec<_> = warnings.collect();
    // An Event that repeats one is nothing that is pending.
    let writes = step.writes.len() - problems.len();
    // What ends soon is one before nothing works any more.
    let keys = config.tls();
    let ending = keys
        .iter()
        .flat_map(TlsKeys::inspect)
        .filter_map(|(file, read)| {
            let message = ending(file, &read.ok()?, Timestamp::now())?;
            Some(Problem {
                object: "TLS".to_owned(),
                reason: "CertificateEnds",
                message,
            })
        });
    problems.extend(ending);
    let cluster = &view.state.cluster;
    let size = Size {
        pods: cluster.pods.len(),
        services: cluster.services.len(),
    };
    let northd = Northd::new(version, report, size);
    let round = match ask {
        Some(limit) => Some(Round::take(config, limit).await?),
        None => None,
    };
    let is_answered = round.as_ref().is_none_or(Round::has_northd);
    let status = Status {
        is_well: has_leader
            && problems.is_empty()
            && southbound.is_none()
            && !northd.is_stuck()
            && is_answered,
        leader,
        epoch,
        nodes: cluster.nodes.len(),
        pods: cluster.pods.len(),
        services: cluster.services.len(),
        rows,
        southbound,
        northd,
        round,
        pending: Pending {
            operations: step.transaction.len(),
            writes,
        },
        problems,
    };
    let text = format.encode(&status, || status.to_string());
    Ok((text.map_err(ToolError::Format)?, status.is_well))
}

/// For people.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, content: &str| writeln!(f, "{name:<9} {content}");
        line("leader", &self.leader)?;
        let none = "none: no controller has led yet";
        line("epoch", self.epoch.as_deref().unwrap_or(none))?;
        let objects = format!(
            "{} nodes, {} pods on the pod network, {} services with cluster IPs",
            self.nodes, self.pods, self.services
        );
        line("objects", &objects)?;
        let rows = Table::ALL.map(|table| {
            let count = self.rows.get(table.name()).copied().unwrap_or_default();
            format!("{} {count}", table.name())
        });
        line("rows", &rows.join(", "))?;
        let pending = match self.pending {
            Pending {
                operations: 0,
                writes: 0,
            } => "nothing: rows and annotations match the objects".to_owned(),
            Pending { operations, writes } => format!(
                "{operations} operations and {writes} writes to Kubernetes; --dry-run shows them"
            ),
        };
        line("pending", &pending)?;
        if let Some(problem) = &self.southbound {
            line("problem", problem)?;
        }
        for (name, content) in self.northd.lines() {
            line(name, &content)?;
        }
        if let Some(round) = &self.round {
            line("nb_cfg", &round.to_string())?;
        }
        for Problem {
            object, message, ..
        } in self.problems.iter().take(MOST)
        {
            line("problem", &format!("{object}: {message}"))?;
        }
        if self.problems.len() > MOST {
            line("", &format!("and {} more", self.problems.len() - MOST))?;
        }
        Ok(())
    }
}

/// Why the southbound database can't be asked. Nothing reaches the nodes then.
async fn southbound(config: &Config) -> Option<String> {
    if config.sb_db.is_empty() {
        return None;
    }
    let global = TableSpec::of("SB_Global", &["nb_cfg"]);
    let asked = async {
        let ovsdb = Ovsdb::start(config.database("OVN_Southbound", vec![global])?);
        let server = format!("the southbound database {} (--sb-db)", config.sb_db);
        reach_database(&ovsdb, server, Instant::now() + REACH).await
    };
    asked.await.err().map(|error: ToolError| error.to_string())
}

/// The leader, and whether there is one.
fn leader(lease: Option<&Lease>) -> (String, bool) {
    let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) else {
        return (format!("none: there is no Lease {NAME}"), false);
    };
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() {
        return ("none: the last one let go".to_owned(), false);
    }
    let renewed = spec
        .renew_time
        .as_ref()
        .map_or(0, |time| time.0.as_second());
    let ago = Timestamp::now().as_second() - renewed;
    let lasts: i64 = spec.lease_duration_seconds.unwrap_or_default().into();
    match ago <= lasts {
        true => (
            format!("{holder}, which renewed its lease {ago} s ago"),
            true,
        ),
        false => {
            let text = format!(
                "none: {holder} has not renewed its lease for {ago} s, and it lasts {lasts} s"
            );
            (text, false)
        }
    }
}
