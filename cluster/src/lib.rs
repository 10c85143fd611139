//! The objects of a Kubernetes cluster, as the node role, the agent and the controller read them.

#![forbid(unsafe_code)]

pub mod address;
pub mod annotations;
pub mod api;
pub mod claims;
pub mod condition;
pub mod gateway;
pub mod networks;
pub mod resources;
mod selector;
mod selectors;
pub mod service;
mod slices;

pub use selector::{Labels, Selector, SelectorError};
pub use selectors::{Label, Place, Selectors, Within};
pub use slices::{SERVICE_NAME, Slices, endpoint_slices};

use smol_str::SmolStr;

/// A name of the API: short ones need no memory of their own.
pub type Name = SmolStr;
/// Namespace and name.
pub type ObjectName = (Name, Name);
