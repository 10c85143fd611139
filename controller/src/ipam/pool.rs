//! The addresses of one subnet: which are in use, and which rest.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use ipnet::IpNet;

use super::{AddressError, Had};
use podwire_cluster::ObjectName;

/// The indexes in a subnet that are not for pods: its own, its router's, its node's.
const RESERVED: u32 = 3;
/// The number of indexes that a new leader skips: more than a node's pods take while one rests.
const SKIPPED: u32 = 64;
/// The maximum number of indexes used in a subnet: more than the pods of any node.
const PLACES: u32 = 1 << 16;

/// One subnet.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) subnet: IpNet,
    used: BTreeSet<u32>,
    /// In the order in which they may be assigned again.
    resting: VecDeque<Resting>,
    /// Where the search begins: addresses are assigned in turn.
    next: u32,
}

/// An index that was freed a moment ago.
#[derive(Clone, Debug)]
struct Resting {
    until: Instant,
    place: u32,
    /// The pod that had it; another one with its name may have it at once.
    of: ObjectName,
}

impl Pool {
    pub(super) fn new(subnet: IpNet) -> Self {
        Self {
            subnet,
            used: BTreeSet::new(),
            resting: VecDeque::new(),
            next: RESERVED,
        }
    }

    /// The number of indexes, without the broadcast address.
    fn end(&self) -> u32 {
        let bits = self.subnet.max_prefix_len() - self.subnet.prefix_len();
        let all = 1_u32.checked_shl(bits.into()).unwrap_or(PLACES).min(PLACES);
        match self.subnet {
            IpNet::V4(_) => all - 1,
            IpNet::V6(_) => all,
        }
    }

    /// The index of an address that a pod of this subnet can have.
    pub(super) fn place(&self, address: IpNet) -> Option<u32> {
        let place = match (self.subnet, address) {
            (IpNet::V4(subnet), IpNet::V4(address)) => {
                u32::from(address.addr()).checked_sub(subnet.network().into())?
            }
            (IpNet::V6(subnet), IpNet::V6(address)) => {
                let place = u128::from(address.addr()).checked_sub(subnet.network().into())?;
                place.try_into().ok()?
            }
            _ => return None,
        };
        (RESERVED..self.end()).contains(&place).then_some(place)
    }

    /// Whether no pod has an index; it may rest.
    pub(super) fn is_free(&self, place: u32) -> bool {
        !self.used.contains(&place)
    }

    /// The index of a pod's former address in this subnet.
    pub(super) fn place_of(&self, had: &Had) -> Option<u32> {
        had.addresses.iter().find_map(|it| self.place(*it))
    }

    /// The pod that freed an index, and how long the index rests for others.
    pub(super) fn rests(&self, place: u32, now: Instant) -> Option<(&ObjectName, Instant)> {
        let mut resting = self.resting.iter().rev();
        let found = resting.find(|it| it.place == place && it.until > now);
        found.map(|it| (&it.of, it.until))
    }

    /// When all indexes may be assigned to any pod; `None` while a pod has one.
    pub(super) fn unused_from(&self, now: Instant) -> Option<Instant> {
        let last = self.resting.back().map_or(now, |it| it.until);
        self.used.is_empty().then_some(last.max(now))
    }

    /// Forgets the indexes that no longer rest.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.resting.pop_front_if(|it| it.until <= now).is_some() {}
    }

    /// The next index that does not rest and for which this is true.
    pub(super) fn find(
        &self,
        node: &str,
        is_usable: impl Fn(&u32) -> bool,
    ) -> Result<u32, AddressError> {
        let resting: BTreeSet<u32> = self.resting.iter().map(|it| it.place).collect();
        let found = (self.next..self.end())
            .chain(RESERVED..self.next)
            .find(|place| !resting.contains(place) && is_usable(place));
        found.ok_or_else(|| match self.resting.front() {
            Some(first) => AddressError::Resting {
                subnet: self.subnet,
                until: first.until,
            },
            None => AddressError::Full {
                subnet: self.subnet,
                node: node.to_owned(),
            },
        })
    }

    pub(super) fn take(&mut self, place: u32) {
        self.used.insert(place);
        self.resting.retain(|it| it.place != place);
        self.next = place + 1;
    }

    /// Frees an index.
    pub(super) fn release(&mut self, place: u32) {
        self.used.remove(&place);
    }

    /// Lets an index rest that no pod has.
    pub(super) fn rest(&mut self, place: u32, of: &ObjectName, until: Instant) {
        if self.is_free(place) {
            self.resting.retain(|it| it.place != place);
            let of = of.clone();
            self.resting.push_back(Resting { until, place, of });
        }
    }

    /// Begins beyond the indexes that were assigned last: their pods may be gone already.
    pub(super) fn skip(&mut self) {
        let last = self.next + SKIPPED - RESERVED;
        self.next = RESERVED + last % (self.end() - RESERVED).max(1);
    }

    /// Lets a pod's former index rest once more.
    pub(super) fn rest_again(&mut self, pod: &ObjectName, until: Instant) {
        let resting = self.resting.iter().filter(|it| it.of == *pod);
        let places: Vec<u32> = resting.map(|it| it.place).collect();
        for place in places {
            self.rest(place, pod, until);
        }
    }
}
