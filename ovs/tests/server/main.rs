//! The crate against a real ovsdb-server, one for each test, and against servers that misbehave.

#![allow(
    clippy::unwrap_used,
    reason = "the fixture is part of the tests, where a panic is the verdict"
)]

mod client_waits;
mod cluster;
mod errors;
mod fence;
mod fixture;
mod group_commit;
mod hostile;
mod openflow;
mod operations;
mod reconnect;
mod remotes;
mod replica;
mod tls;
mod unixctl;
mod vswitch;
mod vswitchd;
