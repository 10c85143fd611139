//! `podwire-controller`: gives nodes their subnets and pods their addresses, and keeps in OVN's
//! northbound database what Kubernetes' objects ask for. One leader serves any number of nodes.
//!
//! It is level-triggered. `watch` follows the objects and marks the keys of those that changed;
//! [`want`] computes, from the objects alone, the rows that a key should have; [`diff`] compares
//! them with the replica of the database, and the difference is the transaction. So a pass over an
//! unchanged cluster writes nothing, and a start, a restored backup, a row deleted by hand and a
//! missed event are the same code.
//!
//! ```text
//! arguments  the command line
//! tools    status, explain, a dry run
//! run      the loop: changes in, passes out
//! lease    who leads: a Lease, and an epoch in the database that fences every transaction
//! metrics  the page of numbers
//! rival    a control plane of ovn-kubernetes that must not run at the same time
//! southbound  chassis of nodes that are gone
//! write    what goes back to Kubernetes: annotations, conditions, Events
//! diff     rows wanted x rows there -> operations
//! want     objects -> rows, pure
//! ipam     subnets of nodes, addresses of pods, pure
//! name     names of objects
//! cluster  the objects, reduced to what is needed
//! watch    the objects as the API server has them
//! ```

pub mod arguments;
pub mod cluster;
pub mod config;
pub mod diff;
pub mod ipam;
pub mod lease;
mod metrics;
mod name;
mod progress;
mod rival;
pub mod run;
mod southbound;
pub mod tools;
pub mod want;
mod watch;
mod write;
