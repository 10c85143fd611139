//! The addresses of one subnet: which are in use, and which rest.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Instant;

use ipnet::IpNet;

use super::{AddressError, Layout, RecordedAddresses, SubnetOwner};
use podwire_cluster::ObjectName;

use crate::key::Attachment;

/// The number of indexes that a new leader skips: more than a node's pods take while one rests.
const SKIPPED: u128 = 64;
/// The maximum number of indexes used in a node's subnet: more than the pods of any node.
const PLACES: u128 = 1 << 16;

/// One subnet.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) subnet: IpNet,
    /// The indexes that pods can have.
    places: Range<u128>,
    /// Networks of which no pod gets an address, unless it has it already.
    excluded: Vec<IpNet>,
    /// The others, in order.
    assignable: Vec<Range<u128>>,
    used: BTreeSet<u128>,
    /// In the order in which they may be assigned again.
    resting: VecDeque<Resting>,
    /// Where the search begins: addresses are assigned in turn.
    next: u128,
}

/// An index that was freed a moment ago.
#[derive(Clone, Debug)]
struct Resting {
    until: Instant,
    place: u128,
    /// The pod that had it; another one with its name may have it at once.
    of: Attachment,
}

impl Pool {
    pub(super) fn new(subnet: IpNet, layout: &Layout) -> Self {
        let bits = u32::from(subnet.max_prefix_len() - subnet.prefix_len());
        let all = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
        let (first, all, excluded) = match layout {
            // The subnet's own, its router's, its node's are not for pods.
            Layout::Nodes => (3, all.min(PLACES), Vec::new()),
            Layout::Shared { excluded } => (1, all, excluded.clone()),
        };
        let end = match subnet {
            IpNet::V4(_) => all - 1,
            IpNet::V6(_) => all,
        };
        let places = first..end.max(first);
        Self {
            subnet,
            assignable: assignable(subnet, places.clone(), &excluded),
            next: first,
            places,
            excluded,
            used: BTreeSet::new(),
            resting: VecDeque::new(),
        }
    }

    /// Changes what is excluded.
    pub(super) fn set_layout(&mut self, layout: &Layout) {
        let Self {
            excluded,
            assignable,
            ..
        } = Self::new(self.subnet, layout);
        (self.excluded, self.assignable) = (excluded, assignable);
    }

    /// The index of an address that a pod of this subnet can have.
    pub(super) fn place(&self, address: IpNet) -> Option<u128> {
        let place = place_in(self.subnet, address.addr())?;
        self.places.contains(&place).then_some(place)
    }

    /// What excludes an address.
    pub(super) fn excluding(&self, address: IpAddr) -> Option<IpNet> {
        let mut excluded = self.excluded.iter();
        excluded.find(|net| net.contains(&address)).copied()
    }

    /// Whether no pod has an index; it may rest.
    pub(super) fn is_free(&self, place: u128) -> bool {
        !self.used.contains(&place)
    }

    /// The index of a pod's former address in this subnet.
    pub(super) fn place_of(&self, recorded: &RecordedAddresses) -> Option<u128> {
        recorded.addresses.iter().find_map(|it| self.place(*it))
    }

    /// The pod that freed an index, and how long the index rests for others.
    pub(super) fn rests(&self, place: u128, now: Instant) -> Option<(&Attachment, Instant)> {
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
        whose: impl FnOnce() -> SubnetOwner,
        is_usable: impl Fn(&u128) -> bool,
    ) -> Result<u128, AddressError> {
        let resting: BTreeSet<u128> = self.resting.iter().map(|it| it.place).collect();
        let later = self
            .assignable
            .iter()
            .map(|it| it.start.max(self.next)..it.end);
        let earlier = self
            .assignable
            .iter()
            .map(|it| it.start..it.end.min(self.next));
        let mut all = later.chain(earlier).flatten();
        let found = all.find(|place| !resting.contains(place) && is_usable(place));
        found.ok_or_else(|| match self.resting.front() {
            Some(first) => AddressError::Resting {
                subnet: self.subnet,
                until: first.until,
            },
            None => AddressError::Full {
                subnet: self.subnet,
                whose: whose(),
            },
        })
    }

    pub(super) fn take(&mut self, place: u128) {
        self.used.insert(place);
        self.resting.retain(|it| it.place != place);
        self.next = place + 1;
    }

    /// Frees an index.
    pub(super) fn release(&mut self, place: u128) {
        self.used.remove(&place);
    }

    /// Lets an index rest that no pod has.
    pub(super) fn rest(&mut self, place: u128, of: &Attachment, until: Instant) {
        if self.is_free(place) {
            self.resting.retain(|it| it.place != place);
            let of = of.clone();
            self.resting.push_back(Resting { until, place, of });
        }
    }

    /// Begins beyond the indexes that were assigned last: their pods may be gone already.
    pub(super) fn skip(&mut self) {
        let Range { start, end } = self.places;
        let last = self.next + SKIPPED - start;
        self.next = start + last % (end - start).max(1);
    }

    /// Lets a pod's former indexes rest once more.
    pub(super) fn rest_again(&mut self, pod: &ObjectName, until: Instant) {
        let resting = self.resting.iter().filter(|it| it.of.pod == *pod);
        let places: Vec<_> = resting.map(|it| (it.place, it.of.clone())).collect();
        for (place, of) in places {
            self.rest(place, &of, until);
        }
    }
}

/// The index of an address in a subnet.
fn place_in(subnet: IpNet, address: IpAddr) -> Option<u128> {
    match (subnet, address) {
        (IpNet::V4(subnet), IpAddr::V4(address)) => {
            let place = u32::from(address).checked_sub(subnet.network().into())?;
            Some(place.into())
        }
        (IpNet::V6(subnet), IpAddr::V6(address)) => {
            u128::from(address).checked_sub(subnet.network().into())
        }
        _ => None,
    }
}

/// The parts of a range of indexes that are not excluded.
fn assignable(subnet: IpNet, all: Range<u128>, excluded: &[IpNet]) -> Vec<Range<u128>> {
    let ends = |net: &IpNet| {
        let first = place_in(subnet, net.network())?;
        Some((first, place_in(subnet, net.broadcast())?))
    };
    let mut gaps: Vec<(u128, u128)> = excluded.iter().filter_map(ends).collect();
    gaps.sort_unstable();
    let mut from = all.start;
    let mut parts = Vec::new();
    for (first, last) in gaps {
        parts.push(from..first.min(all.end));
        from = from.max(last.saturating_add(1));
    }
    parts.push(from..all.end);
    parts.retain(|part| !part.is_empty());
    parts
}
