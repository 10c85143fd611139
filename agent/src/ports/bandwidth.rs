//! A pod's bandwidth limits in Open vSwitch. Traffic from the pod is policed at its Interface;
//! traffic to it is shaped by a QoS row of its Port.

use podwire_ovs::replica::Db;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{Interface, PortSpec, Qos, QosSpec, StringMap};

use crate::plan::{AttachmentKey, Bandwidth, ids};

impl Bandwidth {
    /// The limits that a port's rows hold.
    pub(super) fn read(db: &Db, interface: Interface<'_>) -> Self {
        let policed = u64::try_from(interface.ingress_policing_rate()).unwrap_or_default();
        let qos = db
            .port_of_interface(interface.uuid())
            .and_then(|port| db.qos(port.qos()?));
        let max_rate = qos.and_then(|qos| qos.other_config().str("max-rate"));
        Self {
            ingress_rate: max_rate.and_then(|rate| rate.parse().ok()),
            egress_rate: (policed > 0).then_some(policed.saturating_mul(1000)),
        }
    }

    /// Adds the limits to a port before it is created. The QoS row carries the attachment's keys,
    /// so that it can be recognised as the port's own, and as unused once no port refers to it.
    pub(super) fn apply(self, spec: &mut PortSpec) {
        if let Some(rate) = self.egress_rate {
            // kbit/s; 0 would be no limit at all.
            let kilobits = u32::try_from(rate / 1000).unwrap_or(u32::MAX).max(1);
            spec.ingress_policing_rate = Some(kilobits);
            // A tenth of the rate, as ovs-vswitchd.conf.db(5) advises. A burst smaller than a
            // packet would pass nothing.
            spec.ingress_policing_burst = Some((kilobits / 10).max(LEAST_BURST));
        }
        if let Some(rate) = self.ingress_rate {
            let keys = [ids::SANDBOX, ids::NETWORK, ids::IFNAME];
            let owner = keys.into_iter().filter_map(|key| {
                let value = spec.external_ids.get(key)?;
                Some((key.to_owned(), value.clone()))
            });
            spec.qos = Some(QosSpec {
                qos_type: "linux-htb".to_owned(),
                other_config: StringMap::from([("max-rate".to_owned(), rate.to_string())]),
                external_ids: owner.collect(),
                ..QosSpec::default()
            });
        }
    }
}

/// QoS rows of a sandbox that no port uses. QoS is a root table: its row stays when `ovs-vsctl
/// del-port` removes the port, or when the bridge is removed.
pub(super) fn unused_qos(db: &Db, sandbox: &str) -> Vec<Uuid> {
    let rows = db.qos_with_sandbox(sandbox);
    rows.filter(|qos| is_unused(db, qos))
        .map(|qos| qos.uuid())
        .collect()
}

/// All unused QoS rows. ovn-kubernetes marks its rows with the sandbox alone and creates them
/// before the port refers to them, so one of those is unused only when its sandbox has no
/// interface.
pub(super) fn all_unused_qos(db: &Db) -> Vec<Uuid> {
    let is_left = |qos: &Qos<'_>| match (
        qos.external_id(ids::SANDBOX),
        AttachmentKey::of_row(|id| qos.external_id(id)),
    ) {
        (None, _) => false,
        (Some(_), Some(_)) => is_unused(db, qos),
        (Some(sandbox), None) => {
            is_unused(db, qos) && db.interfaces_with_sandbox(sandbox).next().is_none()
        }
    };
    let rows = db.all_qos().filter(is_left);
    rows.map(|qos| qos.uuid()).collect()
}

fn is_unused(db: &Db, qos: &Qos<'_>) -> bool {
    db.ports_with_qos(qos.uuid()).next().is_none()
}

/// The smallest burst, in kbit: a few packets of the largest usual size.
const LEAST_BURST: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(bandwidth: Bandwidth) -> PortSpec {
        let mut spec = PortSpec::default();
        spec.external_ids.insert("sandbox".into(), "abc".into());
        bandwidth.apply(&mut spec);
        spec
    }

    #[test]
    fn without_limits_a_port_has_neither_policing_nor_qos() {
        let spec = applied(Bandwidth::default());
        assert_eq!((spec.ingress_policing_rate, spec.qos), (None, None));
    }

    #[test]
    fn what_a_pod_sends_is_policed_in_kilobits() {
        for (rate, kilobits, burst) in [
            (10_000_000, 10_000, 1000),
            (1000, 1, 200),
            (1, 1, 200),
            (u64::MAX, u32::MAX, u32::MAX / 10),
        ] {
            let spec = applied(Bandwidth {
                egress_rate: Some(rate),
                ..Bandwidth::default()
            });
            assert_eq!(spec.ingress_policing_rate, Some(kilobits));
            assert_eq!(spec.ingress_policing_burst, Some(burst));
        }
    }

    #[test]
    fn what_a_pod_receives_is_shaped_by_a_qos_row_that_says_whose_it_is() {
        let spec = applied(Bandwidth {
            ingress_rate: Some(5_000_000),
            ..Bandwidth::default()
        });
        let qos = spec.qos.unwrap();
        assert_eq!(qos.qos_type, "linux-htb");
        assert_eq!(qos.other_config["max-rate"], "5000000");
        assert_eq!(qos.external_ids["sandbox"], "abc");
    }
}
