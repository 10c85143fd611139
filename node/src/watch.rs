//! Follows the objects of the Kubernetes API that concern this node.

use kube::Client;
use podwire_apiserver::event::{Poster, Source};
use podwire_apiserver::watch::{Selection, Watch as Objects};
use podwire_apiserver::{Access, AccessError, Follow, Unread};
use podwire_cluster::service::{Service, Slice};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::{ApiChange, ApiNode, Cluster};
use crate::settings::Mode;

/// The number of queued changes.
const QUEUE: usize = 4096;

/// The watches.
pub(crate) struct Watch {
    pub(crate) client: Client,
    pub(crate) cluster: Cluster,
    /// The objects that can't be read.
    pub(crate) unread: Unread,
    /// Posts Events of this node.
    pub(crate) events: Poster,
    changes: mpsc::Receiver<ApiChange>,
    _tasks: JoinSet<()>,
}

impl Watch {
    /// Follows while it lives: the Nodes and, with OVN, services.
    pub(crate) async fn start(
        access: &Access,
        node: &str,
        mode: Mode,
    ) -> Result<Self, AccessError> {
        let client = podwire_apiserver::client(access).await?;
        let (sender, changes) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        let source = Source {
            component: "podwire-node",
            host: None,
        };
        let unread = Unread::posting(Poster::start(access.clone(), source.clone()));
        let source = Source {
            host: Some(node.to_owned()),
            ..source
        };
        let events = Poster::start(access.clone(), source);
        let follow = Follow {
            name: |node| node.name.clone(),
            reduce: |node| Some(ApiNode::from(node)),
            change: ApiChange::Node,
            unreadable: Some(|_, _| ApiChange::Unreadable),
            listed: ApiChange::NodesListed,
            absent: None,
        };
        let nodes = Objects::new(access.clone(), Selection::default()).into_stream();
        tasks.spawn(follow.run(nodes, sender.clone(), unread.clone()));
        if mode == Mode::Ovn {
            let follow = Follow {
                name: |it| (it.namespace.as_str().into(), it.name.as_str().into()),
                reduce: Service::of,
                change: ApiChange::Service,
                unreadable: Some(|_, _| ApiChange::Unreadable),
                listed: ApiChange::ServicesListed,
                absent: None,
            };
            let services = Objects::new(access.clone(), Selection::default()).into_stream();
            tasks.spawn(follow.run(services, sender.clone(), unread.clone()));
            let follow = Follow {
                name: |it| (it.namespace.as_str().into(), it.name.as_str().into()),
                reduce: Slice::of,
                change: ApiChange::Slice,
                unreadable: Some(|_, _| ApiChange::Unreadable),
                listed: ApiChange::SlicesListed,
                absent: None,
            };
            let slices = podwire_cluster::endpoint_slices(access.clone());
            tasks.spawn(follow.run(slices, sender, unread.clone()));
        }
        Ok(Self {
            client,
            cluster: Cluster::default(),
            unread,
            events,
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
            is_new = self.cluster.apply(change);
            while let Ok(change) = self.changes.try_recv() {
                is_new |= self.cluster.apply(change);
            }
        }
    }
}
