//! Addresses: who gives a pod its addresses, and the MAC that goes with them.
//!
//! Two sources stand side by side. [`pool`] hands out addresses from the node's own subnets, in
//! memory and without any IO; what it handed out is recorded by the caller in the port's
//! external_ids and claimed back from there at start. [`delegate`] runs a CNI IPAM plugin
//! (host-local, static, …) as the CNI spec, section 4, has it; since the agent is locked down when
//! pods arrive, the plugin is started by the [`spawner`], a small process made before the
//! lock-down. [`mac`] derives a MAC where nobody chose one.

pub mod delegate;
mod family;
pub mod mac;
mod owner;
pub mod pool;
pub mod spawner;
pub mod subnet;

pub use family::Family;
pub use owner::Owner;
