use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// A finite double with the total order that sets and indexes need.
#[derive(Clone, Copy, Debug)]
pub struct Real(f64);

impl Real {
    pub(crate) const ZERO: Self = Self(0.0);

    /// A real, unless it is infinite or not a number, which JSON can't carry.
    pub fn new(value: f64) -> Option<Self> {
        // -0.0 and 0.0 are one value to the database.
        value
            .is_finite()
            .then_some(Self(if value == 0.0 { 0.0 } else { value }))
    }

    /// The double.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Real {}

impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Real {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Hash for Real {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
