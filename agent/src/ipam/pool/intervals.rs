//! A set of numbers stored as intervals: a /64 costs as much as a /30.

use std::collections::BTreeMap;

/// Disjoint, non-adjacent, inclusive intervals. Every operation is logarithmic in their number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    last_by_first: BTreeMap<u128, u128>,
}

impl Intervals {
    pub(super) fn contains(&self, number: u128) -> bool {
        self.around(number).is_some()
    }

    /// The lowest member at or above `from`.
    pub(super) fn at_or_above(&self, from: u128) -> Option<u128> {
        if self.contains(from) {
            return Some(from);
        }
        self.last_by_first
            .range(from..)
            .next()
            .map(|(first, _)| *first)
    }

    /// Removes `number`; false if it was no member.
    pub(super) fn remove(&mut self, number: u128) -> bool {
        let Some((first, last)) = self.around(number) else {
            return false;
        };
        self.last_by_first.remove(&first);
        if first < number {
            self.last_by_first.insert(first, number - 1);
        }
        if number < last {
            self.last_by_first.insert(number + 1, last);
        }
        true
    }

    /// Inserts `number`, and joins it with its neighbours.
    pub(super) fn insert(&mut self, number: u128) {
        if self.contains(number) {
            return;
        }
        let below = number.checked_sub(1).and_then(|left| self.around(left));
        let above = number.checked_add(1).and_then(|right| self.around(right));
        if let Some((first, _)) = above {
            self.last_by_first.remove(&first);
        }
        let first = below.map_or(number, |(first, _)| first);
        let last = above.map_or(number, |(_, last)| last);
        self.last_by_first.insert(first, last);
    }

    /// The interval that contains `number`.
    fn around(&self, number: u128) -> Option<(u128, u128)> {
        let (first, last) = self.last_by_first.range(..=number).next_back()?;
        (number <= *last).then_some((*first, *last))
    }
}

/// From ascending, disjoint intervals; those that touch are joined.
impl FromIterator<(u128, u128)> for Intervals {
    fn from_iter<I: IntoIterator<Item = (u128, u128)>>(intervals: I) -> Self {
        let mut joined: Vec<(u128, u128)> = Vec::new();
        for (first, last) in intervals {
            match joined.last_mut() {
                Some(below) if below.1.checked_add(1) == Some(first) => below.1 = last,
                _ => joined.push((first, last)),
            }
        }
        Self {
            last_by_first: joined.into_iter().collect(),
        }
    }
}
