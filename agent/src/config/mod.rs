//! The agent's configuration, from the command line, configuration files, the environment and a
//! pod's service account, checked at start and again when a file changes.
//!
//! Every setting is defined once, as a flag ([`AgentArgs`]); the table of [`Settings`] is derived
//! from that. Each source provides its values as text (`layers`); the highest that has a setting
//! counts. The result is parsed like a command line and checked as a whole ([`Config`]).

mod command;
mod environment;
mod error;
mod files;
mod foreign;
mod layers;
mod live;
mod load;
mod ovn;
mod power;
mod print;
mod role;
mod runtime;
mod settings;
mod sources;
pub mod usual;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

pub use command::{AgentCommand, OvnkubeCommand, with_hidden_token};
pub use environment::Environment;
pub use error::{ConfigError, FileError, LoadError};
pub use files::{Format, Place, Places};
pub use foreign::command_line;
pub use layers::{Given, Merged, Origin};
pub use live::{Change, Live};
pub use load::{Loaded, Loader};
pub use ovn::{OvnArgs, OvnConfig, Wait};
pub use podwire_apiserver::{Access, Token};
pub use podwire_daemon::settings::Mode;
use podwire_daemon::settings::loopback;
pub use power::PowerArgs;
pub use print::reference;
pub use role::{RoleCommand, RoleLine, node_command, node_line};
pub use runtime::{
    RuntimeArgs, is_network_configuration, network_configuration, network_configurations,
    plugin_types,
};
pub use settings::{Kind, Setting, Settings};
pub use sources::{KubeConfig, Need, Source, SourceArgs, SourceConfig};

use crate::ipam::pool::Pools;
use crate::ipam::subnet::SubnetSpec;
use crate::plan::{MAX_MTU, MIN_MTU, MIN_MTU_IPV6};

/// The subnets of an unconfigured machine: private (RFC 1918, RFC 4193; the latter spells
/// "podwire") and node-local.
const DEFAULT_SUBNETS: [&str; 2] = ["10.186.0.0/22", "fd70:6f64:7769:7265::/64"];

/// The flags of `podwire agent`.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Directory of the socket, the lock and the intent log; it must be on tmpfs, because its
    /// content must not outlive the links
    #[arg(long, value_name = "DIR", default_value = "/run/podwire")]
    pub run_dir: PathBuf,
    /// If another agent uses this run directory, wait until it ends instead of failing; for rolling
    /// updates
    #[arg(long)]
    pub standby: bool,
    /// Socket on which the agent serves the plugin [default: RUN_DIR/agent.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Open vSwitch's database
    #[arg(long, value_name = "REMOTE", default_value = usual::OVSDB)]
    pub ovsdb: String,
    /// Directory of ovs-vswitchd's pidfile and control socket [default: the database socket's]
    #[arg(long, value_name = "DIR")]
    pub ovs_rundir: Option<PathBuf>,
    /// Who gives pods their addresses and the bridge its flows
    #[command(flatten)]
    pub ovn: OvnArgs,
    /// Bridge for pods' ports; plain mode creates it if it is missing
    #[arg(long, value_name = "NAME", default_value = usual::BRIDGE)]
    pub bridge: String,
    /// Subnet for pods that get no address from elsewhere: CIDR, then any of ",gateway=IP",
    /// ",range=IP-IP", ",exclude=IP" and ",exclude=CIDR"; may be repeated; or node, for the node's
    /// podCIDRs, which `podwire node run --mode plain` provides [default: 10.186.0.0/22 and
    /// fd70:6f64:7769:7265::/64]
    #[arg(long = "subnet", value_name = "SPEC", value_delimiter = ' ')]
    pub subnets: Vec<String>,
    /// Leave the bridge's local port alone, because something else is the pods' gateway
    #[arg(long)]
    pub no_gateway: bool,
    /// MTU of a pod's interface, in bytes, if neither its annotation nor the network configuration
    /// sets one [default: the uplink's, less the tunnel's overhead in OVN mode]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// Let pods answer DHCP, advertise routers, redirect and query groups and, in plain mode, send
    /// from any MAC and IP address; a network's own portSecurity overrides this
    #[arg(long)]
    pub no_port_security: bool,
    /// Skip duplicate address detection for link-local addresses in pods with an IPv6 address; a
    /// network's own quietPods overrides this [default: true in plain mode, false in OVN mode]
    #[arg(
        long,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        value_name = "BOOL",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    pub quiet_pods: Option<bool>,
    /// Largest MTU that the node can carry, in bytes; a larger request is lowered to it
    #[arg(long, value_name = "BYTES")]
    pub max_mtu: Option<u32>,
    /// Where pods' annotations come from
    #[command(flatten)]
    pub sources: SourceArgs,
    /// How long an ADD may wait in total for its turn, its pod's annotation, Open vSwitch and OVN,
    /// in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub add_timeout: u64,
    /// Largest number of ADDs, CHECKs and GCs in progress; further ones get code 11, try again
    /// later. DELs and STATUSes have as many places of their own
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    pub max_operations: usize,
    /// How long the agent waits for the runtime's DEL before it removes an attachment whose link
    /// and namespace are gone, or whose pod the API server no longer has, in seconds; 0 means
    /// forever
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub gc_grace: u64,
    /// The container runtime's directories
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// How much power is kept
    #[command(flatten)]
    pub power: PowerArgs,
    /// Loopback address, IP:PORT, for GET /metrics, in addition to the socket
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_address: Option<String>,
    /// What to log: a level, or filters such as `info,podwire_ovs=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log: String,
    /// File to append the log to, opened again on SIGHUP [default: standard error]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of lock and intent log.
    pub run_dir: PathBuf,
    /// Whether to wait for an agent that holds it.
    pub standby: bool,
    /// The agent's socket.
    pub socket: PathBuf,
    /// The database's socket.
    pub ovsdb: PathBuf,
    /// The directory of ovs-vswitchd's pidfile and control socket.
    pub ovs_rundir: PathBuf,
    /// The control plane.
    pub ovn: OvnConfig,
    /// The bridge.
    pub bridge: String,
    /// Whether the bridge's local port carries the subnets' gateway addresses.
    pub gateway: bool,
    /// Whether the switch drops what pods must not send, if their network does not set it. In OVN
    /// mode OVN's own port security compares their addresses.
    pub port_security: bool,
    /// Whether IPv6 pods skip duplicate address detection of their link-local address, if their
    /// network does not set it.
    pub quiet_pods: bool,
    /// The sources of annotations.
    pub sources: SourceConfig,
    /// How long an abandoned attachment waits for its DEL; None for ever.
    pub gc_grace: Option<Duration>,
    /// The privileges that the agent keeps.
    pub power: PowerArgs,
    /// The container runtime's directories.
    pub runtime: RuntimeArgs,
    /// The address for metrics over TCP; a loopback address.
    pub metrics_address: Option<SocketAddr>,
    /// The log file, if not standard error.
    pub log_file: Option<PathBuf>,
    /// The settings that can change at run time, with their values at start.
    pub live: Live,
}

impl Config {
    /// Checks the flags and computes the dependent defaults.
    ///
    /// # Errors
    /// Names the flag, its value and what is valid.
    pub fn from_args(args: AgentArgs) -> Result<Self, ConfigError> {
        let ovsdb = ovsdb_socket(&args.ovsdb)?;
        let ovs_rundir = match args.ovs_rundir {
            Some(dir) => dir,
            None => ovsdb.parent().unwrap_or(Path::new("/")).to_owned(),
        };
        let ovn = OvnConfig::from_args(args.ovn)?;
        ovn.check_subnets(&args.subnets)?;
        let subnets = match ovn.mode {
            Mode::Plain => subnets(&args.subnets)?,
            Mode::Ovn => Vec::new(),
        };
        let sources = SourceConfig::from_args(args.sources, ovn.mode)?;
        if let Some(mtu) = args.mtu {
            check_mtu("--mtu", mtu, &subnets)?;
        }
        if let Some(most) = args.max_mtu {
            check_max_mtu(most, args.mtu, &subnets)?;
        }
        check_bridge(&args.bridge)?;
        if args.add_timeout == 0 {
            return Err(bad("--add-timeout", "0", "at least 1 second is needed"));
        }
        if args.max_operations == 0 {
            return Err(bad("--max-operations", "0", "at least 1 is needed"));
        }
        live::check_log(&args.log)?;
        Ok(Self {
            socket: args
                .socket
                .unwrap_or_else(|| args.run_dir.join("agent.sock")),
            run_dir: args.run_dir,
            standby: args.standby,
            ovsdb,
            ovs_rundir,
            bridge: args.bridge,
            gateway: !args.no_gateway,
            port_security: !args.no_port_security,
            quiet_pods: args.quiet_pods.unwrap_or(ovn.mode == Mode::Plain),
            ovn,
            sources,
            gc_grace: (args.gc_grace > 0).then(|| Duration::from_secs(args.gc_grace)),
            power: args.power,
            runtime: args.runtime,
            metrics_address: args.metrics_address.as_deref().map(loopback).transpose()?,
            log_file: args.log_file,
            live: Live {
                subnets,
                mtu: args.mtu,
                max_mtu: args.max_mtu,
                add_timeout: Duration::from_secs(args.add_timeout),
                max_operations: args.max_operations,
                log: args.log,
            },
        })
    }

    /// The gateways for the bridge's local port, with their subnets' prefix lengths.
    pub fn gateway_addresses(&self, live: &Live) -> Vec<IpNet> {
        if !self.gateway {
            return Vec::new();
        }
        live.subnets.iter().map(gateway_address).collect()
    }
}

fn gateway_address(subnet: &SubnetSpec) -> IpNet {
    // The gateway lies in the subnet, so the prefix length is valid for its family.
    IpNet::new(subnet.gateway(), subnet.subnet().prefix_len())
        .unwrap_or_else(|_| subnet.gateway().into())
}

fn ovsdb_socket(remote: &str) -> Result<PathBuf, ConfigError> {
    match remote.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') => Ok(path.into()),
        Some(_) => Err(bad("--ovsdb", remote, "the socket's path must be absolute")),
        None => Err(bad("--ovsdb", remote, "expected unix:PATH")),
    }
}

fn subnets(given: &[String]) -> Result<Vec<SubnetSpec>, ConfigError> {
    if given == [layers::NODES] {
        return Ok(Vec::new());
    }
    let chosen: Vec<&str> = if given.is_empty() {
        let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        DEFAULT_SUBNETS
            .into_iter()
            .filter(|subnet| has_ipv6 || !subnet.contains("::"))
            .collect()
    } else {
        given.iter().map(String::as_str).collect()
    };
    let mut subnets: Vec<SubnetSpec> = Vec::with_capacity(chosen.len());
    for text in chosen {
        let subnet: SubnetSpec = text
            .parse()
            .map_err(|error| bad("--subnet", text, &format!("{error}")))?;
        subnets.push(subnet);
    }
    let listed = given.join(" ");
    Pools::new(subnets.clone()).map_err(|error| bad("--subnet", &listed, &error.to_string()))?;
    Ok(subnets)
}

fn check_mtu(flag: &'static str, mtu: u32, subnets: &[SubnetSpec]) -> Result<(), ConfigError> {
    let has_ipv6 = subnets.iter().any(|subnet| subnet.gateway().is_ipv6());
    let least = if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    if (least..=MAX_MTU).contains(&mtu) {
        return Ok(());
    }
    let expected = format!("expected {least} to {MAX_MTU}");
    Err(bad(flag, &mtu.to_string(), &expected))
}

/// The default must fit: the agent does not lower its own setting.
fn check_max_mtu(most: u32, mtu: Option<u32>, subnets: &[SubnetSpec]) -> Result<(), ConfigError> {
    match mtu {
        Some(mtu) if !(mtu..=MAX_MTU).contains(&most) => {
            let expected = format!("expected {mtu} (--mtu) to {MAX_MTU}");
            Err(bad("--max-mtu", &most.to_string(), &expected))
        }
        _ => check_mtu("--max-mtu", most, subnets),
    }
}

/// A bridge's name is also that of its local port, and so a link's.
fn check_bridge(name: &str) -> Result<(), ConfigError> {
    // The loopback exists in every namespace; the others are invalid as names of links
    // (`dev_valid_name`, /proc/sys/net/ipv4/conf).
    let is_taken = ["lo", ".", "..", "all", "default"].contains(&name);
    let fits = (1..=15).contains(&name.len()) && !is_taken;
    if fits
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"/:".contains(&byte))
    {
        return Ok(());
    }
    Err(bad(
        "--bridge",
        name,
        "expected a new link's name: 1 to 15 characters without '/', ':' and spaces, and not lo",
    ))
}

fn bad(flag: &'static str, value: &str, problem: &str) -> ConfigError {
    podwire_daemon::settings::bad(flag, value, problem).into()
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
