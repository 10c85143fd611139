//! Names of objects.

use smol_str::SmolStr;

/// A name or a uid. One is kept in many places, which share it.
pub type Name = SmolStr;

/// A namespace, and the name of an object in it.
pub type ObjectName = (Name, Name);
