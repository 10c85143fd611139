//! The last MAC address of each IP address: neighbours need an announcement only if it changes.
//!
//! If a pod's address had the same MAC before, or none, then everybody who asks for it learns the
//! right one. An unsolicited announcement costs ovs-vswitchd a flow to every port
//! (docs/decisions/0039).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use macaddr::MacAddr6;

use super::call::Add;
use super::removal::addresses;
use crate::config::Mode;
use crate::plan::{PortPlan, ids, pod_mac};

/// The number of addresses remembered: a subnet of 65,536.
const MOST: usize = 1 << 16;

/// The last MAC address of each IP address whose pod was deleted since the agent started.
#[derive(Debug, Default)]
pub struct LastHolders(Mutex<HashMap<IpAddr, MacAddr6>>);

impl LastHolders {
    /// A pod with these external_ids of its port was deleted.
    pub(super) fn gone(&self, external_ids: &BTreeMap<String, String>) {
        let mac = external_ids
            .get(ids::ATTACHED_MAC)
            .and_then(|it| it.parse().ok());
        let Some(mac) = mac else { return };
        let mut known = self.known();
        known.extend(addresses(external_ids).map(|address| (address, mac)));
        if known.len() > MOST {
            // From then on everything is announced.
            known.clear();
        }
    }

    /// Whether somebody may know an address by a MAC address other than this one. Until an IPv4
    /// address was seen to be released, it can only have had the MAC address derived from it.
    fn may_have_had_another(&self, address: IpAddr, mac: MacAddr6) -> bool {
        match self.known().get(&address) {
            Some(last) => *last != mac,
            None => address.is_ipv6() || pod_mac(&[address.into()], &[]) != mac,
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<IpAddr, MacAddr6>> {
        // Every change is atomic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Add<'_> {
    /// Keeps the addresses whose neighbours need an announcement. Addresses that the agent does not
    /// assign (in OVN mode, by a delegated IPAM plugin, and on a network attachment definition's
    /// network) may have been on another node.
    pub(super) fn announce_what_moved(&self, planned: &mut [PortPlan]) {
        if self.node.config.ovn.mode == Mode::Ovn || self.call.conf.ipam.is_some() {
            return;
        }
        for port in planned.iter_mut().filter(|port| !port.has_definition()) {
            let (holders, mac) = (&self.node.last_holders, port.link.pod_mac);
            let announced = &mut port.link.announce;
            announced.retain(|address| holders.may_have_had_another(*address, mac));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::mac_text;

    #[test]
    fn neighbours_are_told_of_another_mac_and_of_what_is_not_known() {
        let holders = LastHolders::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6) = (address("10.1.2.3"), address("fd00::3"));
        let (own, other) = (pod_mac(&[v4.into()], &[]), MacAddr6::new(2, 0, 0, 0, 0, 1));
        let told = |mac| [v4, v6].map(|address| holders.may_have_had_another(address, mac));

        assert_eq!(
            told(own),
            [false, true],
            "an IPv6 address does not tell its MAC"
        );
        assert_eq!(told(other), [true, true]);
        let gone = |mac, addresses: &str| {
            let ids = [
                (ids::ATTACHED_MAC, mac_text(mac)),
                (ids::IP_ADDRESSES, addresses.to_owned()),
            ];
            holders.gone(&ids.map(|(key, value)| (key.to_owned(), value)).into());
        };
        gone(own, "10.1.2.3/24,fd00::3/64");
        assert_eq!(told(own), [false, false]);
        assert_eq!(told(other), [true, true]);
        gone(other, "10.1.2.3/24");
        assert_eq!(told(own), [true, false]);
        assert_eq!(told(other), [false, true]);
    }
}
