//! What the agent is told: flags and their environment variables, checked at start.

mod observe;
mod ovn;
mod power;
mod runtime;
mod sources;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

pub use observe::{ObserveArgs, ObserveConfig};
pub use ovn::{Mode, OvnArgs, OvnConfig, Wait};
pub use power::{PowerArgs, Seccomp};
pub use runtime::RuntimeArgs;
pub use sources::{KubeAccess, KubeConfig, Need, Source, SourceArgs, SourceConfig, Token};

use crate::ipam::subnet::SubnetSpec;
use crate::plan::{MAX_MTU, MIN_MTU, MIN_MTU_IPV6};
use sources::ServiceAccount;

/// The subnets of a machine that nobody configured: private (RFC 1918, RFC 4193; the latter spells "podwire"), node-local.
const DEFAULT_SUBNETS: [&str; 2] = ["10.186.0.0/22", "fd70:6f64:7769:7265::/64"];

/// The flags of `podwire agent`.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Directory for the socket, the lock and the intent log; on tmpfs, as it must not outlive the links
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/podwire",
        env = "PODWIRE_RUN_DIR"
    )]
    pub run_dir: PathBuf,
    /// Socket on which plugins are served (default: RUN_DIR/agent.sock)
    #[arg(long, value_name = "PATH", env = "PODWIRE_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Open vSwitch's database
    #[arg(
        long,
        value_name = "REMOTE",
        default_value = "unix:/var/run/openvswitch/db.sock",
        env = "PODWIRE_OVSDB"
    )]
    pub ovsdb: String,
    /// Directory of ovs-vswitchd's pidfile and control socket (default: the database socket's)
    #[arg(long, value_name = "DIR", env = "PODWIRE_OVS_RUNDIR")]
    pub ovs_rundir: Option<PathBuf>,
    /// Who gives pods their addresses and the bridge its flows
    #[command(flatten)]
    pub ovn: OvnArgs,
    /// Bridge that pods' ports go on; made when missing, in plain mode
    #[arg(
        long,
        value_name = "NAME",
        default_value = "br-int",
        env = "PODWIRE_BRIDGE"
    )]
    pub bridge: String,
    /// Subnet for pods that nothing else gives an address: CIDR, then any of ",gateway=IP", ",range=IP-IP", ",exclude=IP"
    /// and ",exclude=CIDR"; may be repeated (default: 10.186.0.0/22 and fd70:6f64:7769:7265::/64)
    #[arg(
        long = "subnet",
        value_name = "SPEC",
        env = "PODWIRE_SUBNETS",
        value_delimiter = ' '
    )]
    pub subnets: Vec<String>,
    /// Leave the bridge's local port alone: somebody else is the pods' gateway
    #[arg(long, env = "PODWIRE_NO_GATEWAY")]
    pub no_gateway: bool,
    /// MTU of a pod's interface, in bytes, when neither its annotation nor the network configuration has one
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 1500,
        env = "PODWIRE_MTU"
    )]
    pub mtu: u32,
    /// Largest MTU that the node can carry, in bytes: what is asked for above it is brought down to it
    #[arg(long, value_name = "BYTES", env = "PODWIRE_MAX_MTU")]
    pub max_mtu: Option<u32>,
    /// Where pods' annotations come from
    #[command(flatten)]
    pub sources: SourceArgs,
    /// How long an ADD may wait for Open vSwitch, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "PODWIRE_ADD_TIMEOUT"
    )]
    pub add_timeout: u64,
    /// Operations under way at once; more are told to try again later
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 256,
        env = "PODWIRE_MAX_OPERATIONS"
    )]
    pub max_operations: usize,
    /// The container runtime's directories
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// How much power is kept
    #[command(flatten)]
    pub power: PowerArgs,
    /// What can be seen from outside
    #[command(flatten)]
    pub observe: ObserveArgs,
    /// What is logged: a level, or filters as in `info,podwire_ovs=debug`
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "info",
        env = "PODWIRE_LOG"
    )]
    pub log: String,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of lock and intent log.
    pub run_dir: PathBuf,
    /// The agent's socket.
    pub socket: PathBuf,
    /// The database's socket.
    pub ovsdb: PathBuf,
    /// Where ovs-vswitchd's pidfile and control socket are.
    pub ovs_rundir: PathBuf,
    /// The control plane.
    pub ovn: OvnConfig,
    /// The bridge.
    pub bridge: String,
    /// The pools that embedded addresses come from.
    pub subnets: Vec<SubnetSpec>,
    /// Whether the bridge's local port carries the subnets' gateway addresses.
    pub gateway: bool,
    /// MTU for a pod to which nobody gave one, in bytes.
    pub mtu: u32,
    /// Largest MTU that the node can carry, in bytes; None when nobody said.
    pub max_mtu: Option<u32>,
    /// Where annotations come from.
    pub sources: SourceConfig,
    /// Longest wait for Open vSwitch in an ADD.
    pub add_timeout: Duration,
    /// Operations under way at once.
    pub max_operations: usize,
    /// The container runtime's directories.
    pub runtime: RuntimeArgs,
    /// How much power the agent keeps.
    pub power: PowerArgs,
    /// What can be seen from outside.
    pub observe: ObserveConfig,
}

/// A setting that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct ConfigError {
    /// The flag's name.
    pub flag: &'static str,
    /// Its value.
    pub value: String,
    /// What is wrong with it, or what was expected.
    pub problem: String,
}

impl Config {
    /// Checks the flags and fills in what follows from others.
    ///
    /// # Errors
    /// Names the flag, its value and what was expected.
    pub fn from_args(args: AgentArgs) -> Result<Self, ConfigError> {
        let ovsdb = ovsdb_socket(&args.ovsdb)?;
        let ovs_rundir = match args.ovs_rundir {
            Some(dir) => dir,
            None => ovsdb.parent().unwrap_or(Path::new("/")).to_owned(),
        };
        let ovn = OvnConfig::from_args(args.ovn);
        ovn.check_subnets(&args.subnets)?;
        let subnets = match ovn.mode {
            Mode::Plain => subnets(&args.subnets)?,
            Mode::Ovn => Vec::new(),
        };
        let sources =
            SourceConfig::from_args(args.sources, ServiceAccount::of_process(), ovn.mode)?;
        check_mtu(args.mtu, &subnets)?;
        if let Some(most) = args.max_mtu {
            check_max_mtu(most, args.mtu)?;
        }
        check_bridge(&args.bridge)?;
        if args.add_timeout == 0 {
            return Err(bad("--add-timeout", "0", "at least 1 second is needed"));
        }
        if args.max_operations == 0 {
            return Err(bad("--max-operations", "0", "at least 1 is needed"));
        }
        Ok(Self {
            socket: args
                .socket
                .unwrap_or_else(|| args.run_dir.join("agent.sock")),
            run_dir: args.run_dir,
            ovsdb,
            ovs_rundir,
            ovn,
            bridge: args.bridge,
            subnets,
            gateway: !args.no_gateway,
            mtu: args.mtu,
            max_mtu: args.max_mtu,
            sources,
            add_timeout: Duration::from_secs(args.add_timeout),
            max_operations: args.max_operations,
            runtime: args.runtime,
            power: args.power,
            observe: ObserveConfig::from_args(args.observe)?,
        })
    }

    /// The gateways that the bridge's local port is to carry, with their subnets' prefix lengths.
    pub fn gateway_addresses(&self) -> Vec<IpNet> {
        if !self.gateway {
            return Vec::new();
        }
        self.subnets.iter().map(gateway_address).collect()
    }
}

fn gateway_address(subnet: &SubnetSpec) -> IpNet {
    // The length is that of a prefix of the same family, for the gateway lies in the subnet.
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
    Ok(subnets)
}

fn check_mtu(mtu: u32, subnets: &[SubnetSpec]) -> Result<(), ConfigError> {
    let has_ipv6 = subnets.iter().any(|subnet| subnet.gateway().is_ipv6());
    let least = if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    if (least..=MAX_MTU).contains(&mtu) {
        return Ok(());
    }
    Err(bad(
        "--mtu",
        &mtu.to_string(),
        &format!("expected {least} to {MAX_MTU}"),
    ))
}

/// The default must fit: it is not for the agent to bring its own setting down.
fn check_max_mtu(most: u32, mtu: u32) -> Result<(), ConfigError> {
    if (mtu..=MAX_MTU).contains(&most) {
        return Ok(());
    }
    let expected = format!("expected {mtu} (--mtu) to {MAX_MTU}");
    Err(bad("--max-mtu", &most.to_string(), &expected))
}

/// A bridge's name is its local port's, and so a link's.
fn check_bridge(name: &str) -> Result<(), ConfigError> {
    let fits = (1..=15).contains(&name.len()) && name != "." && name != "..";
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
        "expected a link's name: 1 to 15 characters without '/', ':' and spaces",
    ))
}

fn bad(flag: &'static str, value: &str, problem: &str) -> ConfigError {
    ConfigError {
        flag,
        value: value.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests;
