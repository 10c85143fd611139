//! OVSDB values: atoms, sets and maps, as RFC 7047 §5.1 writes them in JSON.
//!
//! The parser is strict: what is not a value is an error, never a guess and never a panic. Values
//! are kept in one canonical form, so that equality is the database's own: a set of exactly one
//! element *is* its atom (§5.1 makes the two notations interchangeable), sets and maps are sorted
//! and contain no duplicates.

mod json;
mod map;
#[cfg(test)]
mod tests;
mod uuid;

use std::collections::BTreeSet;
use std::fmt;

use smol_str::SmolStr;

pub use json::EncodeError;
pub(crate) use json::{append, each_entry, encode_str};
pub use map::Map;
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
    /// `boolean`.
    Boolean(bool),
    /// `string`. Most are short and stored inline; clones share a longer one.
    String(SmolStr),
    /// `uuid`.
    Uuid(Uuid),
    /// `named-uuid`: a row that the same transaction inserts. Only sent, never received.
    Named(RowName),
}

/// A row inserted by a transaction, before it has a uuid. Valid only inside the transaction whose
/// `insert` returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName(pub(crate) u32);

impl Value {
    /// The empty set, which also stands for an absent optional value.
    pub const fn empty() -> Self {
        Self::Set(BTreeSet::new())
    }

    /// A set of the given atoms, without duplicates.
    pub fn set<A: Into<Atom>>(atoms: impl IntoIterator<Item = A>) -> Self {
        Self::from_set(atoms.into_iter().map(Into::into).collect())
    }

    /// A map of the given entries; of two entries with one key, the last counts.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(entries: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Map(
            entries
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    /// The only atom, if there is exactly one.
    pub fn atom(&self) -> Option<&Atom> {
        match self {
            Self::Atom(atom) => Some(atom),
            Self::Set(_) | Self::Map(_) => None,
        }
    }

    /// The elements of a set or an atom; none of a map.
    pub fn atoms(&self) -> impl Iterator<Item = &Atom> {
        let (one, many) = match self {
            Self::Atom(atom) => (Some(atom), None),
            Self::Set(set) => (None, Some(set)),
            Self::Map(_) => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Whether an atom is an element of this set, or this atom.
    pub fn contains(&self, element: &Atom) -> bool {
        match self {
            Self::Atom(atom) => atom == element,
            Self::Set(set) => set.contains(element),
            Self::Map(_) => false,
        }
    }

    /// The string, if it is the only atom.
    pub fn as_str(&self) -> Option<&str> {
        self.atom().and_then(Atom::as_str)
    }

    /// The integer, if it is the only atom.
    pub fn as_integer(&self) -> Option<i64> {
        self.atom().and_then(Atom::as_integer)
    }

    /// The boolean, if it is the only atom.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Atom(Atom::Boolean(boolean)) => Some(*boolean),
            _ => None,
        }
    }

    /// The uuid, if it is the only atom.
    pub fn as_uuid(&self) -> Option<Uuid> {
        self.atom().and_then(Atom::as_uuid)
    }

    /// The map, if this is one.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            Self::Atom(_) | Self::Set(_) => None,
        }
    }

    /// Whether this is an empty set or map.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of elements of a set or entries of a map.
    pub fn len(&self) -> usize {
        match self {
            Self::Atom(_) => 1,
            Self::Set(set) => set.len(),
            Self::Map(map) => map.len(),
        }
    }

    /// The value's approximate size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Atom(atom) => atom.weight(),
            Self::Set(set) => set.iter().map(Atom::weight).sum(),
            Self::Map(map) => map.weight(),
        }
    }

    /// The elements; none of a map.
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
    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(string) => Some(string),
            _ => None,
        }
    }

    /// The integer, if it is one.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// The uuid, if it is one.
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

const STRING_RANK: u8 = 2;

impl Atom {
    /// The position of the variant in the derived order.
    fn rank(&self) -> u8 {
        match self {
            Self::Integer(_) => 0,
            Self::Boolean(_) => 1,
            Self::String(_) => STRING_RANK,
            Self::Uuid(_) => 3,
            Self::Named(_) => 4,
        }
    }
}

macro_rules! from {
    ($($kind:ty => $variant:ident),* $(,)?) => {
        $(impl From<$kind> for Atom {
            fn from(value: $kind) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

from! {
    &str => String, &String => String, String => String, SmolStr => String,
    i64 => Integer, i32 => Integer, u32 => Integer,
    bool => Boolean, Uuid => Uuid, RowName => Named,
}

impl<A: Into<Atom>> From<A> for Value {
    fn from(atom: A) -> Self {
        Self::Atom(atom.into())
    }
}

/// For messages: `veth0`, `[1, 2]`, `{a=b}`.
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
            Self::Boolean(boolean) => boolean.fmt(f),
            Self::String(string) => string.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Named(name) => write!(f, "inserted row {}", name.0),
        }
    }
}
