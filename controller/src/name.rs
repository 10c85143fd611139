//! Names of objects.

use smol_str::SmolStr;

/// A name or a uid; many places share one.
pub type Name = SmolStr;

/// A namespace, and the name of an object in it.
pub type ObjectName = (Name, Name);
