//! Open vSwitch's databases for podwire: OVSDB (RFC 7047) from the bytes of the protocol up to the
//! ports of a switch.
//!
//! From the top: [`vswitch`] knows the tables of Open vSwitch and turns "add this port" into a
//! transaction, [`nb`] knows those of OVN's northbound database; [`client`] keeps a connection, a
//! [`replica`] of the watched tables, and sends [`transact`]ions, several callers' in one round
//! trip where they come together. Under it [`protocol`] decides all of that without IO, over
//! [`wire`], JSON-RPC without IO; [`value`] is what columns hold. [`unixctl`] asks a daemon itself.

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
