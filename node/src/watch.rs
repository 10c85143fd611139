//! Follows the objects of the Kubernetes API that concern this node.

use k8s_openapi::api::core::v1::{Node, Service as ApiService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Client, ResourceExt as _};
use podwire_apiserver::watch::{Selection, Watch as Objects};
use podwire_apiserver::{Access, AccessError, follow};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::{ApiNode, Change, Cluster, SERVICE_NAME, Service, Slice};
use crate::settings::Mode;

/// The number of queued changes.
const QUEUE: usize = 4096;

/// The watches.
pub(crate) struct Watch {
    pub(crate) client: Client,
    pub(crate) cluster: Cluster,
    changes: mpsc::Receiver<Change>,
    _tasks: JoinSet<()>,
}

impl Watch {
    /// Follows while it lives: in plain mode the Nodes, otherwise its own Node and services.
    pub(crate) async fn start(
        access: &Access,
        node: &str,
        mode: Mode,
    ) -> Result<Self, AccessError> {
        let client = podwire_apiserver::client(access).await?;
        let (sender, changes) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        let nodes = match mode {
            Mode::Plain => Selection::default(),
            Mode::Ovn => Selection::named(node),
        };
        tasks.spawn(follow(
            Objects::new(access.clone(), nodes).into_stream(),
            sender.clone(),
            |node: &Node| node.name_any(),
            |node| Some(ApiNode::from(node)),
            Change::Node,
            Change::NodesListed,
        ));
        if mode == Mode::Ovn {
            tasks.spawn(follow(
                Objects::new(access.clone(), Selection::default()).into_stream(),
                sender.clone(),
                |it: &ApiService| (it.namespace().unwrap_or_default(), it.name_any()),
                Service::of,
                Change::Service,
                Change::ServicesListed,
            ));
            tasks.spawn(follow(
                podwire_apiserver::endpoint_slices(access.clone()),
                sender,
                |slice: &EndpointSlice| {
                    let service = slice.labels().get(SERVICE_NAME).cloned();
                    let namespace = slice.namespace().unwrap_or_default();
                    (namespace, service.unwrap_or_default(), slice.name_any())
                },
                |slice| {
                    let is_of_service = slice.labels().contains_key(SERVICE_NAME);
                    is_of_service.then(|| Slice::from(slice))
                },
                Change::Slice,
                Change::SlicesListed,
            ));
        }
        Ok(Self {
            client,
            cluster: Cluster::default(),
            changes,
            _tasks: tasks,
        })
    }

    /// Waits for a change, and applies all that have arrived. An unchanged object, such as a Node
    /// with a new heartbeat, is none.
    pub(crate) async fn changed(&mut self) {
        let mut is_new = false;
        while !is_new {
            let Some(change) = self.changes.recv().await else {
                return std::future::pending().await;
            };
            is_new = self.cluster.take(change);
            while let Ok(change) = self.changes.try_recv() {
                is_new |= self.cluster.take(change);
            }
        }
    }
}
