//! Ports that ovs-cni created. It marks their Port rows and no others: with itself as owner, and
//! with the pod's namespace and interface (pkg/ovsdb at 19262a0c).

use podwire_netns::{Netns, NetnsError};

use super::{PortRecord, Ports};

const OWNER: &str = "owner";
const OVS_CNI: &str = "ovs-cni.network.kubevirt.io";
const NETNS: &str = "contNetns";
const IFNAME: &str = "contIface";

/// A port that ovs-cni created.
#[derive(Debug)]
pub struct OvsCniPort {
    /// Its rows.
    pub record: PortRecord,
    /// CNI_NETNS of its ADD.
    pub netns: String,
    /// CNI_IFNAME of its ADD.
    pub ifname: String,
}

impl Ports {
    /// The ports of any bridge that ovs-cni created. Looks at all ports.
    pub fn of_ovs_cni(&self) -> Vec<OvsCniPort> {
        self.client.read(|db| {
            let interfaces = db.interfaces();
            let of_ovs_cni = interfaces.filter_map(|interface| {
                let port = db.port_of_interface(interface.uuid())?;
                (port.external_id(OWNER) == Some(OVS_CNI)).then_some(())?;
                Some(OvsCniPort {
                    record: PortRecord::read(db, interface),
                    netns: port.external_id(NETNS)?.to_owned(),
                    ifname: port.external_id(IFNAME)?.to_owned(),
                })
            });
            of_ovs_cni.collect()
        })
    }
}

impl OvsCniPort {
    /// Whether its pod's namespace is gone; in doubt it is not.
    pub fn is_stale(&self) -> bool {
        matches!(
            Netns::open(&self.netns),
            Err(NetnsError::Absent { .. } | NetnsError::NotANamespace { .. })
        )
    }
}
