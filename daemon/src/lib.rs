//! What podwire's daemons share: the agent, the node role and the controller.

pub mod http;
pub mod lockdown;
pub mod process;
