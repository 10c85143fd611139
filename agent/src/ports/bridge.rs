//! The bridge of plain mode. In OVN mode it is ovn-controller's to make, and nothing here runs.

use podwire_ovs::transact::Transaction;
use podwire_ovs::vswitch::{self, BridgeSpec, StringMap};

use super::{PortError, Ports};

/// In external_ids: podwire made it.
const MADE: &str = "podwire.io/made";

/// What the bridge should be like if it has to be made.
#[derive(Debug, Clone)]
pub struct BridgeWanted {
    /// `system` or `netdev`.
    pub datapath_type: &'static str,
    /// MAC address of the local port.
    pub hwaddr: String,
    /// MTU of the local port, in bytes.
    pub mtu: u32,
}

impl Ports {
    /// Makes the bridge when it is missing. One that is there keeps its datapath and fail mode;
    /// what its local port lacks to be a gateway, a fixed address and MTU, is added.
    ///
    /// # Errors
    /// The database refused, or there was no answer.
    pub async fn ensure_bridge(&self, wanted: &BridgeWanted) -> Result<(), PortError> {
        let transaction = self
            .client
            .read(|db| match db.bridge_by_name(&self.bridge) {
                None => {
                    let root = db.open_vswitch()?.uuid();
                    tracing::info!(
                        bridge = self.bridge,
                        datapath = wanted.datapath_type,
                        "making the bridge"
                    );
                    Some(vswitch::add_bridge(root, &self.bridge_spec(wanted)).transaction)
                }
                Some(bridge) => {
                    let mut transaction = Transaction::new();
                    if bridge.other_config().str("hwaddr").is_none() {
                        let hwaddr =
                            StringMap::from([("hwaddr".to_owned(), wanted.hwaddr.clone())]);
                        vswitch::set_keys(
                            &mut transaction,
                            "Bridge",
                            bridge.uuid(),
                            "other_config",
                            &hwaddr,
                        );
                    }
                    // A pod with a larger MTU than its gateway could send what the gateway can't
                    // answer. One that we made is raised when the pods' MTU is; it is not lowered,
                    // for there are pods that have the old one.
                    let ours = bridge.external_ids().str(MADE).is_some();
                    let is_too_small = |request: Option<i64>| match request {
                        None => true,
                        Some(mtu) => ours && mtu < i64::from(wanted.mtu),
                    };
                    if let Some(local) = db
                        .interface_by_name(&self.bridge)
                        .filter(|it| is_too_small(it.mtu_request()))
                    {
                        let mtu = podwire_ovs::transact::Columns::new()
                            .set("mtu_request", i64::from(wanted.mtu));
                        transaction.update(
                            "Interface",
                            podwire_ovs::transact::Condition::uuid(local.uuid()),
                            mtu,
                        );
                    }
                    (!transaction.is_empty()).then_some(transaction)
                }
            });
        let Some(transaction) = transaction else {
            return Ok(());
        };
        self.commit("make bridge", self.bridge.clone(), &transaction)
            .await
    }

    fn bridge_spec(&self, wanted: &BridgeWanted) -> BridgeSpec {
        BridgeSpec {
            name: self.bridge.clone(),
            datapath_type: Some(wanted.datapath_type.to_owned()),
            // Without a controller the bridge is to switch by itself.
            fail_mode: Some("standalone".to_owned()),
            other_config: StringMap::from([("hwaddr".to_owned(), wanted.hwaddr.clone())]),
            external_ids: StringMap::from([(MADE.to_owned(), "true".to_owned())]),
            mtu_request: Some(wanted.mtu),
        }
    }
}
