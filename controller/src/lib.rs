//! `podwire-controller`: assigns subnets to nodes and addresses to pods, and keeps OVN's northbound
//! database in line with Kubernetes' objects. One leader serves any number of nodes.
//!
//! It is level-triggered. `run` follows the objects and marks the keys of changed ones; [`want`]
//! computes the rows of a key from the objects alone; [`diff`] compares them with the replica of
//! the database, and the difference is the transaction. So a pass over an unchanged cluster writes
//! nothing, and the same code handles a start, a restored backup, a row deleted by hand and a
//! missed event.
//!
//! ```text
//! arguments  the command line
//! kubectl  kubectl's plugin: every node of a cluster, by the tools of podwire's own pods
//! tools    status, explain, policy, a dry run
//! keys     makes and renews the keys for TLS between the databases and their clients
//! run      the loop: changes in, passes out; the kinds of objects that are followed
//! lease    leader election: a Lease, and an epoch in the database that fences every transaction
//! metrics  the page of metrics
//! rival    a control plane of ovn-kubernetes that must not run at the same time
//! southbound  chassis of deleted nodes; how far ovn-northd and the nodes are with new pods
//! delays   how long new pods wait for them
//! write    writes to Kubernetes: annotations, conditions, Events
//! diff     wanted rows x existing rows -> operations
//! want     objects -> rows, pure
//! ipam     subnets of nodes, addresses of pods, pure
//! members  the members of groups that several keys share
//! cluster  the objects, reduced to what is needed
//! key      what identifies an object, and the order of processing
//! ```

#![forbid(unsafe_code)]

pub mod arguments;
pub mod cluster;
pub mod config;
mod delays;
pub mod diff;
pub mod ipam;
pub mod key;
pub mod keys;
pub mod kubectl;
pub mod lease;
pub mod members;
mod metrics;
mod names;
mod progress;
mod rival;
pub mod run;
mod southbound;
pub mod tools;
pub mod want;
mod write;
