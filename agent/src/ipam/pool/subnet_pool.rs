//! One subnet's addresses: which are free, which rest after a release, and who holds the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::intervals::Intervals;
use super::{Cursor, RESTING_KEPT, RESTING_MAX, Usage};
use crate::ipam::Owner;
use crate::ipam::family::bits;
use crate::ipam::subnet::SubnetSpec;

/// Every assignable address is in exactly one of `free`, `resting` and `held`; addresses outside
/// the ranges, which only a claim can name, are in `held` or nowhere.
#[derive(Debug, Clone)]
pub(super) struct SubnetPool {
    pub(super) spec: SubnetSpec,
    assignable: Intervals,
    capacity: u128,
    free: Intervals,
    /// Where the search for a free address begins: after the last one found.
    next: u128,
    resting: Resting,
    held: BTreeMap<u128, Arc<Owner>>,
    held_beside_ranges: u128,
}

impl SubnetPool {
    pub(super) fn new(spec: SubnetSpec) -> Self {
        let intervals = spec.assignable();
        let capacity = intervals.iter().map(|(first, last)| last - first + 1).sum();
        let assignable: Intervals = intervals.into_iter().collect();
        Self {
            capacity,
            free: assignable.clone(),
            assignable,
            next: 0,
            resting: Resting::default(),
            held: BTreeMap::new(),
            held_beside_ranges: 0,
            spec,
        }
    }

    /// The address to hand out next.
    pub(super) fn candidate(&self) -> Option<u128> {
        self.free
            .at_or_above(self.next)
            .or_else(|| self.free.at_or_above(0))
            .or_else(|| self.resting.oldest())
    }

    /// Hands out the address that [`Self::candidate`] returned.
    pub(super) fn hand_out(&mut self, number: u128, owner: Arc<Owner>) {
        if self.free.contains(number) {
            self.next = number.saturating_add(1);
        }
        self.hold(number, owner);
    }

    /// Gives `number`, which nobody holds, to `owner`.
    pub(super) fn hold(&mut self, number: u128, owner: Arc<Owner>) {
        let was_assignable = self.free.remove(number) || self.resting.remove(number);
        self.held_beside_ranges += u128::from(!was_assignable);
        self.held.insert(number, owner);
    }

    pub(super) fn holder(&self, number: u128) -> Option<&Arc<Owner>> {
        self.held.get(&number)
    }

    /// Releases `number`.
    pub(super) fn take_back(&mut self, number: u128) {
        if self.held.remove(&number).is_none() {
            return;
        }
        if !self.assignable.contains(number) {
            self.held_beside_ranges -= 1;
            return;
        }
        self.rest(number);
    }

    pub(super) fn usage(&self) -> Usage {
        let held = u128::try_from(self.held.len()).unwrap_or(u128::MAX);
        Usage {
            subnet: self.spec.subnet(),
            gateway: self.spec.gateway(),
            capacity: self.capacity,
            used: held - self.held_beside_ranges,
            claimed_beside_ranges: self.held_beside_ranges,
        }
    }

    #[cfg(test)]
    pub(super) fn resting_len(&self) -> usize {
        self.resting.len()
    }

    pub(super) fn cursor(&self) -> Cursor {
        let family = self.spec.family();
        let within = |number: &u128| self.spec.subnet().contains(&family.address(*number));
        let mut resting: Vec<_> = self
            .resting
            .newest_first()
            .take(RESTING_KEPT)
            .map(|number| family.address(number))
            .collect();
        resting.reverse();
        Cursor {
            subnet: self.spec.subnet(),
            next: Some(self.next)
                .filter(within)
                .map(|number| family.address(number)),
            resting,
        }
    }

    pub(super) fn restore(&mut self, cursor: &Cursor) {
        let subnet = self.spec.subnet();
        if let Some(next) = cursor.next.filter(|next| subnet.contains(next)) {
            self.next = bits(next);
        }
        for number in cursor
            .resting
            .iter()
            .filter(|address| subnet.contains(*address))
            .map(|address| bits(*address))
        {
            if self.free.remove(number) {
                self.rest(number);
            }
        }
    }

    /// Lets `number` rest; if too many rest, the longest-resting one becomes free.
    fn rest(&mut self, number: u128) {
        self.resting.push(number);
        if self.resting.len() > RESTING_MAX
            && let Some(oldest) = self.resting.oldest()
        {
            self.resting.remove(oldest);
            self.free.insert(oldest);
        }
    }
}

/// Released addresses in the order of their release.
#[derive(Debug, Clone, Default)]
struct Resting {
    by_turn: BTreeMap<u64, u128>,
    turn_of: BTreeMap<u128, u64>,
    next_turn: u64,
}

impl Resting {
    fn push(&mut self, number: u128) {
        self.by_turn.insert(self.next_turn, number);
        self.turn_of.insert(number, self.next_turn);
        self.next_turn += 1;
    }

    fn remove(&mut self, number: u128) -> bool {
        match self.turn_of.remove(&number) {
            Some(turn) => self.by_turn.remove(&turn).is_some(),
            None => false,
        }
    }

    fn oldest(&self) -> Option<u128> {
        self.by_turn.first_key_value().map(|(_, number)| *number)
    }

    fn newest_first(&self) -> impl Iterator<Item = u128> {
        self.by_turn.values().rev().copied()
    }

    fn len(&self) -> usize {
        self.by_turn.len()
    }
}
