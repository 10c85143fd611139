//! The cluster's objects: its nodes, and podwire's own pods on them.

use std::fmt::Debug;

use itertools::Itertools as _;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::Api;
use kube::api::ListParams;
use podwire_daemon::words;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Failure;
use super::exec::{Cluster, said};

/// Objects in one answer of the API server.
const PAGE: u32 = 100;

/// A node.
#[derive(Debug)]
pub(super) struct NodeObject {
    pub(super) name: String,
    /// What Kubernetes says: None if it is ready.
    pub(super) unready: Option<String>,
}

/// One of podwire's pods.
#[derive(Debug, Clone)]
pub(super) struct OwnPod {
    pub(super) name: String,
    /// Empty as long as it has none.
    pub(super) node: String,
    pub(super) part: Part,
    /// That of its program.
    pub(super) image: Option<String>,
    /// Why it can't be asked; None if it runs.
    pub(super) away: Option<String>,
    /// The containers that ended and were started again.
    pub(super) restarted: Vec<String>,
}

words! {
    /// A part of podwire, as its pods' label `app.kubernetes.io/name` names it.
    pub(super) enum Part {
        Agent = "podwire",
        NodeRole = "podwire-node",
        Controller = "podwire-controller",
        /// Members of OVN's databases, where these are pods.
        Northbound = "podwire-ovn-northbound",
        Southbound = "podwire-ovn-southbound",
        OvnController = "podwire-ovn-controller",
        OpenVswitch = "podwire-openvswitch",
    }
}

impl Part {
    const LABEL: &str = "app.kubernetes.io/name";

    /// The name of its container, of several the first.
    pub(super) fn container(self) -> &'static str {
        self.containers()[0]
    }

    /// The names of its containers.
    pub(super) fn containers(self) -> &'static [&'static str] {
        match self {
            Self::Agent => &["agent"],
            Self::NodeRole => &["node"],
            Self::Controller => &["controller"],
            Self::Northbound => &["database"],
            Self::Southbound => &["database", "northd", "relay"],
            Self::OvnController => &["ovn-controller"],
            Self::OpenVswitch => &["database", "vswitchd"],
        }
    }
}

impl Cluster {
    /// All nodes, by name.
    ///
    /// # Errors
    /// The API server does not answer, or refuses.
    pub(super) async fn nodes(&self) -> Result<Vec<NodeObject>, Failure> {
        let nodes = self
            .list(&Api::<Node>::all(self.client.clone()), "")
            .await?;
        let mut nodes: Vec<_> = nodes.into_iter().map(node).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    /// All of podwire's pods.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn own_pods(&self) -> Result<Vec<OwnPod>, Failure> {
        let names = Part::ALL.map(Part::word).join(",");
        let selector = format!("{} in ({names})", Part::LABEL);
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let pods = self.list(&pods, &selector).await?;
        Ok(pods.into_iter().filter_map(own_pod).collect())
    }

    /// A pod of anybody.
    ///
    /// # Errors
    /// As there, or there is none.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Failure> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = self.answered(pods.get_opt(name)).await?;
        pod.ok_or_else(|| Failure::Missing(format!("there is no pod {namespace}/{name}")))
    }

    /// All objects of a kind with these labels, page by page.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn list<K>(&self, api: &Api<K>, selector: &str) -> Result<Vec<K>, Failure>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let wanted = ListParams::default().labels(selector);
        let listed = self.list_if_known(api, wanted).await?;
        listed.ok_or_else(|| Failure::Server {
            server: self.server.clone(),
            problem: "it does not know such objects".to_owned(),
        })
    }

    /// All objects of a kind that are wanted, page by page; None if the API server does not know
    /// the kind.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn list_if_known<K>(
        &self,
        api: &Api<K>,
        wanted: ListParams,
    ) -> Result<Option<Vec<K>>, Failure>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut wanted = wanted.limit(PAGE);
        let mut objects = Vec::new();
        loop {
            let page = async {
                match api.list(&wanted).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                    page => page.map(Some),
                }
            };
            let Some(page) = self.answered(page).await? else {
                return Ok(None);
            };
            objects.extend(page.items);
            match page.metadata.continue_.filter(|it| !it.is_empty()) {
                Some(token) => wanted.continue_token = Some(token),
                None => return Ok(Some(objects)),
            }
        }
    }

    /// What the API server answers in time.
    ///
    /// # Errors
    /// It does not, or refuses.
    pub(super) async fn answered<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        let failed = |problem| Failure::Server {
            server: self.server.clone(),
            problem,
        };
        match timeout(self.limit, request).await {
            Ok(answer) => answer.map_err(|error| failed(said(&error))),
            Err(_) => {
                let seconds = self.limit.as_secs();
                Err(failed(format!("no answer within {seconds} s (--timeout)")))
            }
        }
    }
}

fn node(node: Node) -> NodeObject {
    let status = node.status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    let ready = conditions.find(|it| it.type_ == "Ready");
    let unready = match ready {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => {
            let why = ready.message.or(ready.reason);
            Some(format!(
                "not ready: {}",
                why.as_deref().unwrap_or(&ready.status)
            ))
        }
        None => Some("no kubelet has reported yet".to_owned()),
    };
    NodeObject {
        name: node.metadata.name.unwrap_or_default(),
        unready,
    }
}

fn own_pod(pod: Pod) -> Option<OwnPod> {
    let labels = pod.metadata.labels.unwrap_or_default();
    let label = labels.get(Part::LABEL)?;
    let part = Part::ALL.into_iter().find(|part| part.word() == label)?;
    let status = pod.status.unwrap_or_default();
    let waits = waiting(&status);
    let containers = status.container_statuses.iter().flatten();
    let restarted = containers.filter(|it| {
        let last = it.last_state.as_ref();
        last.is_some_and(|it| it.terminated.is_some())
    });
    let restarted = restarted.map(|it| it.name.clone()).collect();
    let phase = status.phase.unwrap_or_default();
    let name = pod.metadata.name.unwrap_or_default();
    let away = match (pod.metadata.deletion_timestamp, waits, phase.as_str()) {
        (Some(_), ..) => Some(format!("pod {name} is being deleted")),
        (None, Some(waits), _) => Some(format!("pod {name} waits: {waits}")),
        (None, None, "Running") => None,
        (None, None, phase) => Some(format!("pod {name} is {phase}")),
    };
    let spec = pod.spec.unwrap_or_default();
    let mut containers = spec.containers.into_iter();
    let container = containers.find(|it| it.name == part.container());
    Some(OwnPod {
        node: spec.node_name.unwrap_or_default(),
        image: container.and_then(|it| it.image),
        name,
        part,
        away,
        restarted,
    })
}

/// What the first container that does not run waits for.
pub(super) fn waiting(status: &PodStatus) -> Option<String> {
    status.container_statuses.iter().flatten().find_map(|it| {
        let waiting = it.state.as_ref()?.waiting.as_ref()?;
        let said = [waiting.reason.as_deref(), waiting.message.as_deref()];
        Some(said.into_iter().flatten().join(": "))
    })
}

/// The pod of a node's agent. While a rollout replaces it there are two: the one that runs.
pub(super) fn agent_on<'a>(pods: &'a [OwnPod], node: &str) -> Option<&'a OwnPod> {
    let own = pods
        .iter()
        .filter(|it| it.part == Part::Agent && it.node == node);
    own.min_by_key(|it| it.away.is_some())
}

/// The agent's pod on a node.
///
/// # Errors
/// There is none that runs, in words.
pub(super) fn agent_of<'a>(own: &'a [OwnPod], node: Option<&str>) -> Result<&'a OwnPod, String> {
    let node = node.unwrap_or_default();
    match agent_on(own, node) {
        None => Err(format!("node {node} has no pod of podwire's agent")),
        Some(OwnPod {
            away: Some(away), ..
        }) => Err(away.clone()),
        Some(pod) => Ok(pod),
    }
}

/// Whether it is a pod of this part, and can be asked.
pub(super) fn runs(pod: &OwnPod, part: Part) -> bool {
    pod.part == part && pod.away.is_none()
}
