//! Open vSwitch's databases for podwire: OVSDB (RFC 7047), from the bytes of the protocol to the
//! ports of a switch.
//!
//! From the top: [`vswitch`] knows the tables of Open vSwitch and turns "add this port" into a
//! transaction, [`nb`] knows those of OVN's northbound database. [`client`] maintains a connection
//! and a [`replica`] of the watched tables, and sends [`transact`]ions, those of several callers in
//! one round trip if they come together. [`protocol`] below it decides all of that without IO, over
//! [`wire`], JSON-RPC without IO; [`value`] has the columns' values. [`unixctl`] talks to a daemon
//! directly.

#![forbid(unsafe_code)]

pub mod certificate;
pub mod client;
pub mod nb;
pub mod openflow;
pub mod protocol;
pub mod replica;
pub mod transact;
pub mod unixctl;
pub mod value;
pub mod vswitch;
pub mod wire;
