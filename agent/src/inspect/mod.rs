//! What operators see of the agent, on `GET /v1/status`, `/v1/ports`, `/v1/traces`, `/v1/check` and
//! `/v1/gc`: views of the lower modules' state as JSON, which the tools parse back
//! into the same types.

mod filter;
mod ports;
mod status;
mod watch;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use filter::{Filter, UnknownFilter};
pub use ports::sort;
pub use ports::{PortView, ports};
pub use status::{
    Attachments, Database, Failure, NorthdWaits, PortCounts, Reachable, SourceView, SpoolView,
    StatusView, SubnetView, status,
};
pub use watch::{Change, Watchers, changes};

use crate::attach::{Error, Handles};
use crate::observe::Recorder;
use crate::reconcile::{self, Audit, Leftover};

/// The answer to `GET /v1/ports`: every port.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PortList {
    /// In the order of their pods.
    pub ports: Vec<PortView>,
}

/// The answer to `GET /v1/check`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AuditList {
    /// In the order of their pods.
    pub attachments: Vec<Audit>,
}

/// What `GET /v1/gc` found, or `POST /v1/gc` removed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftoverList {
    /// What can be removed, or was.
    pub leftovers: Vec<Leftover>,
    /// Number of QoS rows that no port uses: to remove, or removed.
    #[serde(default)]
    pub qos_rows: usize,
}

/// Compares what exists with what was created.
///
/// # Errors
/// Open vSwitch's database can't be reached, or the kernel does not answer.
pub async fn check(node: &Handles, filter: &Filter) -> Result<AuditList, Error> {
    let attachments = reconcile::audit(node, |pod| filter.admits_pod(pod)).await?;
    Ok(AuditList { attachments })
}

/// The leftovers; removes them as well if `remove`.
///
/// # Errors
/// Open vSwitch's database can't be reached, or the kernel does not answer.
pub async fn gc(node: &Handles, remove: bool) -> Result<LeftoverList, Error> {
    Ok(match remove {
        true => LeftoverList {
            leftovers: reconcile::remove_leftovers(node).await?,
            qos_rows: node.ports.remove_unused_qos().await?,
        },
        false => LeftoverList {
            leftovers: reconcile::leftovers(node).await?,
            qos_rows: node.ports.unused_qos(),
        },
    })
}

/// The last operations, oldest first.
pub fn traces(recorder: &Recorder, filter: &Filter) -> String {
    let mut operations = recorder.operations(usize::MAX);
    operations.retain(|operation| filter.admits(operation));
    let last = filter.last.unwrap_or(usize::MAX);
    operations.drain(..operations.len().saturating_sub(last));
    serde_json::json!({ "operations": operations }).to_string()
}

/// The present time, in microseconds since 1970.
pub fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}
