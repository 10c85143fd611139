//! What the command line and the environment say, checked before anything is looked at.

mod follow;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_apiserver::{Access, Token};
use podwire_ovs::client::{Remote, TlsKeys};

/// The flags that say what the node is to be.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingsArgs {
    /// ovn: a part of an OVN network; plain: without OVN and controller, the nodes' podCIDRs reach
    /// each other by routes and Open vSwitch's tunnels
    #[arg(
        long,
        value_name = "MODE",
        default_value = "ovn",
        env = "PODWIRE_MODE",
        hide_possible_values = true
    )]
    mode: Mode,
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
    /// The southbound database, as in ssl:192.0.2.1:6642, several with commas between them
    /// [default: what Open vSwitch's external_ids say]
    #[arg(long, value_name = "REMOTE", env = "PODWIRE_OVN_REMOTE")]
    ovn_remote: Option<String>,
    /// This node's private key for ssl: remotes, with its certificate and the CA's
    #[arg(long, value_name = "FILE", env = "PODWIRE_OVN_PRIVATE_KEY")]
    ovn_private_key: Option<PathBuf>,
    /// The certificate that goes with it
    #[arg(long, value_name = "FILE", env = "PODWIRE_OVN_CERTIFICATE")]
    ovn_certificate: Option<PathBuf>,
    /// The certificate of the southbound database's CA
    #[arg(long, value_name = "FILE", env = "PODWIRE_OVN_CA_CERT")]
    ovn_ca_cert: Option<PathBuf>,
    /// Plain mode: reach every other node by a tunnel, for a network that drops pods' packets
    #[arg(long, env = "PODWIRE_ALWAYS_TUNNEL")]
    always_tunnel: bool,
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
    /// The Kubernetes API server, by this URL: the node's subnets come from its annotation,
    /// services are made reachable on the host, and the control plane is told of this node
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
        let by_url = self.k8s_apiserver.map(|url| Access::Server {
            url,
            ca: None,
            token: Token::None,
        });
        let by_file = || self.kubeconfig.map(Access::Kubeconfig);
        by_url
            .or_else(by_file)
            .or(self.in_cluster.then_some(Access::InCluster))
    }
}

/// Who runs the pod network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// ovn-controller, and a controller of the cluster.
    Ovn,
    /// Each node by itself.
    Plain,
}

/// Another node, as plain mode reaches its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// At least one; at most one of each family.
    pub(crate) subnets: Vec<IpNet>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// What the node is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) node_name: String,
    /// At most one of each family. Empty while an annotation has yet to tell them.
    pub(crate) node_subnets: Vec<IpNet>,
    /// Whether flags name them.
    pub(crate) subnets_by_flag: bool,
    /// In plain mode.
    pub(crate) peers: Vec<Peer>,
    /// In plain mode: whether peers on the same network are reached by tunnels too.
    pub(crate) always_tunnel: bool,
    pub(crate) cluster_subnets: Vec<IpNet>,
    pub(crate) service_cidrs: Vec<IpNet>,
    pub(crate) interface: Option<String>,
    pub(crate) mtu: Option<u32>,
    pub(crate) encap_ip: Option<IpAddr>,
    pub(crate) ovn_remote: Option<String>,
    /// The files for ssl: remotes.
    pub(crate) tls: Option<TlsKeys>,
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
    /// Checks the flags, each by itself and against the others. With `by_api` the node's subnets
    /// may come later.
    ///
    /// # Errors
    /// Names the flag, its value and what would do.
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
            mode: self.mode,
            node_name: node_name(self.node_name)?,
            subnets_by_flag: !node_subnets.is_empty(),
            node_subnets,
            peers: Vec::new(),
            always_tunnel: self.always_tunnel,
            cluster_subnets,
            service_cidrs,
            interface: self.interface,
            mtu: self.mtu,
            encap_ip: encap_ip.transpose()?,
            ovn_remote: self.ovn_remote,
            tls,
            bridge: self.bridge,
        })
    }
}

impl SettingsArgs {
    /// The three files, which are there, or none.
    fn tls(&self) -> Result<Option<TlsKeys>, SettingsError> {
        let files = [
            ("--ovn-private-key", &self.ovn_private_key),
            ("--ovn-certificate", &self.ovn_certificate),
            ("--ovn-ca-cert", &self.ovn_ca_cert),
        ];
        for (flag, file) in &files {
            match file {
                None if files.iter().any(|(_, file)| file.is_some()) => {
                    return Err(bad(flag, "is missing", "the three files go together"));
                }
                // ovs-vswitchd and ovn-controller open it later, from their own directory.
                Some(file) if !file.is_absolute() || !file.is_file() => {
                    let problem = "expected the absolute path of a file that is there";
                    return Err(bad(flag, &file.display().to_string(), problem));
                }
                _ => {}
            }
        }
        Ok(match files.map(|(_, file)| file.clone()) {
            [Some(private_key), Some(certificate), Some(ca_certificate)] => Some(TlsKeys {
                private_key,
                certificate,
                ca_certificate,
            }),
            _ => None,
        })
    }

    fn check_mode(&self, by_api: bool) -> Result<(), SettingsError> {
        let only_ovn = [
            ("--ovn-remote", &self.ovn_remote),
            ("--encap-ip", &self.encap_ip),
        ];
        match self.mode {
            Mode::Plain if !by_api => {
                let problem = "the other nodes are known from the Kubernetes API: name it by \
                               --kubeconfig, --k8s-apiserver or --in-cluster";
                Err(bad("--mode", "plain", problem))
            }
            Mode::Plain => match only_ovn
                .iter()
                .find_map(|(flag, it)| Some((flag, (*it).as_ref()?)))
            {
                Some((flag, value)) => {
                    let problem = "it is of OVN: leave it out, or say --mode ovn";
                    Err(bad(flag, value, problem))
                }
                None => Ok(()),
            },
            Mode::Ovn if self.always_tunnel => {
                let problem = "OVN has nothing but tunnels: leave it out, or say --mode plain";
                Err(bad("--always-tunnel", "true", problem))
            }
            Mode::Ovn => Ok(()),
        }
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
pub(crate) fn node_name(given: Option<String>) -> Result<String, SettingsError> {
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
