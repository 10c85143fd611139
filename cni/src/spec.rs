//! The CNI specification as types: one internal form, read from and written to any of the supported
//! versions (0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0).
//!
//! "CNI spec" means SPEC.md of containernetworking/cni at 1.1.0.

mod command;
mod conf;
mod error;
mod fields;
mod result;
mod version;

pub use command::Command;
pub use conf::{
    Attachment, Bandwidth, CniArgs, ConfError, IpamConf, NetConf, OVS_CNI, OnBridge, Preamble,
    RequestedIp, RuntimeConfig, Vlan, Vlans, unicast_mac,
};
pub use error::{ErrorCode, SpecError};
pub use fields::{FieldError, MAX_IFNAME, MAX_NAME, is_valid_ifname, is_valid_name};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
pub use version::{CniVersion, VersionError};

pub use error::excerpt;
