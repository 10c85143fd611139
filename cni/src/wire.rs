//! The protocol between plugin and agent: one `POST /v1/cni` over HTTP/1.1 on a unix socket with a
//! [`Request`] as its JSON body, `Content-Length` both ways, and one reply.
//!
//! The body of a reply with status 200 is exactly what the plugin writes to stdout (nothing for a
//! verb without output), and the plugin exits 0. The body of a reply with any other status is a CNI
//! error object, which the plugin prints before it exits 1. So all meaning is in the agent, and a
//! plugin of one version works with agents of many.
//!
//! A request may allow more ([`Request::takes_stderr`]): the header [`STDERR_HEADER`] then tells
//! how many bytes at the body's end are for the plugin's stderr, such as an IPAM plugin's messages.
//! An agent that does not know it leaves them out, and a plugin that does not ask for them gets
//! none: neither side needs another version for this.

pub mod http;
mod request;

use std::ops::RangeInclusive;

pub use request::{Request, WireError};

/// The version that this build's plugin writes.
pub const WIRE_VERSION: u32 = 1;
/// The versions that this build's agent reads. It keeps the one before the newest, so that a node's
/// agent can be upgraded before its plugin file.
pub const WIRE_VERSIONS: RangeInclusive<u32> = 1..=1;
/// The header with the version, on requests and replies.
pub const WIRE_HEADER: &str = "podwire-wire";
/// The header of a reply with the number of bytes at its end that are for the plugin's stderr.
pub const STDERR_HEADER: &str = "podwire-stderr";
/// The maximum number of bytes for stderr in a reply.
pub const MAX_STDERR: usize = 64 << 10;
/// The path to post to.
pub const PATH: &str = "/v1/cni";
/// The agent's socket, unless set otherwise.
pub const DEFAULT_SOCKET: &str = "/run/podwire/agent.sock";

/// The largest network configuration, in bytes. It contains a pod's annotations, of which
/// Kubernetes allows 256 KiB.
pub const MAX_CONFIG: usize = 1 << 20;
/// The largest request body, in bytes: a configuration, and the variables with room for escaping.
pub const MAX_REQUEST: usize = MAX_CONFIG + (1 << 20);
/// The largest reply body, in bytes: room for the prevResult of a largest configuration.
pub const MAX_REPLY: usize = MAX_CONFIG + (1 << 20);
