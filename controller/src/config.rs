//! Settings, from flags and environment.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _};
use ipnet::IpNet;
use podwire_cluster::address::overlap;
use podwire_daemon::lockdown::{Calls, Capability, Privileges, Seccomp, is_anothers};
use podwire_ovs::client::{ClientConfig, Remote, RemoteError, TlsKeys};
use podwire_ovs::nb;
use podwire_ovs::replica::TableSpec;

use crate::cluster::ObjectName;
use crate::ipam::{ClusterSubnet, JOIN};

/// The settings.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// OVN's northbound database: unix:/path, tcp:HOST:PORT or ssl:HOST:PORT; separate the members
    /// of a cluster by commas
    #[arg(
        long,
        global = true,
        env = "OVN_NB_DB",
        default_value = "unix:/run/ovn/ovnnb_db.sock"
    )]
    pub nb_db: String,
    /// OVN's southbound database, from which the controller removes the chassis of deleted nodes;
    /// if empty, it removes none
    #[arg(
        long,
        global = true,
        env = "OVN_SB_DB",
        default_value = "unix:/run/ovn/ovnsb_db.sock"
    )]
    pub sb_db: String,
    /// The controller's private key, for ssl: remotes
    #[arg(
        long,
        global = true,
        env = "PODWIRE_NB_PRIVATE_KEY",
        requires_all = ["nb_certificate", "nb_ca_certificate"]
    )]
    pub nb_private_key: Option<PathBuf>,
    /// The controller's certificate
    #[arg(
        long,
        global = true,
        env = "PODWIRE_NB_CERTIFICATE",
        requires = "nb_private_key"
    )]
    pub nb_certificate: Option<PathBuf>,
    /// Certificate of the CA that signed the databases' certificates
    #[arg(
        long,
        global = true,
        env = "PODWIRE_NB_CA_CERTIFICATE",
        requires = "nb_private_key"
    )]
    pub nb_ca_certificate: Option<PathBuf>,
    /// Networks for nodes' subnets, each with the prefix length of a node's subnet; one or more of
    /// each family [default: 10.244.0.0/16/24]
    #[arg(
        long,
        global = true,
        env = "PODWIRE_CLUSTER_SUBNETS",
        value_delimiter = ','
    )]
    pub cluster_subnets: Vec<ClusterSubnet>,
    /// Use nodes' spec.podCIDRs, which kube-controller-manager allocates, as their subnets, instead
    /// of --cluster-subnets
    #[arg(long, global = true, env = "PODWIRE_USE_POD_CIDRS")]
    pub use_pod_cidrs: bool,
    /// How many connections a pod can have in its node's connection tracking, from OVN 24.09 on; 0
    /// for any number
    #[arg(
        long,
        global = true,
        env = "PODWIRE_POD_CONNECTIONS",
        default_value_t = 131_072
    )]
    pub pod_connections: u32,
    /// The service of the cluster's DNS, NAMESPACE/NAME, which pods with a primary network reach on
    /// the default one
    #[arg(
        long,
        global = true,
        env = "PODWIRE_DNS_SERVICE",
        value_name = "NAMESPACE/NAME",
        default_value = "kube-system/kube-dns",
        value_parser = object_name
    )]
    pub dns_service: ObjectName,
    /// How packets between pods and the outside leave a node: routed, or local, by its host;
    /// shared, by a gateway router of OVN's with the node's address, on each node that announces
    /// one
    #[arg(
        long,
        global = true,
        env = "PODWIRE_GATEWAY_MODE",
        value_name = "MODE",
        default_value = "routed",
        value_parser = gateway_mode
    )]
    pub gateway_mode: GatewayMode,
    /// The API server's URL [default: the kubeconfig that KUBECONFIG names, or the pod's service
    /// account]
    #[arg(long, global = true, env = "PODWIRE_K8S_APISERVER")]
    pub k8s_apiserver: Option<String>,
    /// The namespace of the Lease podwire-controller
    #[arg(
        long,
        global = true,
        default_value = "podwire-system",
        env = "POD_NAMESPACE"
    )]
    pub lease_namespace: String,
    /// This controller's identity in the leader election [default: the host name and a random
    /// number]
    #[arg(long, global = true, env = "POD_NAME", default_value_t = own_identity(),
        hide_default_value = true)]
    pub identity: String,
    /// Take over others' rows of the northbound database that have the name of a wanted row
    #[arg(long, global = true, env = "PODWIRE_ADOPT")]
    pub adopt: bool,
    /// Address for /metrics and /healthz.
    #[arg(
        long,
        global = true,
        env = "PODWIRE_METRICS_ADDRESS",
        help = "Address for /metrics and /healthz, such as [::]:9413, which is for IPv4 too"
    )]
    pub metrics_address: Option<SocketAddr>,
    /// What to log: a level, or filters such as info,podwire_ovs=debug
    #[arg(long, global = true, env = "PODWIRE_LOG", default_value = "info")]
    pub log: String,
    /// What to do with system calls that a controller does not make: enforce, log or off
    #[arg(
        long,
        global = true,
        env = "PODWIRE_SECCOMP",
        value_name = "ACTION",
        default_value = "enforce"
    )]
    pub seccomp: Seccomp,
    /// How long a freed address rests before another pod gets it, and the groups of a namespace
    /// that is gone stay: for the tests, no flag
    #[arg(skip = REST)]
    pub rest: Duration,
}

/// How packets between pods and the outside leave a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayMode {
    /// By its host.
    Routed,
    /// By a gateway router of OVN's, on each node that announces one.
    Shared,
}

/// NAMESPACE/NAME.
///
/// # Errors
/// It is something else.
pub fn object_name(text: &str) -> Result<ObjectName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((namespace.into(), name.into()))
        }
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

fn gateway_mode(text: &str) -> Result<GatewayMode, String> {
    match text {
        // ovn-kubernetes' name for it.
        "routed" | "local" => Ok(GatewayMode::Routed),
        "shared" => Ok(GatewayMode::Shared),
        _ => Err("expected routed (or local, which is the same) or shared".to_owned()),
    }
}

/// Packets to a pod that is gone arrive for some seconds; ovn-northd learns of a namespace that is
/// gone within some.
const REST: Duration = Duration::from_secs(30);

/// The settings that affect the computed rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) networks: Vec<ClusterSubnet>,
    /// Nodes' subnets are their `spec.podCIDRs`.
    pub(crate) use_pod_cidrs: bool,
    pub(crate) adopt: bool,
    /// See [`Config::pod_connections`].
    pub(crate) pod_connections: u32,
    /// See [`Config::dns_service`].
    pub(crate) dns_service: ObjectName,
    /// Whether nodes that announce a gateway have gateway routers.
    pub(crate) has_gateways: bool,
    /// See [`Config::rest`].
    pub(crate) rest: Duration,
}

/// A setting is invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// A database's address.
    #[error("{flag}: {source}")]
    Remote {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        source: RemoteError,
    },
    /// Two networks.
    #[error("--cluster-subnets: {one} and {other} overlap; nodes would get the same addresses")]
    Overlap {
        /// The first.
        one: IpNet,
        /// The second.
        other: IpNet,
    },
    /// A network of pods, and that of gateway routers.
    #[error(
        "--cluster-subnets: {one} and {join}, the network of gateway routers, overlap: name \
         another network, or use --gateway-mode routed"
    )]
    Join {
        /// That of pods.
        one: IpNet,
        /// That of gateway routers.
        join: IpNet,
    },
    /// Nodes' subnets from two sources.
    #[error(
        "--cluster-subnets and --use-pod-cidrs exclude each other; one may be the variable \
         PODWIRE_CLUSTER_SUBNETS or PODWIRE_USE_POD_CIDRS: remove one of them"
    )]
    TwoSources,
}

/// A different one for each process: two with the same identity would share the lease.
fn own_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let number = RandomState::new().build_hasher().finish();
    format!("{}_{number:016x}", host.trim())
}

/// The addresses of the servers, each with its setting and where that comes from.
pub fn addresses(given: &ArgMatches) -> String {
    let command = Config::augment_args(clap::Command::new("podwire-controller"));
    let shown = ["nb_db", "sb_db", "k8s_apiserver"].map(|id| {
        let setting = command.get_arguments().find(|it| it.get_id() == id);
        let flag = setting.and_then(Arg::get_long).unwrap_or_default();
        let variable = setting.and_then(Arg::get_env).unwrap_or_default();
        let value = given.get_one::<String>(id).map_or("", String::as_str);
        match given.value_source(id) {
            Some(ValueSource::EnvVariable) => {
                format!("--{flag} {value} (${})", variable.to_string_lossy())
            }
            Some(ValueSource::CommandLine) => format!("--{flag} {value}"),
            Some(_) => format!("--{flag} {value} (default)"),
            None => match std::env::var("KUBECONFIG") {
                Ok(path) if !path.is_empty() => format!("kubeconfig {path} ($KUBECONFIG)"),
                _ => "kubeconfig ~/.kube/config or the pod's service account".to_owned(),
            },
        }
    });
    shown.join(", ")
}

/// How long a database's server may be silent until it is probed, and again until the connection is
/// given up. While ovn-northd writes a large cluster's rows, ovsdb-server answers nothing for
/// longer than OVSDB's usual 5 s, and to connect anew would only be more work for it. Other members
/// of a cluster elect another leader meanwhile; then that one is wanted sooner.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_WITH_MEMBERS: Duration = Duration::from_secs(15);

impl Config {
    /// For a client of the northbound or the southbound database, with these tables.
    pub(crate) fn database(
        &self,
        name: &'static str,
        tables: Vec<TableSpec>,
    ) -> Result<ClientConfig, SettingError> {
        let remotes = match name {
            nb::DATABASE => self.remotes("--nb-db", &self.nb_db),
            _ => self.remotes("--sb-db", &self.sb_db),
        }?;
        let probe = match remotes.len() {
            1 => PATIENCE,
            _ => PATIENCE_WITH_MEMBERS,
        };
        Ok(ClientConfig {
            leader_only: true,
            tls: self.tls(),
            probe,
            sync_probe: PATIENCE,
            ..ClientConfig::new(remotes, name, tables)
        })
    }

    fn remotes(&self, flag: &'static str, text: &str) -> Result<Vec<Remote>, SettingError> {
        Remote::parse_list(text).map_err(|source| SettingError::Remote { flag, source })
    }

    pub(crate) fn rules(&self) -> Result<Rules, SettingError> {
        if let Some((one, other)) = ClusterSubnet::overlapping(&self.cluster_subnets) {
            return Err(SettingError::Overlap { one, other });
        }
        let networks = match (self.use_pod_cidrs, self.cluster_subnets.is_empty()) {
            (true, false) => return Err(SettingError::TwoSources),
            (false, true) => vec![ClusterSubnet::USUAL],
            _ => self.cluster_subnets.clone(),
        };
        let has_gateways = self.gateway_mode == GatewayMode::Shared;
        let joins = JOIN.into_iter().filter_map(|net| net.parse::<IpNet>().ok());
        for join in joins.filter(|_| has_gateways) {
            let mut nets = networks.iter().map(ClusterSubnet::network);
            if let Some(one) = nets.find(|net| overlap(net, &join)) {
                return Err(SettingError::Join { one, join });
            }
        }
        Ok(Rules {
            networks,
            use_pod_cidrs: self.use_pod_cidrs,
            adopt: self.adopt,
            pod_connections: self.pod_connections,
            dns_service: self.dns_service.clone(),
            has_gateways,
            rest: self.rest,
        })
    }

    /// The privileges that a controller keeps.
    ///
    /// # Errors
    /// A database's address is invalid.
    pub fn privileges(&self) -> Result<Privileges, SettingError> {
        let mut databases = self.remotes("--nb-db", &self.nb_db)?;
        if !self.sb_db.is_empty() {
            databases.extend(self.remotes("--sb-db", &self.sb_db)?);
        }
        let is_anothers = databases.iter().any(|remote| match remote {
            Remote::Unix(socket) => is_anothers(socket),
            Remote::Tcp(_) | Remote::Ssl(_) => false,
        });
        Ok(Privileges {
            // OVN runs as another user.
            capabilities: match is_anothers {
                true => vec![Capability::CAP_DAC_OVERRIDE],
                false => Vec::new(),
            },
            calls: Calls::Common,
        })
    }

    pub(crate) fn tls(&self) -> Option<TlsKeys> {
        Some(TlsKeys {
            private_key: self.nb_private_key.clone()?,
            certificate: self.nb_certificate.clone()?,
            ca_certificate: self.nb_ca_certificate.clone()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    /// In a pod, settings are variables: only they reach a command that is executed there too.
    #[test]
    fn every_setting_has_a_variable() {
        let command = super::Config::augment_args(clap::Command::new("podwire-controller"));
        let without = command
            .get_arguments()
            .filter(|argument| argument.get_env().is_none());
        assert_eq!(without.collect::<Vec<_>>(), Vec::<&clap::Arg>::new());
    }

    #[test]
    fn each_process_has_an_identity_of_its_own() {
        assert_ne!(super::own_identity(), super::own_identity());
    }
}
