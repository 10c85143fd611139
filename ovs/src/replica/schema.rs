use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use smol_str::SmolStr;

use super::ReplicaError;
use crate::value::{Atom, Map, Uuid, Value};

/// The columns' types of a database, from `get_schema` (RFC 7047 §3.2).
#[derive(Clone, Debug, Deserialize)]
pub struct Schema {
    tables: HashMap<String, TableSchema>,
}

#[derive(Clone, Debug, Deserialize)]
struct TableSchema {
    columns: HashMap<String, ColumnSchema>,
}

#[derive(Clone, Debug, Deserialize)]
struct ColumnSchema {
    #[serde(rename = "type")]
    column_type: ColumnType,
}

/// A column's type: RFC 7047 §3.2 `<type>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnType {
    /// Of the elements, or of a map's keys.
    pub key: AtomType,
    /// Of a map's values.
    pub value: Option<AtomType>,
    /// The least number of elements, 0 or 1.
    pub min: u64,
    /// The greatest number of elements.
    pub max: u64,
}

/// The type of an atom: RFC 7047 §3.2 `<atomic-type>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtomType {
    /// `integer`
    Integer,
    /// `real`
    Real,
    /// `boolean`
    Boolean,
    /// `string`
    String,
    /// `uuid`
    Uuid,
}

/// The value does not have the column's type.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} where {expected} belongs")]
pub(super) struct TypeMismatch {
    found: &'static str,
    expected: String,
}

impl Schema {
    /// Parses the result of `get_schema`.
    ///
    /// # Errors
    /// [`ReplicaError::Schema`] if it is invalid.
    pub fn parse(json: &str) -> Result<Self, ReplicaError> {
        serde_json::from_str(json).map_err(ReplicaError::Schema)
    }

    /// A column's type; `None` if there is no such column.
    pub fn column(&self, table: &str, column: &str) -> Option<ColumnType> {
        Some(self.tables.get(table)?.columns.get(column)?.column_type)
    }

    pub(super) fn has_table(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }
}

impl ColumnType {
    /// The value of a column that was never set (RFC 7047 §5.2.1).
    pub fn default_value(&self) -> Value {
        match (self.value, self.min) {
            (Some(_), _) => Value::Map(Map::EMPTY),
            (None, 0) => Value::empty(),
            (None, _) => self
                .key
                .default_atom()
                .map_or_else(Value::empty, Value::Atom),
        }
    }

    /// Whether `update2` sends a change of such a column as a difference. `ovsdb_datum_diff` in
    /// lib/ovsdb-data.c does so for "composite" types, those with more than one element; an
    /// optional column is sent whole.
    pub(super) fn is_diffed(&self) -> bool {
        self.max > 1
    }

    /// Whether the value has this type.
    pub(super) fn check(&self, value: &Value) -> Result<(), TypeMismatch> {
        self.check_difference(value)?;
        let count = value.len() as u64;
        if count < self.min && self.value.is_none() || count > self.max {
            return Err(self.mismatch("a wrong number of elements"));
        }
        Ok(())
    }

    /// Like [`Self::check`], for a difference, which may have any number of elements.
    pub(super) fn check_difference(&self, value: &Value) -> Result<(), TypeMismatch> {
        match (value, self.value) {
            (Value::Map(map), Some(value_type)) => map.iter().try_for_each(|(key, value)| {
                self.key.check(key)?;
                value_type.check(value)
            }),
            (Value::Map(_), None) => Err(self.mismatch("a map")),
            (_, Some(_)) => Err(self.mismatch("a set")),
            (value, None) => value.atoms().try_for_each(|atom| self.key.check(atom)),
        }
    }

    fn mismatch(&self, found: &'static str) -> TypeMismatch {
        TypeMismatch {
            found,
            expected: self.to_string(),
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, .. } = self;
        match value {
            Some(value) => write!(f, "a map of {key} to {value}"),
            None if self.max == 1 => write!(f, "a value of type {key}"),
            None => write!(f, "a set of {key}"),
        }
    }
}

impl fmt::Display for AtomType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Integer => "integer",
            Self::Real => "real",
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Uuid => "uuid",
        })
    }
}

impl AtomType {
    /// No column that podwire watches contains reals; any other can only be empty.
    fn default_atom(self) -> Option<Atom> {
        match self {
            Self::Integer => Some(Atom::Integer(0)),
            Self::Real => None,
            Self::Boolean => Some(Atom::Boolean(false)),
            Self::String => Some(Atom::String(SmolStr::default())),
            Self::Uuid => Some(Atom::Uuid(Uuid::from_bytes([0; 16]))),
        }
    }

    fn check(self, atom: &Atom) -> Result<(), TypeMismatch> {
        let (found, found_type) = match atom {
            Atom::Integer(_) => ("an integer", Self::Integer),
            Atom::Boolean(_) => ("a boolean", Self::Boolean),
            Atom::String(_) => ("a string", Self::String),
            Atom::Uuid(_) | Atom::Named(_) => ("a uuid", Self::Uuid),
        };
        match found_type == self {
            true => Ok(()),
            false => Err(TypeMismatch {
                found,
                expected: format!("a value of type {self}"),
            }),
        }
    }
}

impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Type {
            Atomic(AtomType),
            Full {
                key: Base,
                value: Option<Base>,
                #[serde(default = "one")]
                min: u64,
                #[serde(default)]
                max: Max,
            },
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Base {
            Atomic(AtomType),
            Full {
                #[serde(rename = "type")]
                atom_type: AtomType,
            },
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Max {
            Count(u64),
            Unlimited(String),
        }
        impl Default for Max {
            fn default() -> Self {
                Self::Count(1)
            }
        }
        impl Base {
            fn atom_type(&self) -> AtomType {
                match self {
                    Self::Atomic(atom_type) | Self::Full { atom_type } => *atom_type,
                }
            }
        }
        fn one() -> u64 {
            1
        }

        let (key, value, min, max) = match Type::deserialize(deserializer)? {
            Type::Atomic(key) => {
                return Ok(Self {
                    key,
                    value: None,
                    min: 1,
                    max: 1,
                });
            }
            Type::Full {
                key,
                value,
                min,
                max,
            } => (
                key.atom_type(),
                value.map(|value| value.atom_type()),
                min,
                max,
            ),
        };
        let max = match max {
            Max::Count(max) => max,
            Max::Unlimited(word) if word == "unlimited" => u64::MAX,
            Max::Unlimited(word) => {
                return Err(de::Error::invalid_value(
                    de::Unexpected::Str(&word),
                    &"a number or \"unlimited\"",
                ));
            }
        };
        Ok(Self {
            key,
            value,
            min,
            max,
        })
    }
}
