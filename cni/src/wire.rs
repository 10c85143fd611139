//! What goes between plugin and agent: one `POST /v1/cni` over HTTP/1.1 on a unix socket, its
//! body a [`Request`] as JSON, `Content-Length` both ways, and one reply.
//!
//! A reply of status 200 bears in its body exactly the bytes for the plugin's stdout (none for
//! a verb that answers nothing), and the plugin exits 0. A reply of any other status bears a CNI
//! error object, which the plugin prints before it exits 1. So all meaning is in the agent, and
//! a plugin of one version serves agents of many.
//!
//! A request that says so ([`Request::takes_stderr`]) may be answered with more: the header
//! [`STDERR_HEADER`] tells how many bytes at the body's end are for the plugin's stderr, such as
//! an IPAM plugin's remarks. An agent that does not know of it leaves them out, and to a plugin
//! that does not ask none are sent: this needs no other version on either side.

pub mod http;
mod request;

use std::ops::RangeInclusive;

pub use request::{Request, WireError};

/// The version that this build's plugin writes.
pub const WIRE_VERSION: u32 = 1;
/// The versions that this build's agent reads. It keeps the one before the newest, so that a
/// node's agent can be upgraded before its plugin file.
pub const WIRE_VERSIONS: RangeInclusive<u32> = 1..=1;
/// The header with the version, on requests and replies.
pub const WIRE_HEADER: &str = "podwire-wire";
/// The header of a reply with the number of bytes at its end that are for the plugin's stderr.
pub const STDERR_HEADER: &str = "podwire-stderr";
/// The most bytes for stderr that a reply has.
pub const MAX_STDERR: usize = 64 << 10;
/// The path to post to.
pub const PATH: &str = "/v1/cni";
/// The agent's socket, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/podwire/agent.sock";

/// The largest network configuration, in bytes. A pod's annotations travel in it, and
/// Kubernetes allows 256 KiB of them.
pub const MAX_CONFIG: usize = 1 << 20;
/// The largest body of a request, in bytes: a configuration, and the variables with room for
/// their escaping.
pub const MAX_REQUEST: usize = MAX_CONFIG + (1 << 20);
/// The largest body of a reply, in bytes: it can hold a prevResult of a largest configuration.
pub const MAX_REPLY: usize = MAX_CONFIG + (1 << 20);
