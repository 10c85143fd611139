//! With which control plane the node works, and where its parts are.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use podwire_ovs::client::TlsKeys;

use super::{ConfigError, bad};

/// Who decides what pods get and how the bridge switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Nobody: the bridge switches by itself, and the agent gives addresses
    Plain,
    /// A controller by annotations and logical ports, ovn-controller by flows
    Ovn,
}

/// What an ADD waits for before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// ovs-vswitchd has put the port on the bridge
    Ofport,
    /// ovn-controller has installed the port's flows as well
    OvnInstalled,
}

/// The flags about OVN.
#[derive(Debug, Clone, Args)]
pub struct OvnArgs {
    /// plain: the agent makes the bridge and gives addresses; ovn: ovn-controller and annotations do
    #[arg(
        long,
        value_name = "MODE",
        default_value = "plain",
        env = "PODWIRE_MODE"
    )]
    pub mode: Mode,
    /// What an ADD waits for [default: ofport in plain mode, ovn-installed in OVN mode]
    #[arg(long, value_name = "EVENT", env = "PODWIRE_WAIT")]
    pub wait: Option<Wait>,
    /// Directory of ovn-controller's pidfile and control socket
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/run/ovn",
        env = "PODWIRE_OVN_RUNDIR"
    )]
    pub ovn_rundir: PathBuf,
    /// Private key for an ssl: southbound database [default: Open vSwitch's, as ovs-vsctl set-ssl wrote it]
    #[arg(
        long,
        value_name = "FILE",
        env = "PODWIRE_OVN_PRIVATE_KEY",
        requires = "ovn_certificate",
        requires = "ovn_ca_cert"
    )]
    pub ovn_private_key: Option<PathBuf>,
    /// Certificate that goes with it
    #[arg(
        long,
        value_name = "FILE",
        env = "PODWIRE_OVN_CERTIFICATE",
        requires = "ovn_private_key"
    )]
    pub ovn_certificate: Option<PathBuf>,
    /// Certificate of the CA that signed the southbound database's
    #[arg(
        long,
        value_name = "FILE",
        env = "PODWIRE_OVN_CA_CERT",
        requires = "ovn_private_key"
    )]
    pub ovn_ca_cert: Option<PathBuf>,
}

/// The control plane, checked.
#[derive(Debug, Clone)]
pub struct OvnConfig {
    /// Who decides.
    pub mode: Mode,
    /// What an ADD waits for.
    pub wait: Wait,
    /// Where ovn-controller's pidfile and control socket are.
    pub rundir: PathBuf,
    /// Keys for an `ssl:` southbound database, when Open vSwitch's own are not to be used.
    pub tls: Option<TlsKeys>,
}

impl OvnConfig {
    /// Fills in what follows from the mode.
    pub(super) fn from_args(args: OvnArgs) -> Self {
        let OvnArgs {
            ovn_private_key,
            ovn_certificate,
            ovn_ca_cert,
            ..
        } = args;
        let tls = ovn_private_key.zip(ovn_certificate).zip(ovn_ca_cert);
        Self {
            mode: args.mode,
            wait: args.wait.unwrap_or(match args.mode {
                Mode::Plain => Wait::Ofport,
                Mode::Ovn => Wait::OvnInstalled,
            }),
            rundir: args.ovn_rundir,
            tls: tls.map(|((private_key, certificate), ca_certificate)| TlsKeys {
                private_key,
                certificate,
                ca_certificate,
            }),
        }
    }

    /// Subnets are plain mode's: in OVN mode an address that the annotation does not name is nobody's.
    pub(super) fn check_subnets(&self, given: &[String]) -> Result<(), ConfigError> {
        match (self.mode, given.first()) {
            (Mode::Ovn, Some(subnet)) => Err(bad(
                "--subnet",
                subnet,
                "in OVN mode pods have their addresses from annotations; leave it out, or use --mode plain",
            )),
            _ => Ok(()),
        }
    }
}
