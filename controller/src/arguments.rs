//! The command line.

use std::path::PathBuf;

use podwire_daemon::exit::EXIT_CODES;
use podwire_daemon::output::{Format, OutputArgs};

use crate::cluster::ObjectName;
use crate::cluster::network::Topology;
use crate::config::{Config, object_name};
use crate::key::{Key, Of};
use crate::keys::KeysArgs;
use crate::tools::Target;
use crate::tools::network::ShapeArgs;

/// Assigns subnets to nodes and addresses to pods, and writes OVN's logical network
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "podwire-controller",
    version,
    max_term_width = 100,
    args_override_self = true,
    after_help = EXIT_CODES
)]
pub struct Arguments {
    /// The settings.
    #[command(flatten, next_help_heading = "Settings")]
    pub config: Config,
    /// Print what a leader would change now, in the database and in Kubernetes, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The format of what --dry-run prints: text, or json or yaml for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        requires = "dry_run"
    )]
    pub output: Format,
    /// A command to run instead of leading or standing by.
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Arguments {
    /// Whether to lead or stand by, until stopped.
    pub fn leads(&self) -> bool {
        self.command.is_none() && !self.dry_run
    }
}

/// The commands.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Show the leader, the number of objects, pending changes and problems
    Status {
        /// Also ask OVN how long a change takes now, by NB_Global's nb_cfg: until ovn-northd has
        /// it, and until every chassis has its flows, for at most so many seconds. That costs each
        /// chassis a write to the southbound database, and OVN before 23.09 a whole run of
        /// ovn-northd
        #[arg(
            long,
            value_name = "SECONDS",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "60",
            value_parser = clap::value_parser!(u64).range(1..=3600)
        )]
        nb_cfg: Option<u64>,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Explain the state of an object
    Explain {
        /// The object.
        #[command(subcommand)]
        object: Object,
    },
    /// Show a network policy: the pods that it selects, the peers and ports of its rules, and
    /// whether the northbound database has its rows; or what policies would change, before they
    /// are applied
    Policy {
        /// NAMESPACE/NAME, or KIND/NAME for a policy of the whole cluster:
        /// ClusterNetworkPolicy/NAME, AdminNetworkPolicy/NAME or BaselineAdminNetworkPolicy/NAME
        #[arg(value_parser = policy_key, required_unless_present = "dry_run")]
        #[arg(conflicts_with = "dry_run")]
        policy: Option<Key>,
        /// Show which connections between living pods, nodes and the outside the policies of the
        /// files would cut or open, and write nothing. Exit code 0: none would be cut; 1: some
        /// would
        #[arg(long, requires = "files")]
        dry_run: bool,
        /// YAML or JSON with policies of namespaces or of the whole cluster, several documents or a
        /// List; - for standard input
        #[arg(
            short = 'f',
            long = "filename",
            value_name = "FILE",
            requires = "dry_run"
        )]
        files: Vec<PathBuf>,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Show, make, change and remove networks beside the default one, by their
    /// NetworkAttachmentDefinitions
    Network {
        /// Without a cluster: a network's rows are shown, made, changed and removed in this
        /// northbound database itself. Networks are named by their own NAME then
        #[arg(long, value_name = "REMOTE", global = true)]
        nb: Option<String>,
        /// What to do.
        #[command(subcommand)]
        verb: NetworkVerb,
    },
    /// Show the state of podwire on all nodes, with kubectl's rights: the same as kubectl podwire
    #[command(disable_help_flag = true)]
    Cluster {
        /// Taken by [`crate::kubectl`].
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Make or renew the keys for TLS between OVN's databases, this controller and the nodes
    Keys(KeysArgs),
}

/// What can be done with networks.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum NetworkVerb {
    /// Show all networks, with what is wrong
    List(OutputArgs),
    /// Show a network: its shape, definitions, and the pods on it with their ports
    Get {
        /// The network's name
        network: String,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Make a definition; refused if its network is known in another shape
    Create {
        /// The definition: NAMESPACE/NAME; with --nb, the network
        definition: String,
        /// layer2: one switch over all nodes; layer3: one on each node, and a router between them;
        /// localnet: one on a physical network
        #[arg(long, default_value = "layer2")]
        topology: Topology,
        /// The network [default: NAMESPACE-NAME]
        #[arg(long, value_name = "NAME")]
        network: Option<String>,
        /// What it is.
        #[command(flatten)]
        shape: ShapeArgs,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Change a definition; refused, with the pods' names, for what can't change under pods
    Update {
        /// The definition: NAMESPACE/NAME; with --nb, the network
        definition: String,
        /// What changes.
        #[command(flatten)]
        shape: ShapeArgs,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Remove a definition; refused, with their names, while pods ask for it
    Delete {
        /// The definition: NAMESPACE/NAME; with --nb, the network
        definition: String,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Print definitions of networks of other controllers, for kubectl apply: onapNetwork, and
    /// OVN4NFV's Network and ProviderNetwork. Refused with the field that a definition can't have
    Import {
        /// YAML or JSON, several documents or a List; - for standard input
        #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The namespace of definitions for objects without one
        #[arg(long, default_value = "default")]
        namespace: String,
    },
}

/// What can be explained.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Object {
    /// Explain a pod: its addresses, its logical port, its services, and what it can reach
    Pod {
        /// NAMESPACE/NAME
        #[arg(value_parser = object_name)]
        pod: ObjectName,
        /// Destination, NAMESPACE/POD or an address: check with ovn-trace whether the pod reaches
        /// it
        #[arg(long)]
        to: Option<Target>,
        /// TCP port of the destination, instead of ICMP echo
        #[arg(long, requires = "to")]
        port: Option<u16>,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Explain a service: its addresses and ports, its endpoints, and its rows
    Service {
        /// NAMESPACE/NAME
        #[arg(value_parser = object_name)]
        service: ObjectName,
        /// The format.
        #[command(flatten)]
        format: OutputArgs,
    },
}

/// A policy. Namespaces may have the names of kinds, so that a NetworkPolicy can be written with
/// its kind, too.
fn policy_key(text: &str) -> Result<Key, String> {
    let kinds = [Of::ClusterPolicy, Of::AdminPolicy, Of::BaselinePolicy];
    let is = |of: Of, kind: &str| {
        let known = of.kind().map_or("", |(_, kind)| kind);
        known.eq_ignore_ascii_case(kind)
    };
    let parts: Vec<&str> = text.split('/').collect();
    let key = match parts[..] {
        [kind, name] if !name.is_empty() => {
            let of = kinds.into_iter().find(|of| is(*of, kind));
            of.map(|of| Key::named(of, name.into()))
        }
        _ => None,
    };
    if let Some(key) = key {
        return Ok(key);
    }
    let id = match parts[..] {
        [_, _] => object_name(text),
        [kind, namespace, name] if is(Of::Policy, kind) => {
            object_name(&format!("{namespace}/{name}"))
        }
        _ => Err(String::new()),
    };
    let id = id.map_err(|_| "write NAMESPACE/NAME, or ClusterNetworkPolicy/NAME".to_owned());
    id.map(|id| Key::object(Of::Policy, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_named_by_its_namespace_or_by_its_kind() {
        let of_namespace = |namespace: &str, name: &str| {
            Ok(Key::object(Of::Policy, (namespace.into(), name.into())))
        };
        let named = |of: Of, name: &str| Ok(Key::named(of, name.into()));
        for (text, expected) in [
            ("shop/allow", of_namespace("shop", "allow")),
            ("ClusterNetworkPolicy/a", named(Of::ClusterPolicy, "a")),
            ("clusternetworkpolicy/a", named(Of::ClusterPolicy, "a")),
            ("AdminNetworkPolicy/a", named(Of::AdminPolicy, "a")),
            (
                "baselineadminnetworkpolicy/default",
                named(Of::BaselinePolicy, "default"),
            ),
            (
                "NetworkPolicy/adminnetworkpolicy/a",
                of_namespace("adminnetworkpolicy", "a"),
            ),
        ] {
            assert_eq!(policy_key(text), expected, "{text}");
        }
        for wrong in ["", "a", "a/", "/a", "a/b/c", "AdminNetworkPolicy/"] {
            let error = policy_key(wrong).unwrap_err();
            assert!(error.contains("ClusterNetworkPolicy/NAME"), "{wrong}");
        }
    }
}
