//! The gateway bridge's flows in ovs-vswitchd, by OpenFlow.

use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_ovs::client::Remote;
use podwire_ovs::openflow::{Connection, Flow, FlowMod, OpenFlowError, management_socket};
use tokio::time::timeout;

use crate::GATEWAY;
use crate::items::{ALL_FLOWS, BridgeFlows, ObservedFlows};

/// Time limit of an answer: a stopped ovs-vswitchd gives none.
const LIMIT: Duration = Duration::from_secs(2);

/// Why the flows can't be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlowsError {
    #[error("change the flows of {GATEWAY}: {0}")]
    OpenFlow(#[from] OpenFlowError),
    #[error("change the flows of {GATEWAY}: ovs-vswitchd has not answered within {} s",
        LIMIT.as_secs())]
    Late,
}

/// Where ovs-vswitchd takes the bridge's flows: beside its database's socket.
pub(crate) fn socket(ovsdb: &Remote) -> PathBuf {
    let directory = match ovsdb {
        Remote::Unix(path) => path.parent(),
        Remote::Tcp(_) | Remote::Ssl(_) => None,
    };
    let directory = directory.unwrap_or(Path::new("/run/openvswitch"));
    management_socket(directory, GATEWAY)
}

/// podwire's flows on the bridge; none if there is no bridge, or ovs-vswitchd does not answer.
pub(crate) async fn observe(socket: &Path, planned: &BridgeFlows) -> Option<ObservedFlows> {
    let asked = async {
        let mut connection = Connection::open(socket.to_owned()).await?;
        Ok::<_, OpenFlowError>(ObservedFlows {
            all: connection.count(ALL_FLOWS).await?,
            planned: connection.count(planned.cookie()).await?,
        })
    };
    timeout(LIMIT, asked).await.ok()?.ok()
}

/// Replaces podwire's flows by these, all at once.
pub(crate) async fn replace(socket: &Path, flows: Vec<Flow>) -> Result<(), FlowsError> {
    let flows = flows.into_iter().map(FlowMod::Add);
    let changes: Vec<FlowMod> = [FlowMod::Delete(ALL_FLOWS)]
        .into_iter()
        .chain(flows)
        .collect();
    let written = async {
        let mut connection = Connection::open(socket.to_owned()).await?;
        Ok(connection.commit(&changes).await?)
    };
    timeout(LIMIT, written)
        .await
        .unwrap_or(Err(FlowsError::Late))
}
