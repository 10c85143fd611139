//! The crate against a real ovsdb-server, one for each test, and against servers that misbehave.

mod client_waits;
mod errors;
mod fixture;
mod group_commit;
mod hostile;
mod operations;
mod reconnect;
mod replica;
mod unixctl;
mod vswitch;
