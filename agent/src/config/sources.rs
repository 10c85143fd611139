//! Where pods' annotations come from, and how to get there.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use podwire_apiserver::Access;
use podwire_daemon::settings::{Mode, ServerArgs, node_name};

use super::{ConfigError, bad};

/// A place that annotations come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Source {
    /// The CNI request: runtimeConfig's io.kubernetes.cri.pod-annotations
    Cni,
    /// A watch of this node's pods on the Kubernetes API server
    Kube,
    /// Pod manifests in a directory
    Dir,
}

impl Source {
    /// As flags, metrics and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cni => "cni",
            Self::Kube => "kube",
            Self::Dir => "dir",
        }
    }
}

/// Whether a pod without network annotation gets a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Need {
    /// The annotation is awaited
    Required,
    /// The pod gets what the configuration and the agent's subnets give
    Optional,
}

/// The flags about sources.
#[derive(Debug, Clone, Default, Args)]
pub struct SourceArgs {
    /// Sources of pods' annotations, in order of precedence [default: cni, then kube and dir if
    /// they are set up]
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    pub sources: Vec<Source>,
    /// Whether an ADD waits for its pod's network annotation [default: required with kube or dir
    /// and in OVN mode, else optional]
    #[arg(long, value_name = "NEED")]
    pub annotations: Option<Need>,
    /// Directory of pod manifests (YAML or JSON)
    #[arg(long, value_name = "DIR")]
    pub pod_dir: Option<PathBuf>,
    /// The API server whose pods are watched
    #[command(flatten)]
    pub server: ServerArgs,
    /// This node's name in Kubernetes [default: the host name, in lower case]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
}

/// The sources of annotations, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The sources, each once, in the order in which they are asked.
    pub order: Vec<Source>,
    /// Whether an ADD waits for the pod's network annotation.
    pub annotations: Need,
    /// How to watch the API server; present if `order` contains [`Source::Kube`].
    pub kube: Option<KubeConfig>,
    /// The directory; present if `order` contains [`Source::Dir`].
    pub dir: Option<PathBuf>,
}

/// How to watch this node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeConfig {
    /// The node's name.
    pub node: String,
    /// The server and the credentials.
    pub access: Access,
}

impl SourceConfig {
    /// Checks the flags against each other.
    pub(super) fn from_args(args: SourceArgs, mode: Mode) -> Result<Self, ConfigError> {
        let explicit = !args.sources.is_empty();
        let wants = |source| args.sources.contains(&source);
        let access = match wants(Source::Kube) || !explicit {
            true => args.server.access()?,
            false => None,
        };
        if access.is_none() && wants(Source::Kube) {
            return Err(bad(
                "--sources",
                "kube",
                "set --kubeconfig or --k8s-apiserver: there is no service account",
            ));
        }
        if args.pod_dir.is_none() && wants(Source::Dir) {
            return Err(bad("--sources", "dir", "give --pod-dir"));
        }
        let order = match explicit {
            true => each_once(&args.sources)?,
            false => {
                let kube = access.as_ref().map(|_| Source::Kube);
                let dir = args.pod_dir.as_ref().map(|_| Source::Dir);
                [Some(Source::Cni), kube, dir]
                    .into_iter()
                    .flatten()
                    .collect()
            }
        };
        let is_watching = order.iter().any(|source| *source != Source::Cni);
        let kube = access.filter(|_| order.contains(&Source::Kube));
        Ok(Self {
            annotations: args
                .annotations
                .unwrap_or(match is_watching || mode == Mode::Ovn {
                    true => Need::Required,
                    false => Need::Optional,
                }),
            kube: match kube {
                Some(access) => Some(KubeConfig {
                    node: node_name(args.node_name)?,
                    access,
                }),
                None => None,
            },
            dir: args.pod_dir.filter(|_| order.contains(&Source::Dir)),
            order,
        })
    }
}

fn each_once(sources: &[Source]) -> Result<Vec<Source>, ConfigError> {
    for (at, source) in sources.iter().enumerate() {
        if sources[..at].contains(source) {
            return Err(bad("--sources", source.name(), "named twice"));
        }
    }
    Ok(sources.to_vec())
}

#[cfg(test)]
mod tests;
