//! The bridge in plain mode. In OVN mode ovn-controller creates it, and nothing here runs.

use podwire_ovs::transact::Transaction;
use podwire_ovs::vswitch::{self, BridgeSpec, StringMap};

use super::{PortError, Ports};

/// Key in external_ids: podwire created the bridge.
const MADE: &str = "podwire.io/made";

/// How to create the bridge if it is missing.
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
    /// Creates the bridge if it is missing. An existing bridge keeps its datapath and fail mode; if
    /// its local port has no fixed MAC address or MTU, which a gateway needs, that is set.
    ///
    /// # Errors
    /// The database refused, or did not answer.
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
                    // A pod with a larger MTU than its gateway could send packets that the gateway
                    // can't answer. If podwire created the bridge, the MTU follows the pods'
                    // upwards; it is never lowered, because existing pods keep theirs.
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
            // Without a controller, the bridge switches by itself.
            fail_mode: Some("standalone".to_owned()),
            other_config: StringMap::from([("hwaddr".to_owned(), wanted.hwaddr.clone())]),
            external_ids: StringMap::from([(MADE.to_owned(), "true".to_owned())]),
            mtu_request: Some(wanted.mtu),
        }
    }
}
