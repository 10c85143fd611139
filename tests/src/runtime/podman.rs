//! podman with its CNI backend.

/// podman on a node.
#[derive(Debug)]
pub struct Podman;
