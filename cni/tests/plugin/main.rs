//! The plugin as a runtime sees it: the real binary, with an agent that each test scripts.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics is a test that fails"
)]

mod call;
mod fake_agent;
mod hostile;
mod input;
mod limits;
mod spool;
mod verbs;
