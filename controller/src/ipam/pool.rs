//! The addresses of one subnet: which are in use, and which rest.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::{AddressError, Had};

/// How long a freed address rests, for packets still on their way to its former pod.
const REST: Duration = Duration::from_secs(30);

/// The indexes in a subnet that are not for pods: its own, its router's, its node's.
const RESERVED: u32 = 3;
/// The maximum number of indexes used in a subnet: more than the pods of any node.
const PLACES: u32 = 1 << 16;

/// One subnet.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) subnet: IpNet,
    used: BTreeSet<u32>,
    /// In the order in which they may be assigned again.
    resting: VecDeque<(Instant, u32)>,
    /// Where the search begins: addresses are assigned in turn.
    next: u32,
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

    /// The index that a pod had, unless another has it now.
    pub(super) fn free_of(&self, had: &Had) -> Option<u32> {
        let had = had.addresses.iter().find_map(|it| self.place(*it));
        had.filter(|place| self.is_free(*place))
    }

    pub(super) fn find(&mut self, node: &str, now: Instant) -> Result<u32, AddressError> {
        while let Some((_, _)) = self.resting.pop_front_if(|(until, _)| *until <= now) {}
        let resting: BTreeSet<u32> = self.resting.iter().map(|(_, place)| *place).collect();
        let is_free = |place: &u32| !self.used.contains(place) && !resting.contains(place);
        let found = (self.next..self.end())
            .chain(RESERVED..self.next)
            .find(is_free);
        found.ok_or_else(|| match self.resting.front() {
            Some(&(until, _)) => AddressError::Resting {
                subnet: self.subnet,
                until,
            },
            None => AddressError::Full {
                subnet: self.subnet,
                node: node.to_owned(),
            },
        })
    }

    pub(super) fn take(&mut self, place: u32) {
        self.used.insert(place);
        self.resting.retain(|(_, resting)| *resting != place);
        self.next = place + 1;
    }
    /// Frees an index, to be assigned again after a rest.
    pub(super) fn release(&mut self, place: u32, now: Instant) {
        if self.used.remove(&place) {
            self.resting.push_back((now + REST, place));
        }
    }
}
