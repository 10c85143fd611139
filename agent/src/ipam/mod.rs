//! Address management: where a pod's addresses come from.
//!
//! There are three sources. [`pool`] hands out addresses of the node's own subnets, in memory and
//! without IO; the caller records them in the port's external_ids and claims them from there at
//! start. [`delegate`] runs a CNI IPAM plugin (host-local, static, …; CNI spec, section 4). Since
//! the agent is locked down when pods arrive, the [`spawner`] starts it, a small process created
//! before the lock-down. [`dhcp`] and [`dhcp6`] lease addresses of a physical network, whose
//! [`router`] may say more, and whose other hosts [`claims`] hears.

mod addresses;
pub mod claims;
pub mod delegate;
pub mod dhcp;
pub mod dhcp6;
mod family;
mod link;
mod owner;
pub mod pool;
pub mod router;
pub mod spawner;
pub mod subnet;

pub use addresses::Addresses;
pub use family::Family;
pub use link::{LinkError, Place};
pub use owner::Owner;
