//! The control plane of the node, and the paths of its parts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use podwire_ovs::client::{Remote, TlsKeys};

use super::{ConfigError, bad, usual};

/// Who decides what pods get and how the bridge switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Nobody: the bridge switches by itself, and the agent gives addresses
    Plain,
    /// A controller by annotations and logical ports, ovn-controller by flows
    Ovn,
}

impl Mode {
    /// Its name in flags and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ovn => "ovn",
        }
    }
}

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
    /// Southbound database, such as ssl:192.0.2.1:6642, queried for the reason when OVN does not
    /// install an ADD's port in time [default: ovn-remote of Open vSwitch's external_ids, which
    /// ovn-controller uses]
    #[arg(long, value_name = "REMOTE")]
    pub ovn_remote: Option<String>,
    /// Private key for an ssl: southbound database [default: Open vSwitch's, from ovs-vsctl
    /// set-ssl]
    #[arg(long, value_name = "FILE")]
    pub ovn_private_key: Option<PathBuf>,
    /// Certificate for that private key
    #[arg(long, value_name = "FILE")]
    pub ovn_certificate: Option<PathBuf>,
    /// Certificate of the CA that signed the southbound database's certificate
    #[arg(long, value_name = "FILE")]
    pub ovn_ca_cert: Option<PathBuf>,
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
        if let Some(remote) = &args.ovn_remote {
            Remote::parse_list(remote)
                .map_err(|error| bad("--ovn-remote", remote, &error.to_string()))?;
        }
        Ok(Self {
            mode: args.mode,
            wait: args.wait.unwrap_or(match args.mode {
                Mode::Plain => Wait::Ofport,
                Mode::Ovn => Wait::OvnInstalled,
            }),
            rundir: args.ovn_rundir,
            remote: args.ovn_remote,
            tls: keys([
                ("--ovn-private-key", args.ovn_private_key),
                ("--ovn-certificate", args.ovn_certificate),
                ("--ovn-ca-cert", args.ovn_ca_cert),
            ])?,
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

/// All three files or none.
fn keys(files: [(&'static str, Option<PathBuf>); 3]) -> Result<Option<TlsKeys>, ConfigError> {
    let missing: Vec<&str> = files
        .iter()
        .filter(|(_, file)| file.is_none())
        .map(|(flag, _)| *flag)
        .collect();
    let given = files
        .iter()
        .find_map(|(flag, file)| Some((*flag, file.clone()?)));
    match (files, given) {
        (
            [
                (_, Some(private_key)),
                (_, Some(certificate)),
                (_, Some(ca_certificate)),
            ],
            _,
        ) => Ok(Some(TlsKeys {
            private_key,
            certificate,
            ca_certificate,
        })),
        (_, None) => Ok(None),
        (_, Some((flag, file))) => {
            let expected = format!("{} must be given with it", missing.join(" and "));
            Err(bad(flag, &file.display().to_string(), &expected))
        }
    }
}
