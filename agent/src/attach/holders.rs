//! The last MAC address of each IP address: neighbours need an announcement only if it changes.
//!
//! If a pod's address had the same MAC before, or none, then everybody who asks for it learns the
//! right one. Of another MAC only those can know that were there while an earlier pod had it
//! (docs/decisions/0039).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use macaddr::MacAddr6;
use tokio::time::Instant;

use super::call::Add;
use super::removal::addresses;
use super::undo::Undo;
use crate::config::Mode;
use crate::plan::{PortPlan, ids, pod_mac};

/// The number of addresses remembered: a subnet of 65,536.
const MOST: usize = 1 << 16;

/// The last MAC address of each IP address whose pod was deleted since the agent started.
#[derive(Debug)]
pub struct LastHolders(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// Each with the time when its pod was gone.
    last: HashMap<IpAddr, (MacAddr6, Instant)>,
    /// An address that is not among them was released before this time, or never used.
    since: Instant,
}

impl LastHolders {
    /// A pod with these external_ids of its port was deleted.
    pub(super) fn gone(&self, external_ids: &BTreeMap<String, String>) {
        let mac = external_ids
            .get(ids::ATTACHED_MAC)
            .and_then(|it| it.parse().ok());
        let Some(mac) = mac else { return };
        let now = Instant::now();
        let mut known = self.known();
        let released = addresses(external_ids).map(|address| (address, (mac, now)));
        known.last.extend(released);
        if known.last.len() > MOST {
            // What the addresses don't tell stays, if it is little: chosen MAC addresses.
            known.last.retain(|address, (mac, _)| {
                address.is_ipv4() && pod_mac(&[(*address).into()], &[]) != *mac
            });
            if known.last.len() > MOST / 2 {
                known.last.clear();
            }
            known.since = now;
        }
    }

    /// Until when somebody can have learnt an address by a MAC address other than this one; None if
    /// nobody can. Until an IPv4 address was seen to be released, it can only have had the MAC
    /// address derived from it.
    fn known_by_another(&self, address: IpAddr, mac: MacAddr6) -> Option<Instant> {
        let known = self.known();
        match known.last.get(&address) {
            Some((last, gone)) => (*last != mac).then_some(*gone),
            None => {
                let is_possible = address.is_ipv6() || pod_mac(&[address.into()], &[]) != mac;
                is_possible.then_some(known.since)
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Every change is atomic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for LastHolders {
    fn default() -> Self {
        Self(Mutex::new(Known {
            last: HashMap::new(),
            since: Instant::now(),
        }))
    }
}

impl Add<'_> {
    /// Keeps the addresses whose neighbours need an announcement.
    pub(super) fn announce_what_moved(&self, planned: &mut [PortPlan], undo: &Undo) {
        let (ports, holders) = (&self.node.ports, &self.node.last_holders);
        for older in undo.older_sandboxes() {
            for record in ports.find(&older) {
                holders.gone(&record.external_ids);
            }
        }
        for port in planned.iter_mut().filter(|it| self.has_history(it)) {
            let mac = port.link.pod_mac;
            let announced = &mut port.link.announce;
            announced.retain(|address| holders.known_by_another(*address, mac).is_some());
        }
    }

    /// Until when neighbours can have learnt a port's addresses by another MAC address; None if
    /// that is not known.
    pub(super) fn known_by_another_until(&self, port: &PortPlan) -> Option<Instant> {
        let holders = self.has_history(port).then_some(&self.node.last_holders)?;
        let announced = port.link.announce.iter();
        let until = announced.filter_map(|it| holders.known_by_another(*it, port.link.pod_mac));
        Some(until.max().unwrap_or(holders.known().since))
    }

    /// Whether the agent has seen all pods that had the port's addresses since it started.
    /// Addresses that it does not assign (in OVN mode, by a delegated IPAM plugin, and on a network
    /// attachment definition's network) may have been on another node.
    fn has_history(&self, port: &PortPlan) -> bool {
        let is_ours = self.node.config.ovn.mode == Mode::Plain && self.call.conf.ipam.is_none();
        is_ours && !port.has_definition() && !port.is_elsewhere()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::plan::mac_text;

    #[test]
    fn neighbours_are_told_of_another_mac_and_of_what_is_not_known() {
        let holders = LastHolders::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (v4, v6) = (address("10.1.2.3"), address("fd00::3"));
        let (own, other) = (pod_mac(&[v4.into()], &[]), MacAddr6::new(2, 0, 0, 0, 0, 1));
        let told = |mac| [v4, v6].map(|it| holders.known_by_another(it, mac).is_some());

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

    #[test]
    fn another_mac_may_be_known_until_its_pod_was_gone_or_what_was_before_was_forgotten() {
        let holders = LastHolders::default();
        let gone = |address: Ipv6Addr, mac| {
            let ids = [
                (ids::ATTACHED_MAC, mac_text(mac)),
                (ids::IP_ADDRESSES, format!("{address}/64")),
            ];
            holders.gone(&ids.map(|(key, value)| (key.to_owned(), value)).into());
        };
        let (own, other) = (
            MacAddr6::new(2, 0, 0, 0, 0, 1),
            MacAddr6::new(2, 0, 0, 0, 0, 2),
        );
        let until = |address: Ipv6Addr| holders.known_by_another(address.into(), own);
        let (seen, unseen) = (Ipv6Addr::from(1), Ipv6Addr::from(2));

        let started = until(seen).unwrap();
        let before = Instant::now();
        gone(seen, other);
        assert!(until(seen).unwrap() >= before);
        assert_eq!(until(unseen), Some(started));

        let before = Instant::now();
        (3..)
            .take(MOST)
            .for_each(|it| gone(Ipv6Addr::from(it), own));
        for address in [seen, unseen] {
            assert!(until(address).unwrap() >= before);
        }
    }
}
