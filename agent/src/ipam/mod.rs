//! Addresses: who gives a pod its addresses.
//!
//! Two sources stand side by side. [`pool`] hands out addresses from the node's own subnets, in
//! memory and without any IO; what it handed out is recorded by the caller in the port's
//! external_ids and claimed back from there at start. [`delegate`] runs a CNI IPAM plugin
//! (host-local, static, …) as the CNI spec, section 4, has it; since the agent is locked down when
//! pods arrive, the plugin is started by the [`spawner`], a small process made before the
//! lock-down.

mod addresses;
pub mod delegate;
mod family;
mod owner;
pub mod pool;
pub mod spawner;
pub mod subnet;

pub use addresses::Addresses;
pub use family::Family;
pub use owner::Owner;
