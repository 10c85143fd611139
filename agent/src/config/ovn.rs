//! The control plane of the node, and the paths of its parts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use podwire_daemon::settings::{Mode, SouthboundArgs};
use podwire_ovs::client::TlsKeys;

use super::{ConfigError, bad, usual};

/// What an ADD waits for before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// ovs-vswitchd has put the port on the bridge
    Ofport,
    /// ovn-controller has installed the port's flows as well
    OvnInstalled,
}

impl Wait {
    /// Its name in flags and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ofport => "ofport",
            Self::OvnInstalled => "ovn-installed",
        }
    }
}

/// The flags about OVN.
#[derive(Debug, Clone, Args)]
pub struct OvnArgs {
    /// plain: the agent creates the bridge and allocates addresses; ovn: ovn-controller creates the
    /// bridge, annotations give addresses
    #[arg(long, value_name = "MODE", default_value = "plain")]
    pub mode: Mode,
    /// What an ADD waits for [default: ofport in plain mode, ovn-installed in OVN mode]
    #[arg(long, value_name = "EVENT")]
    pub wait: Option<Wait>,
    /// Directory of ovn-controller's pidfile and control socket
    #[arg(long, value_name = "DIR", default_value = usual::OVN_RUNDIR)]
    pub ovn_rundir: PathBuf,
    /// The southbound database, queried for the reason when OVN does not install an ADD's port in
    /// time
    #[command(flatten)]
    pub southbound: SouthboundArgs,
}

/// The control plane settings, checked.
#[derive(Debug, Clone)]
pub struct OvnConfig {
    /// The control plane.
    pub mode: Mode,
    /// What an ADD waits for.
    pub wait: Wait,
    /// The directory of ovn-controller's pidfile and control socket.
    pub rundir: PathBuf,
    /// The southbound database, if not the one in Open vSwitch's external_ids.
    pub remote: Option<String>,
    /// Keys for an `ssl:` southbound database, if not Open vSwitch's own.
    pub tls: Option<TlsKeys>,
}

impl OvnConfig {
    /// Checks the flags and computes what follows from the mode.
    pub(super) fn from_args(args: OvnArgs) -> Result<Self, ConfigError> {
        Ok(Self {
            mode: args.mode,
            wait: args.wait.unwrap_or(match args.mode {
                Mode::Plain => Wait::Ofport,
                Mode::Ovn => Wait::OvnInstalled,
            }),
            rundir: args.ovn_rundir,
            tls: args.southbound.check()?,
            remote: args.southbound.ovn_remote,
        })
    }

    /// Subnets are for plain mode: in OVN mode, the agent allocates no address.
    pub(super) fn check_subnets(&self, given: &[String]) -> Result<(), ConfigError> {
        match (self.mode, given.first()) {
            (Mode::Ovn, Some(subnet)) => Err(bad(
                "--subnet",
                subnet,
                "in OVN mode pods have their addresses from annotations; leave it out, or use \
                 --mode plain",
            )),
            _ => Ok(()),
        }
    }
}
