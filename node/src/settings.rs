//! The settings from the command line and the environment, checked before anything else.

mod args;
mod doors;
mod extra;
mod follow;
mod hints;
mod nets;
mod ovn;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use ipnet::IpNet;
use podwire_cluster::address::Mac;
pub(crate) use podwire_daemon::settings::{Mode, SettingsError};
use podwire_daemon::settings::{bad, node_name};
use podwire_ovs::client::{Remote, TlsKeys};

use crate::GATEWAY;

pub(crate) use args::{ApiArgs, PlaceArgs, SettingsArgs};
pub(crate) use follow::{ClusterSettings, FollowError};
pub(crate) use hints::Hints;
use nets::{check_apart, nets};
pub(crate) use nets::{check_subnets, least_mtu};

/// Another node, and how plain mode reaches its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// At least one; at most one of each family.
    pub(crate) subnets: Vec<IpNet>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// With OVN, another node by whose door its pods are reached with the source of the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) mac: Mac,
    /// At least one; at most one of each family.
    pub(crate) subnets: Vec<IpNet>,
    /// The node's own.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

/// The goal for the node: the flags and, by [`Settings::with`], what the API server has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) node_name: String,
    /// At most one of each family. Empty until an annotation provides them.
    pub(crate) node_subnets: Vec<IpNet>,
    /// Whether flags set them.
    pub(crate) subnets_by_flag: bool,
    /// The sources of flags that are not from the command line, as text to append.
    pub(crate) origins: BTreeMap<&'static str, String>,
    /// In plain mode.
    pub(crate) peers: Vec<Peer>,
    /// With OVN; none without the Kubernetes API, which tells of them.
    pub(crate) doors: Option<Vec<Door>>,
    /// In plain mode: whether to use tunnels even to peers on the same network.
    pub(crate) always_tunnel: bool,
    pub(crate) cluster_subnets: Vec<IpNet>,
    pub(crate) service_cidrs: Vec<IpNet>,
    pub(crate) interface: Option<String>,
    pub(crate) mtu: Option<u32>,
    /// The tunnels' local addresses, if set by flags.
    pub(crate) encap_ips: Vec<IpAddr>,
    pub(crate) encap_port: Option<u16>,
    /// Bridges by physical network.
    pub(crate) bridge_mappings: BTreeMap<String, String>,
    /// Bridges to make, each with a spare NIC.
    pub(crate) data_bridges: Vec<DataBridge>,
    /// Settings of ovn-controller.
    pub(crate) ovn_options: BTreeMap<String, String>,
    pub(crate) ovn_remote: Option<String>,
    /// Files for ssl: remotes.
    pub(crate) tls: Option<TlsKeys>,
    pub(crate) bridge: String,
    pub(crate) tuning: Tuning,
    pub(crate) firewalld: Firewalld,
    pub(crate) profile: Profile,
    /// Whether a gateway router of OVN's may share the node's addresses with the host.
    pub(crate) shares: bool,
    /// Whether what its pods answer to clients from outside comes back to the host.
    pub(crate) answers_return: bool,
    /// Whether the gateway router leads clients from outside to pods.
    pub(crate) router_leads: bool,
    /// What files say of the NIC of the gateway bridge.
    pub(crate) hints: Hints,
    /// Whether the NIC may be moved now: by a command that a person has started.
    pub(crate) moves: bool,
}

/// A bridge with a spare NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataBridge {
    pub(crate) name: String,
    pub(crate) nic: String,
    /// The physical network that it is OVN's bridge for.
    pub(crate) network: Option<String>,
    /// The setting that names it, and its value there.
    pub(crate) by: (&'static str, String),
}

/// How packets between pods and the outside leave the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// By the host's own routing. No NIC is touched.
    Routed,
    /// By a bridge of Open vSwitch into which the NIC is moved.
    Bridged,
    /// By a bridge of Open vSwitch that the operator has made.
    Adopt,
}

impl Settings {
    /// The bridge into which the NIC is moved.
    pub(crate) fn gateway(&self) -> Option<&'static str> {
        (self.profile == Profile::Bridged).then_some(GATEWAY)
    }
}

/// Who sends pods' packets outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GatewayMode {
    /// The host. ovn-kubernetes calls it local.
    #[value(alias = "local")]
    Routed,
    /// A gateway router of OVN's, which shares the node's addresses with the host.
    Shared,
}

/// Which configuration of firewalld to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Firewalld {
    Off,
    /// The runtime one, and again after each reload.
    Runtime,
    /// The permanent one too.
    Permanent,
}

/// Settings of Open vSwitch's daemons for processors and memory, and of the kernel for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// In the format of CPUAffinity= (systemd.exec(5)).
    pub(crate) cpus: Option<String>,
    pub(crate) no_mlockall: bool,
    pub(crate) handlers: Option<u16>,
    pub(crate) revalidators: Option<u16>,
    /// Of the kernel's connection tracking table.
    pub(crate) buckets: Option<u32>,
}

/// Paths.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) ovsdb: Remote,
    /// The journal's directory.
    pub(crate) directory: PathBuf,
}

impl SettingsArgs {
    /// Checks the flags, each by itself and against the others. With `by_api`, the node's subnets
    /// may come later.
    ///
    /// # Errors
    /// Names the flag, its value and what is valid.
    pub(crate) fn check(self, by_api: bool) -> Result<Settings, SettingsError> {
        let node_subnets = nets("--node-subnet", &self.node_subnets)?;
        self.check_mode(by_api)?;
        let tls = self.tls()?;
        if node_subnets.is_empty() && !by_api {
            let problem = "name the node's part of the pod network, as in 10.244.1.0/24";
            return Err(bad("--node-subnet", "is missing", problem));
        }
        let cluster_subnets = nets("--cluster-subnet", &self.cluster_subnets)?;
        check_subnets("--node-subnet", &node_subnets, &cluster_subnets)?;
        let service_cidrs = nets("--service-cidr", &self.service_cidrs)?;
        for service in &service_cidrs {
            let pods = node_subnets.iter().chain(&cluster_subnets);
            check_apart("--service-cidr", service, "the pod network", pods)?;
        }
        let least = least_mtu(&node_subnets);
        if let Some(mtu) = self.mtu.filter(|mtu| !(least..=65_535).contains(mtu)) {
            let problem = format!("expected {least} to 65535 bytes");
            return Err(bad("--mtu", &mtu.to_string(), problem));
        }
        let encap_ips = ovn::encap_ips(self.encap_ip.as_deref())?;
        if self.encap_port == Some(0) {
            return Err(bad(
                "--encap-port",
                "0",
                "expected a port of UDP, 1 to 65535",
            ));
        }
        let shares = self.gateway_mode == GatewayMode::Shared;
        if shares && self.profile == Profile::Routed {
            let problem = "it needs the NIC in a bridge: use --profile bridged or adopt";
            return Err(bad("--gateway-mode", "shared", problem));
        }
        let hints = Hints::read(self.profile)?;
        let mut data_bridges = ovn::data_bridges(&self.data_bridges, &self.bridge, self.mode)?;
        data_bridges.extend(extra::bridge(
            self.extra_interface,
            self.profile,
            &hints,
            &data_bridges,
        )?);
        let mut bridge_mappings = ovn::bridge_mappings(&self.bridge_mappings, &self.bridge)?;
        ovn::map(&data_bridges, &mut bridge_mappings)?;
        Ok(Settings {
            mode: self.mode,
            node_name: node_name(self.node_name)?,
            subnets_by_flag: !node_subnets.is_empty(),
            origins: BTreeMap::new(),
            node_subnets,
            peers: Vec::new(),
            doors: None,
            always_tunnel: self.always_tunnel,
            cluster_subnets,
            service_cidrs,
            interface: self.interface,
            mtu: self.mtu,
            encap_ips,
            encap_port: self.encap_port,
            bridge_mappings,
            data_bridges,
            ovn_options: ovn::options(&self.ovn_options)?,
            ovn_remote: self.southbound.ovn_remote,
            tls,
            tuning: Tuning {
                cpus: self.ovs_cpus.as_deref().map(cpus).transpose()?,
                no_mlockall: self.ovs_no_mlockall,
                handlers: threads("--ovs-handler-threads", self.ovs_handler_threads)?,
                revalidators: threads("--ovs-revalidator-threads", self.ovs_revalidator_threads)?,
                buckets: buckets(self.conntrack_buckets)?,
            },
            firewalld: self.firewalld,
            profile: self.profile,
            shares,
            answers_return: !shares,
            router_leads: false,
            hints,
            moves: self.moves,
            bridge: self.bridge,
        })
    }
}

/// Processors in the format of CPUAffinity=: numbers and ranges.
fn cpus(text: &str) -> Result<String, SettingsError> {
    let number = |text: &str| text.parse::<u16>().ok();
    let is_one = |part: &str| match part.split_once('-') {
        Some((first, last)) => number(first)
            .zip(number(last))
            .is_some_and(|(first, last)| first <= last),
        None => number(part).is_some(),
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if !parts.iter().all(|part| is_one(part)) {
        let problem = "expected numbers of processors and ranges of them, as in 0,2-3";
        return Err(bad("--ovs-cpus", text, problem));
    }
    Ok(parts.join(","))
}

fn threads(flag: &'static str, number: Option<u16>) -> Result<Option<u16>, SettingsError> {
    match number {
        Some(0 | 1025..) => {
            let number = number.unwrap_or_default().to_string();
            Err(bad(flag, &number, "expected 1 to 1024"))
        }
        number => Ok(number),
    }
}

/// The kernel rounds other numbers up (`nf_ct_alloc_hashtable`), and would differ for ever.
fn buckets(number: Option<u32>) -> Result<Option<u32>, SettingsError> {
    let is_valid = |it: &u32| it.is_power_of_two() && (8192..=1 << 22).contains(it);
    match number {
        Some(number) if !is_valid(&number) => {
            let problem = "expected a power of two, 8192 to 4194304, such as 16384";
            Err(bad("--conntrack-buckets", &number.to_string(), problem))
        }
        number => Ok(number),
    }
}

impl SettingsArgs {
    /// The three files, or none.
    fn tls(&self) -> Result<Option<TlsKeys>, SettingsError> {
        let tls = self.southbound.check()?;
        let files = tls.iter().flat_map(|keys| {
            [
                ("--ovn-private-key", &keys.private_key),
                ("--ovn-certificate", &keys.certificate),
                ("--ovn-ca-cert", &keys.ca_certificate),
            ]
        });
        for (flag, file) in files {
            // ovs-vswitchd and ovn-controller open it later, from another working directory.
            if !file.is_absolute() || !file.is_file() {
                let problem = "expected the absolute path of a file that is there \
                               (podwire-controller keys makes it)";
                return Err(bad(flag, &file.display().to_string(), problem));
            }
        }
        Ok(tls)
    }

    fn check_mode(&self, by_api: bool) -> Result<(), SettingsError> {
        let port = self.encap_port.map(|port| port.to_string());
        let only_ovn = [
            ("--ovn-remote", self.southbound.ovn_remote.as_ref()),
            ("--encap-ip", self.encap_ip.as_ref()),
            ("--encap-port", port.as_ref()),
            ("--bridge-mapping", self.bridge_mappings.first()),
            ("--ovn-option", self.ovn_options.first()),
        ];
        let bridged = match self.profile {
            Profile::Routed => None,
            Profile::Bridged => Some("bridged".to_owned()),
            Profile::Adopt => Some("adopt".to_owned()),
        };
        let only_ovn = only_ovn
            .into_iter()
            .chain([("--profile", bridged.as_ref())]);
        let only_ovn: Vec<_> = only_ovn.collect();
        match self.mode {
            Mode::Plain => match only_ovn
                .iter()
                .find_map(|(flag, value)| Some((flag, value.as_ref()?)))
            {
                Some((flag, value)) => {
                    let problem = "it is for OVN: omit it, or use --mode ovn";
                    Err(bad(flag, value, problem))
                }
                None if by_api => Ok(()),
                None => {
                    let problem = "the other nodes are known from the Kubernetes API: name it by \
                                   --kubeconfig, --k8s-apiserver or --in-cluster, or use --mode \
                                   ovn";
                    Err(bad("--mode", "plain", problem))
                }
            },
            Mode::Ovn if self.always_tunnel => {
                let problem = "OVN always uses tunnels: omit it, or use --mode plain";
                Err(bad("--always-tunnel", "true", problem))
            }
            Mode::Ovn => Ok(()),
        }
    }
}

impl PlaceArgs {
    pub(crate) fn check(self) -> Result<Places, SettingsError> {
        let problem = |error: podwire_ovs::client::RemoteError| error.to_string();
        Ok(Places {
            ovsdb: self
                .ovsdb
                .parse()
                .map_err(|error| bad("--ovsdb", &self.ovsdb, problem(error)))?,
            directory: self.run_dir.join(crate::DIRECTORY),
        })
    }
}

#[cfg(test)]
mod tests;
