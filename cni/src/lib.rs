//! The CNI specification as types, and the wire format between the plugin and the agent.
//!
//! Five modules: [`spec`] has versions, network configurations, results and errors in every
//! supported version of the specification; [`mod@env`] the variables and arguments with which a
//! runtime calls a plugin; [`wire`] the request that the plugin posts to the agent and the reply
//! that it prints; [`spool`] the files in which DELs wait for an agent; and [`private_dir`] the
//! directories for those and for the agent's own records. All but the last two are pure: bytes in,
//! types or typed errors out. The plugin (`plugin/main.rs`) adds the sockets and the agent adds
//! everything else.

#![forbid(unsafe_code)]

pub mod env;
pub mod private_dir;
pub mod spec;
pub mod spool;
pub mod wire;
