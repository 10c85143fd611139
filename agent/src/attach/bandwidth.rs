//! The `bandwidth` capability: limits that the runtime sets where the pod's annotations set none.

use podwire_cni::spec::NetConf;

use crate::plan::InterfaceSpec;

/// Limits what nobody else has limited.
pub(super) fn limit(interfaces: &mut [InterfaceSpec], conf: &NetConf) {
    let Some(bandwidth) = &conf.runtime.bandwidth else {
        return;
    };
    // 0 is no limit (CNI conventions, "bandwidth").
    let rate = |rate: u64| (rate > 0).then_some(rate);
    for interface in interfaces {
        let set = &mut interface.bandwidth;
        set.ingress_rate = set.ingress_rate.or(rate(bandwidth.ingress_rate));
        set.egress_rate = set.egress_rate.or(rate(bandwidth.egress_rate));
    }
}
