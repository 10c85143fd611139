//! Flags and environment.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use podwire_ovs::client::{Remote, RemoteError, TlsKeys};

use crate::cluster::ObjectName;
use crate::ipam::ClusterSubnet;
use crate::run::Rules;
use crate::tools::{Format, Target};

/// Gives nodes their subnets, pods their addresses, and OVN its logical network
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "podwire-controller",
    version,
    max_term_width = 100,
    args_override_self = true
)]
pub struct Arguments {
    /// The settings.
    #[command(flatten)]
    pub config: Config,
    /// Print what a leader would change now, in the database and in Kubernetes, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// What to do instead of leading or standing by.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What people ask.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Who leads, what there is, and what is not as it should be
    Status {
        /// text, or json or yaml for programs
        #[arg(
            short,
            long,
            value_name = "FORMAT",
            default_value = "text",
            hide_possible_values = true
        )]
        output: Format,
    },
    /// What there is of an object, in words
    Explain {
        /// The object.
        #[command(subcommand)]
        object: Object,
    },
}

/// What can be explained.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Object {
    /// A pod: its addresses, its logical port, the services in front of it, what it reaches
    Pod {
        /// NAMESPACE/NAME
        #[arg(value_parser = pod_name)]
        pod: ObjectName,
        /// NAMESPACE/POD, or an address: whether the pod reaches it, by ovn-trace
        #[arg(long)]
        to: Option<Target>,
        /// A TCP port there, instead of ICMP echo
        #[arg(long, requires = "to")]
        port: Option<u16>,
    },
}

fn pod_name(text: &str) -> Result<ObjectName, String> {
    match text.parse() {
        Ok(Target::Pod(namespace, name)) => Ok((namespace, name)),
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

/// The settings.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// OVN's northbound database: unix:/path, tcp:HOST:PORT or ssl:HOST:PORT, with commas between a
    /// cluster's members
    #[arg(
        long,
        global = true,
        env = "OVN_NB_DB",
        default_value = "unix:/run/ovn/ovnnb_db.sock"
    )]
    pub nb_db: String,
    /// OVN's southbound database, where the chassis of nodes that are gone are removed; an empty
    /// one leaves them
    #[arg(
        long,
        global = true,
        env = "OVN_SB_DB",
        default_value = "unix:/run/ovn/ovnsb_db.sock"
    )]
    pub sb_db: String,
    /// This end's private key, for ssl: remotes
    #[arg(long, global = true, requires_all = ["nb_certificate", "nb_ca_certificate"])]
    pub nb_private_key: Option<PathBuf>,
    /// This end's certificate
    #[arg(long, global = true, requires = "nb_private_key")]
    pub nb_certificate: Option<PathBuf>,
    /// The certificate of the CA that has signed the databases'
    #[arg(long, global = true, requires = "nb_private_key")]
    pub nb_ca_certificate: Option<PathBuf>,
    /// Networks that nodes get their subnets of, each with the length of a node's prefix; one or
    /// more of each family
    #[arg(
        long,
        global = true,
        value_delimiter = ',',
        default_value = "10.244.0.0/16/24"
    )]
    pub cluster_subnets: Vec<ClusterSubnet>,
    /// Nodes' subnets are their spec.podCIDRs, which kube-controller-manager gives them, instead
    #[arg(long, global = true, conflicts_with = "cluster_subnets")]
    pub use_pod_cidrs: bool,
    /// The API server's URL; without one, the kubeconfig that KUBECONFIG names, or the pod's own
    /// service account
    #[arg(long, global = true)]
    pub k8s_apiserver: Option<String>,
    /// The namespace of the Lease podwire-controller
    #[arg(
        long,
        global = true,
        default_value = "kube-system",
        env = "POD_NAMESPACE"
    )]
    pub lease_namespace: String,
    /// Who this controller is among its peers; without it and POD_NAME, the host's name and a
    /// number of its own
    #[arg(long, global = true, env = "POD_NAME", default_value_t = own_identity(),
        hide_default_value = true)]
    pub identity: String,
    /// Take over rows of the northbound database that have the right names and were made by
    /// somebody who is gone
    #[arg(long, global = true)]
    pub adopt: bool,
    /// Serve metrics and /healthz there, such as 0.0.0.0:9413
    #[arg(long, global = true, env = "PODWIRE_METRICS_ADDRESS")]
    pub metrics_address: Option<SocketAddr>,
    /// What is logged: a level, or filters as in info,podwire_ovs=debug
    #[arg(long, global = true, env = "PODWIRE_LOG", default_value = "info")]
    pub log: String,
}

/// A setting can't be used.
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
}

/// Another one for each process, as two that share an identity would share the lease.
fn own_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let number = RandomState::new().build_hasher().finish();
    format!("{}_{number:016x}", host.trim())
}

impl Config {
    pub(crate) fn remotes(
        &self,
        flag: &'static str,
        text: &str,
    ) -> Result<Vec<Remote>, SettingError> {
        Remote::parse_list(text).map_err(|source| SettingError::Remote { flag, source })
    }

    pub(crate) fn rules(&self) -> Result<Rules, SettingError> {
        if let Some((one, other)) = ClusterSubnet::overlapping(&self.cluster_subnets) {
            return Err(SettingError::Overlap { one, other });
        }
        Ok(Rules {
            networks: self.cluster_subnets.clone(),
            use_pod_cidrs: self.use_pod_cidrs,
            adopt: self.adopt,
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
    #[test]
    fn each_process_has_an_identity_of_its_own() {
        assert_ne!(super::own_identity(), super::own_identity());
    }
}
