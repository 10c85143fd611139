//! What podwire's daemons share: the agent, the node role and the controller.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod exit;
pub mod file;
pub mod files;
pub mod http;
pub mod lockdown;
mod manager;
pub mod output;
pub mod process;
pub mod settings;
mod words;

pub use manager::Manager;
