//! Address management: where a pod's addresses come from.
//!
//! There are two sources. [`pool`] hands out addresses of the node's own subnets, in memory and
//! without IO; the caller records them in the port's external_ids and claims them from there at
//! start. [`delegate`] runs a CNI IPAM plugin (host-local, static, …; CNI spec, section 4). Since
//! the agent is locked down when pods arrive, the [`spawner`] starts it, a small process created
//! before the lock-down.

mod addresses;
pub mod delegate;
pub mod dhcp;
mod family;
mod owner;
pub mod pool;
pub mod spawner;
pub mod subnet;

pub use addresses::Addresses;
pub use family::Family;
pub use owner::Owner;
