//! OpenFlow 1.4 as far as a node agent needs it: flow entries added and deleted in atomic bundles.
//!
//! `flow` is what a flow is, `wire` the protocol without IO, [`Connection`] the shell around it.
//! Section numbers are those of the OpenFlow Switch Specification 1.4.0.

mod connection;
mod error;
mod flow;
mod wire;

pub use connection::{Connection, management_socket};
pub use error::OpenFlowError;
pub use flow::{
    Action, CT_ESTABLISHED, CT_NEW, CT_RELATED, CT_TRACKED, Cookie, Field, Flow, FlowMod, MacBytes,
    PortNumber,
};
pub use wire::{Answer, Refusal, Session, WireError};
