//! What the command line and the environment say, checked before anything is looked at.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;
use podwire_ovs::client::Remote;

use crate::cluster::Access;

/// The flags that say what the node is to be.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingsArgs {
    /// This node's name in Kubernetes [default: the host name, in lower case]
    #[arg(long, value_name = "NAME", env = "PODWIRE_NODE_NAME")]
    node_name: Option<String>,
    /// The node's part of the pod network, one for each family; may be repeated, or have commas
    #[arg(
        long = "node-subnet",
        value_name = "CIDR",
        env = "PODWIRE_NODE_SUBNETS",
        value_delimiter = ' '
    )]
    node_subnets: Vec<String>,
    /// The pod network of all nodes, reached by the management port; may be repeated
    #[arg(
        long = "cluster-subnet",
        value_name = "CIDR",
        env = "PODWIRE_CLUSTER_SUBNETS",
        value_delimiter = ' '
    )]
    cluster_subnets: Vec<String>,
    /// Addresses of services, reached by the management port; may be repeated
    #[arg(
        long = "service-cidr",
        value_name = "CIDR",
        env = "PODWIRE_SERVICE_CIDRS",
        value_delimiter = ' '
    )]
    service_cidrs: Vec<String>,
    /// Link to the other nodes and the outside [default: the default route's]
    #[arg(long, value_name = "LINK", env = "PODWIRE_INTERFACE")]
    interface: Option<String>,
    /// MTU of pods and of the management port, in bytes [default: the uplink's, less the tunnel's
    /// headers]
    #[arg(long, value_name = "BYTES", env = "PODWIRE_MTU")]
    mtu: Option<u32>,
    /// Address at which this node's tunnels end [default: the uplink's first]
    #[arg(long, value_name = "IP", env = "PODWIRE_ENCAP_IP")]
    encap_ip: Option<String>,
    /// The southbound database, as in ssl:192.0.2.1:6642, several with commas between them [default:
    /// what Open vSwitch's external_ids say]
    #[arg(long, value_name = "REMOTE", env = "PODWIRE_OVN_REMOTE")]
    ovn_remote: Option<String>,
    /// The integration bridge
    #[arg(
        long,
        value_name = "NAME",
        default_value = "br-int",
        env = "PODWIRE_BRIDGE"
    )]
    bridge: String,
}

/// Where things are on this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Open vSwitch's database
    #[arg(
        long,
        value_name = "REMOTE",
        default_value = "unix:/run/openvswitch/db.sock",
        env = "PODWIRE_OVSDB"
    )]
    ovsdb: String,
    /// Directory whose part `node` holds the journal; on tmpfs, as the journal is of what a reboot
    /// undoes
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/podwire",
        env = "PODWIRE_RUN_DIR"
    )]
    run_dir: PathBuf,
}

/// The flags that say where the Kubernetes API is.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApiArgs {
    /// The Kubernetes API server, by this URL: the node's subnets come from its annotation, services
    /// are made reachable on the host, and the control plane is told of this node
    #[arg(long, value_name = "URL", env = "PODWIRE_K8S_APISERVER")]
    k8s_apiserver: Option<String>,
    /// The same, as this kubeconfig says
    #[arg(
        long,
        value_name = "FILE",
        env = "PODWIRE_KUBECONFIG",
        conflicts_with = "k8s_apiserver"
    )]
    kubeconfig: Option<PathBuf>,
    /// The same, by the service account of this pod
    #[arg(long, conflicts_with_all = ["k8s_apiserver", "kubeconfig"])]
    in_cluster: bool,
}

impl ApiArgs {
    pub(crate) fn access(self) -> Option<Access> {
        let by_url = self.k8s_apiserver.map(Access::Server);
        let by_file = || self.kubeconfig.map(Access::Kubeconfig);
        by_url
            .or_else(by_file)
            .or(self.in_cluster.then_some(Access::InCluster))
    }
}

/// What the node is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) node_name: String,
    /// At most one of each family. Empty while an annotation has yet to tell them.
    pub(crate) node_subnets: Vec<IpNet>,
    pub(crate) cluster_subnets: Vec<IpNet>,
    pub(crate) service_cidrs: Vec<IpNet>,
    pub(crate) interface: Option<String>,
    pub(crate) mtu: Option<u32>,
    pub(crate) encap_ip: Option<IpAddr>,
    pub(crate) ovn_remote: Option<String>,
    pub(crate) bridge: String,
}

/// Where things are.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) ovsdb: Remote,
    /// Of the journal.
    pub(crate) directory: PathBuf,
}

/// A flag whose value can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub(crate) struct SettingsError {
    flag: &'static str,
    value: String,
    problem: String,
}

fn bad(flag: &'static str, value: &str, problem: impl Into<String>) -> SettingsError {
    SettingsError {
        flag,
        value: value.to_owned(),
        problem: problem.into(),
    }
}

impl SettingsArgs {
    /// Checks the flags, each by itself and against the others. With `by_annotation` the node's
    /// subnets may come later.
    ///
    /// # Errors
    /// Names the flag, its value and what would do.
    pub(crate) fn check(self, by_annotation: bool) -> Result<Settings, SettingsError> {
        let node_subnets = nets("--node-subnet", &self.node_subnets)?;
        if node_subnets.is_empty() && !by_annotation {
            let problem = "name the node's part of the pod network, as in 10.244.1.0/24";
            return Err(bad("--node-subnet", "is missing", problem));
        }
        let cluster_subnets = nets("--cluster-subnet", &self.cluster_subnets)?;
        check_subnets("--node-subnet", &node_subnets, &cluster_subnets)?;
        let service_cidrs = nets("--service-cidr", &self.service_cidrs)?;
        for service in &service_cidrs {
            let mut pods = node_subnets.iter().chain(&cluster_subnets);
            if let Some(pods) = pods.find(|net| net.contains(service) || service.contains(*net)) {
                let problem = format!("it overlaps the pod network {pods}");
                return Err(bad("--service-cidr", &service.to_string(), problem));
            }
        }
        let least = match node_subnets.iter().any(|net| net.addr().is_ipv6()) {
            true => 1280,
            false => 576,
        };
        if let Some(mtu) = self.mtu.filter(|mtu| !(least..=65_535).contains(mtu)) {
            let problem = format!("expected {least} to 65535 bytes");
            return Err(bad("--mtu", &mtu.to_string(), problem));
        }
        let encap_ip = self.encap_ip.as_deref().map(|text| {
            let problem = "expected an IP address of this machine, as in 192.0.2.11";
            text.parse().map_err(|_| bad("--encap-ip", text, problem))
        });
        if let Some(remote) = &self.ovn_remote {
            Remote::parse_list(remote)
                .map_err(|error| bad("--ovn-remote", remote, error.to_string()))?;
        }
        Ok(Settings {
            node_name: node_name(self.node_name)?,
            node_subnets,
            cluster_subnets,
            service_cidrs,
            interface: self.interface,
            mtu: self.mtu,
            encap_ip: encap_ip.transpose()?,
            ovn_remote: self.ovn_remote,
            bridge: self.bridge,
        })
    }
}

/// Checks a node's subnets, by themselves and against the cluster's.
fn check_subnets(
    flag: &'static str,
    subnets: &[IpNet],
    cluster_subnets: &[IpNet],
) -> Result<(), SettingsError> {
    for (at, subnet) in subnets.iter().enumerate() {
        let same = |other: &&IpNet| other.addr().is_ipv4() == subnet.addr().is_ipv4();
        if let Some(other) = subnets[..at].iter().find(same) {
            let problem = format!("{other} is of the same family, and there may be one of each");
            return Err(bad(flag, &subnet.to_string(), problem));
        }
        // Network, gateway, the host's own, one pod, broadcast.
        if subnet.max_prefix_len() - subnet.prefix_len() < 3 {
            let most = subnet.max_prefix_len() - 3;
            let problem = format!("too small for a node's pods: /{most} at most");
            return Err(bad(flag, &subnet.to_string(), problem));
        }
    }
    for subnet in subnets {
        let mut of_family = cluster_subnets
            .iter()
            .filter(|net| net.addr().is_ipv4() == subnet.addr().is_ipv4())
            .peekable();
        if of_family.peek().is_some() && !of_family.any(|net| net.contains(subnet)) {
            let problem = "it is in none of --cluster-subnet";
            return Err(bad(flag, &subnet.to_string(), problem));
        }
    }
    Ok(())
}

impl Settings {
    /// Takes the node's subnets from the annotation that the control plane gives them by: by
    /// network, one or several.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn take_subnets(&mut self, annotation: &str) -> Result<(), SettingsError> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Subnets {
            One(String),
            Several(Vec<String>),
        }
        let flag = crate::announce::NODE_SUBNETS;
        let parsed: Result<BTreeMap<String, Subnets>, _> = serde_json::from_str(annotation);
        let default = parsed
            .ok()
            .and_then(|mut networks| networks.remove("default"));
        let texts = match default {
            Some(Subnets::One(text)) => vec![text],
            Some(Subnets::Several(texts)) if !texts.is_empty() => texts,
            _ => {
                let problem =
                    r#"expected a network's subnets, as in {"default":["10.244.1.0/24"]}"#;
                return Err(bad(flag, annotation, problem));
            }
        };
        let subnets = nets(flag, &texts)?;
        check_subnets(flag, &subnets, &self.cluster_subnets)?;
        self.node_subnets = subnets;
        Ok(())
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
            directory: self.run_dir.join("node"),
        })
    }
}

/// Where metrics may be served: they are for this machine.
pub(crate) fn loopback(text: &str) -> Result<SocketAddr, SettingsError> {
    let address = text.parse().ok();
    address
        .filter(|address: &SocketAddr| address.ip().is_loopback())
        .ok_or_else(|| {
            let problem = "expected a loopback address and a port, as in 127.0.0.1:9477";
            bad("--metrics-address", text, problem)
        })
}

fn nets(flag: &'static str, texts: &[String]) -> Result<Vec<IpNet>, SettingsError> {
    // Kubernetes' own lists have commas.
    let texts = texts.iter().flat_map(|text| text.split(',').map(str::trim));
    let nets = texts.filter(|text| !text.is_empty()).map(|text| {
        let net: IpNet = text
            .parse()
            .map_err(|_| bad(flag, text, "expected a network, as in 10.244.0.0/16"))?;
        if net.addr() != net.network() {
            let problem = format!("its host part is not zero: is {} meant?", net.trunc());
            return Err(bad(flag, text, problem));
        }
        Ok(net)
    });
    nets.collect()
}

/// kubelet's own default: the host name in lower case.
fn node_name(given: Option<String>) -> Result<String, SettingsError> {
    let name = given.unwrap_or_else(|| {
        let host = nix::unistd::gethostname().ok();
        let host = host.and_then(|name| name.into_string().ok());
        host.unwrap_or_default().trim().to_lowercase()
    });
    let is_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(is_name) {
        let problem = "expected a Kubernetes name: a-z, 0-9, '-' and '.'";
        return Err(bad("--node-name", &name, problem));
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
