//! Values from and to JSON. Parsing uses serde, so that one parser reads bytes and
//! `serde_json::Value` without an intermediate form; encoding writes straight into the request's
//! buffer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write as _;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Atom, Map, Uuid, Value};

/// A value that JSON, or Open vSwitch's JSON, can't represent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// `json_parser_push_string` in lib/json.c refuses NUL, and ovsdb-server then drops the
    /// connection with everybody's requests.
    #[error("the string {0:?} holds a NUL character, which Open vSwitch refuses")]
    Nul(String),
}

impl Value {
    /// Appends the value. `names` makes this transaction's row names unique among those sent
    /// together.
    pub(crate) fn encode(&self, names: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Atom(atom) => atom.encode(names, out),
            Self::Set(set) => {
                out.extend_from_slice(b"[\"set\",[");
                for (at, atom) in set.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    atom.encode(names, out)?;
                }
                out.extend_from_slice(b"]]");
                Ok(())
            }
            Self::Map(map) => {
                out.extend_from_slice(b"[\"map\",[");
                for (at, (key, value)) in map.iter().enumerate() {
                    out.extend_from_slice(if at == 0 { b"[" } else { b",[" });
                    key.encode(names, out)?;
                    out.push(b',');
                    value.encode(names, out)?;
                    out.push(b']');
                }
                out.extend_from_slice(b"]]");
                Ok(())
            }
        }
    }
}

impl Atom {
    fn encode(&self, names: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Integer(integer) => append(out, format_args!("{integer}")),
            Self::Boolean(boolean) => append(out, format_args!("{boolean}")),
            Self::String(string) => return encode_str(string, out),
            Self::Uuid(uuid) => {
                out.extend_from_slice(b"[\"uuid\",\"");
                out.extend_from_slice(&uuid.encode());
                out.extend_from_slice(b"\"]");
            }
            Self::Named(name) => append(
                out,
                format_args!("[\"named-uuid\",\"r{names}_{}\"]", name.0),
            ),
        }
        Ok(())
    }
}

/// Appends a JSON string.
pub(crate) fn encode_str(string: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if string.as_bytes().contains(&0) {
        return Err(EncodeError::Nul(string.to_owned()));
    }
    serde_json::to_writer(out, string).expect("writing a str to a Vec has no way to fail");
    Ok(())
}

/// Appends formatted text.
pub(crate) fn append(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a Vec has no way to fail");
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

impl<'de> Deserialize<'de> for Atom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AtomVisitor)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

struct ValueVisitor;
struct AtomVisitor;
struct Atoms(BTreeSet<Atom>);
struct Entries(Map);

/// The first element of a value written as an array.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Tag {
    Uuid,
    Set,
    Map,
}

macro_rules! visit_scalars {
    ($wrap:expr) => {
        fn visit_bool<E: de::Error>(self, boolean: bool) -> Result<Self::Value, E> {
            Ok($wrap(Atom::Boolean(boolean)))
        }

        fn visit_i64<E: de::Error>(self, integer: i64) -> Result<Self::Value, E> {
            Ok($wrap(Atom::Integer(integer)))
        }

        fn visit_u64<E: de::Error>(self, integer: u64) -> Result<Self::Value, E> {
            let integer = i64::try_from(integer)
                .map_err(|_| E::custom("an integer that does not fit 64 bits signed"))?;
            Ok($wrap(Atom::Integer(integer)))
        }

        fn visit_str<E: de::Error>(self, string: &str) -> Result<Self::Value, E> {
            Ok($wrap(Atom::String(string.into())))
        }
    };
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an OVSDB value (RFC 7047 section 5.1)")
    }

    visit_scalars!(Value::Atom);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let value = match next(&mut seq)? {
            Tag::Uuid => Value::Atom(Atom::Uuid(next(&mut seq)?)),
            Tag::Set => Value::from_set(next::<_, Atoms>(&mut seq)?.0),
            Tag::Map => Value::Map(next::<_, Entries>(&mut seq)?.0),
        };
        end(&mut seq)?;
        Ok(value)
    }
}

impl<'de> Visitor<'de> for AtomVisitor {
    type Value = Atom;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an OVSDB atom (RFC 7047 section 5.1)")
    }

    visit_scalars!(std::convert::identity);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Atom, A::Error> {
        let Tag::Uuid = next(&mut seq)? else {
            return Err(de::Error::custom("a set or map where an atom belongs"));
        };
        let uuid = next(&mut seq)?;
        end(&mut seq)?;
        Ok(Atom::Uuid(uuid))
    }
}

impl<'de> Deserialize<'de> for Atoms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let atoms = Vec::<Atom>::deserialize(deserializer)?;
        let count = atoms.len();
        let set = BTreeSet::from_iter(atoms);
        match set.len() == count {
            true => Ok(Self(set)),
            false => Err(de::Error::custom("an element comes twice in a set")),
        }
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<(Atom, Atom)>::deserialize(deserializer)?;
        Map::from_entries(entries)
            .map(Self)
            .ok_or_else(|| de::Error::custom("a key comes twice in a map"))
    }
}

fn next<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(seq: &mut A) -> Result<T, A::Error> {
    seq.next_element()?
        .ok_or_else(|| de::Error::custom("an array that ends too soon"))
}

fn end<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<(), A::Error> {
    match seq.next_element::<de::IgnoredAny>()? {
        None => Ok(()),
        Some(_) => Err(de::Error::custom("an array with elements too many")),
    }
}

/// A key or a name; borrows from the input if it contains no escape.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Calls `each` for every entry of a JSON object, which takes the value with
/// `MapAccess::next_value` or `next_value_seed`.
pub(crate) fn each_entry<'de, M: MapAccess<'de>>(
    mut map: M,
    mut each: impl FnMut(&str, &mut M) -> Result<(), M::Error>,
) -> Result<(), M::Error> {
    while let Some(Text(key)) = map.next_key::<Text<'de>>()? {
        each(&key, &mut map)?;
    }
    Ok(())
}
