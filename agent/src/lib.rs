//! The podwire node agent.
pub mod ipam;
pub mod netns;
pub mod pods;
