//! Who limits a pod's traffic, and how: podwire, by annotations and the `bandwidth` capability, or
//! another plugin in the network's list.

use podwire_cni::spec::NetConf;

use super::Handles;
use crate::plan::{Bandwidth, InterfaceSpec};

/// The capability's name (CNI conventions).
const CAPABILITY: &str = "bandwidth";

/// Applies the runtime's limits where no annotation set any, and none if another plugin limits
/// (docs/decisions/0029): two of them on one link make each other's ADD fail.
pub(super) async fn limit(node: &Handles, interfaces: &mut [InterfaceSpec], conf: &NetConf) {
    let given = conf.runtime.bandwidth.unwrap_or_default();
    // 0 is no limit (CNI conventions, "bandwidth").
    let rate = |rate: u64| (rate > 0).then_some(rate);
    for interface in &mut *interfaces {
        let set = &mut interface.bandwidth;
        set.ingress_rate = set.ingress_rate.or(rate(given.ingress_rate));
        set.egress_rate = set.egress_rate.or(rate(given.egress_rate));
    }
    let is_limited = |it: &InterfaceSpec| it.bandwidth != Bandwidth::default();
    if interfaces.iter().any(is_limited) && is_left_to_another(node, conf).await {
        for interface in interfaces {
            interface.bandwidth = Bandwidth::default();
        }
    }
}

async fn is_left_to_another(node: &Handles, conf: &NetConf) -> bool {
    if conf.capabilities.get(CAPABILITY) == Some(&false) {
        return true;
    }
    let (runtime, network) = (node.config.runtime.clone(), conf.name.clone());
    let looked =
        tokio::task::spawn_blocking(move || runtime.leaves_to_another(&network, CAPABILITY));
    looked.await.unwrap_or_default()
}
