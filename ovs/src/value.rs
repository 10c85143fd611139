//! OVSDB values: atoms, sets and maps, as RFC 7047 §5.1 writes them in JSON.
//!
//! The parser is strict: what is not a value is an error, never a guess and never a panic. Values are kept in one canonical form,
//! so that equality is the database's own: a set of exactly one element *is* its atom (§5.1 makes the two notations interchangeable),
//! sets and maps are sorted, and neither holds a duplicate.

mod json;
#[cfg(test)]
mod tests;
mod uuid;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

pub use json::EncodeError;
pub(crate) use json::{append, each_entry, encode_str};
pub use uuid::{ParseUuidError, Uuid};

/// A column's value: `<value>` in RFC 7047 §5.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// One atom; also a set with exactly one element.
    Atom(Atom),
    /// A set with no element, or with two or more.
    Set(BTreeSet<Atom>),
    /// A map, sorted by key, each key once.
    Map(Map),
}

/// One indivisible value: `<atom>` in RFC 7047 §5.1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// `integer`, 64 bits signed.
    Integer(i64),
    /// `real`, a double.
    Real(Real),
    /// `boolean`.
    Boolean(bool),
    /// `string`.
    String(Box<str>),
    /// `uuid`.
    Uuid(Uuid),
    /// `named-uuid`: a row that the same transaction inserts. Only ever sent, never received.
    Named(RowName),
}

/// A row inserted by a transaction, before the database has given it a uuid. Meaningful only inside the transaction whose
/// `insert` returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName(pub(crate) u32);

/// A finite double with the total order that sets and indexes need.
#[derive(Clone, Copy, Debug)]
pub struct Real(f64);

/// The entries of a map column, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(Vec<(Atom, Atom)>);

impl Value {
    /// The empty set, which is also how an absent optional value is written.
    pub const fn empty() -> Self {
        Self::Set(BTreeSet::new())
    }

    /// A set of the given atoms; duplicates fall together.
    pub fn set<A: Into<Atom>>(atoms: impl IntoIterator<Item = A>) -> Self {
        Self::from_set(atoms.into_iter().map(Into::into).collect())
    }

    /// A map of the given entries; of two entries with one key the last stays.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(entries: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Map(
            entries
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    /// The only atom, when there is exactly one.
    pub fn atom(&self) -> Option<&Atom> {
        match self {
            Self::Atom(atom) => Some(atom),
            Self::Set(_) | Self::Map(_) => None,
        }
    }

    /// The elements when this is a set or an atom; none when it is a map.
    pub fn atoms(&self) -> impl Iterator<Item = &Atom> {
        let (one, many) = match self {
            Self::Atom(atom) => (Some(atom), None),
            Self::Set(set) => (None, Some(set)),
            Self::Map(_) => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The string, when there is exactly one atom and it is one.
    pub fn as_str(&self) -> Option<&str> {
        self.atom().and_then(Atom::as_str)
    }

    /// The integer, when there is exactly one atom and it is one.
    pub fn as_integer(&self) -> Option<i64> {
        self.atom().and_then(Atom::as_integer)
    }

    /// The boolean, when there is exactly one atom and it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Atom(Atom::Boolean(boolean)) => Some(*boolean),
            _ => None,
        }
    }

    /// The uuid, when there is exactly one atom and it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        self.atom().and_then(Atom::as_uuid)
    }

    /// The map, when this is one.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            Self::Atom(_) | Self::Set(_) => None,
        }
    }

    /// Whether this is a set or a map with no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many elements the set or entries the map has.
    pub fn len(&self) -> usize {
        match self {
            Self::Atom(_) => 1,
            Self::Set(set) => set.len(),
            Self::Map(map) => map.len(),
        }
    }

    /// What the value takes in memory, in bytes, roughly.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Atom(atom) => atom.weight(),
            Self::Set(set) => set.iter().map(Atom::weight).sum(),
            Self::Map(map) => map.weight(),
        }
    }

    /// The elements; none when this is a map.
    pub(crate) fn into_set(self) -> BTreeSet<Atom> {
        match self {
            Self::Atom(atom) => BTreeSet::from([atom]),
            Self::Set(set) => set,
            Self::Map(_) => BTreeSet::new(),
        }
    }

    pub(crate) fn from_set(mut set: BTreeSet<Atom>) -> Self {
        if set.len() != 1 {
            return Self::Set(set);
        }
        set.pop_first().map_or_else(Self::empty, Self::Atom)
    }
}

impl Atom {
    /// The string, when it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(string) => Some(string),
            _ => None,
        }
    }

    /// The integer, when it is one.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// The uuid, when it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        match self {
            Self::Uuid(uuid) => Some(*uuid),
            _ => None,
        }
    }
}

impl Atom {
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.as_str().map_or(0, str::len)
    }
}

impl Map {
    /// A map without entries.
    pub const EMPTY: Self = Self(Vec::new());

    /// The value under a string key.
    pub fn get(&self, key: &str) -> Option<&Atom> {
        let order = |entry: &(Atom, Atom)| match &entry.0 {
            Atom::String(string) => (**string).cmp(key),
            // Keys of one map have one type; other types order before or after all strings.
            other => other.rank().cmp(&STRING_RANK),
        };
        self.0.binary_search_by(order).ok().map(|at| &self.0[at].1)
    }

    /// The string under a string key.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Atom::as_str)
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Atom, &Atom)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The entries whose key and value are strings.
    pub fn strings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter_map(|(key, value)| Some((key.as_str()?, value.as_str()?)))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, sorted by key; `None` when a key comes twice.
    pub(crate) fn from_entries(mut entries: Vec<(Atom, Atom)>) -> Option<Self> {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries
            .windows(2)
            .all(|pair| pair[0].0 != pair[1].0)
            .then_some(Self(entries))
    }

    /// This map changed by a difference of `update2`: an entry that is here with that value goes, any other is set.
    pub(crate) fn merged(self, difference: Self) -> Self {
        let mut merged = Vec::with_capacity(self.len() + difference.len());
        let mut old = self.0.into_iter().peekable();
        for (key, value) in difference.0 {
            while let Some(before) = old.next_if(|entry| entry.0 < key) {
                merged.push(before);
            }
            let replaced = old.next_if(|entry| entry.0 == key);
            if replaced.is_none_or(|replaced| replaced.1 != value) {
                merged.push((key, value));
            }
        }
        merged.extend(old);
        Self(merged)
    }

    pub(crate) fn weight(&self) -> usize {
        self.0
            .iter()
            .map(|(key, value)| key.weight() + value.weight())
            .sum()
    }

    pub(crate) fn into_entries(self) -> Vec<(Atom, Atom)> {
        self.0
    }
}

impl FromIterator<(Atom, Atom)> for Map {
    fn from_iter<I: IntoIterator<Item = (Atom, Atom)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        // `dedup_by` drops the later of two neighbours; the later one is to win.
        entries.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        Self(entries)
    }
}

const STRING_RANK: u8 = 3;

impl Atom {
    /// The position of the variant in the derived order.
    fn rank(&self) -> u8 {
        match self {
            Self::Integer(_) => 0,
            Self::Real(_) => 1,
            Self::Boolean(_) => 2,
            Self::String(_) => STRING_RANK,
            Self::Uuid(_) => 4,
            Self::Named(_) => 5,
        }
    }
}

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

impl From<&str> for Atom {
    fn from(string: &str) -> Self {
        Self::String(string.into())
    }
}

impl From<&String> for Atom {
    fn from(string: &String) -> Self {
        Self::String(string.as_str().into())
    }
}

impl From<String> for Atom {
    fn from(string: String) -> Self {
        Self::String(string.into())
    }
}

impl From<i64> for Atom {
    fn from(integer: i64) -> Self {
        Self::Integer(integer)
    }
}

impl From<i32> for Atom {
    fn from(integer: i32) -> Self {
        Self::Integer(integer.into())
    }
}

impl From<u32> for Atom {
    fn from(integer: u32) -> Self {
        Self::Integer(integer.into())
    }
}

impl From<bool> for Atom {
    fn from(boolean: bool) -> Self {
        Self::Boolean(boolean)
    }
}

impl From<Uuid> for Atom {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(uuid)
    }
}

impl From<RowName> for Atom {
    fn from(name: RowName) -> Self {
        Self::Named(name)
    }
}

impl From<Real> for Atom {
    fn from(real: Real) -> Self {
        Self::Real(real)
    }
}

impl<A: Into<Atom>> From<A> for Value {
    fn from(atom: A) -> Self {
        Self::Atom(atom.into())
    }
}

/// As people write it, for messages: `veth0`, `[1, 2]`, `{a=b}`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Atom(atom) => atom.fmt(f),
            Self::Set(set) => {
                f.write_str("[")?;
                for (at, atom) in set.iter().enumerate() {
                    write!(f, "{}{atom}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Map(map) => {
                f.write_str("{")?;
                for (at, (key, value)) in map.iter().enumerate() {
                    write!(f, "{}{key}={value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(integer) => integer.fmt(f),
            Self::Real(real) => real.0.fmt(f),
            Self::Boolean(boolean) => boolean.fmt(f),
            Self::String(string) => string.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Named(name) => write!(f, "inserted row {}", name.0),
        }
    }
}
