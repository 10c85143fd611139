//! The kinds of objects that the controller follows. One more is one more entry.

use futures_util::stream::StreamExt as _;
use podwire_cluster::service::{Service, Slice};
use podwire_cluster::{SERVICE_NAME, api, endpoint_slices};
use tokio::time::Instant;

use super::State;
use super::watch::{Change, Followed, Kind, all, namespaced};
use crate::cluster::logging::{Logging, Logs};
use crate::cluster::multi::MultiPolicy;
use crate::cluster::network::Definition;
use crate::cluster::policy::Policy;
use crate::cluster::tiered::Tiered;
use crate::cluster::user::{Stored, UserNetwork};
use crate::cluster::{Node, Pod};
use crate::key::{Key, Of};

/// A kind of policies of the whole cluster: its objects, their keys, and how they are read. What
/// differs has to be known to functions without an environment, so that this is a macro.
macro_rules! tiered {
    ($object:ty, $of:expr, $read:ident) => {
        Followed {
            events: all::<$object>,
            name: |policy| Key::named($of, policy.name.as_str().into()),
            reduce: |policy| Some(Tiered::$read(policy)),
            change: |key, policy| changed(move |state| state.learn_tiered(key, policy)),
            unreadable: Some(|key, _| Change::Unreadable(key)),
            holds: &[Of::Peers, $of, Of::Pod, Of::Members],
            is_optional: true,
        }
    };
}

/// All of them, in no order: each is listed for itself.
pub(super) const KINDS: &[&dyn Kind] = &[
    &Followed {
        events: all::<api::Node>,
        name: |node| node.name.as_str().into(),
        reduce: |node| Some(Node::from(node)),
        change: |name, node| changed(move |state| state.learn_node(name, node)),
        unreadable: Some(|name, _| Change::Unreadable(Key::node(name))),
        holds: &[Of::Node, Of::Gateway, Of::Pod, Of::Service, Of::Members],
        is_optional: false,
    },
    &Followed {
        events: all::<api::Pod>,
        name: namespaced,
        reduce: Pod::of,
        change: |name, pod| changed(move |state| state.learn_pod(name, pod)),
        unreadable: Some(|name, _| Change::Unreadable(Key::pod(name))),
        holds: &[
            Of::UserNetwork,
            Of::ClusterUserNetwork,
            Of::Node,
            Of::Gateway,
            Of::Namespace,
            Of::Peers,
            Of::Policy,
            Of::ClusterPolicy,
            Of::AdminPolicy,
            Of::BaselinePolicy,
            Of::Pod,
            Of::Members,
        ],
        is_optional: false,
    },
    &Followed {
        events: all::<api::Namespace>,
        name: |namespace| namespace.name.as_str().into(),
        reduce: |namespace| {
            let metadata = &namespace.metadata;
            let logging = Logging::of(Logs::Namespace, metadata);
            Some((metadata.is_deleted(), (metadata.labels.clone(), logging)))
        },
        change: |name, namespace| {
            changed(move |state| {
                let (is_deleted, namespace) = namespace.unzip();
                state.learn_deleted(&name, is_deleted == Some(true));
                state.learn_namespace(name, namespace);
            })
        },
        unreadable: None,
        holds: OF_NAMESPACES,
        is_optional: false,
    },
    &Followed {
        events: all::<api::NetworkPolicy>,
        name: namespaced,
        reduce: Policy::of,
        change: |name, policy| changed(move |state| state.learn_policy(name, policy)),
        unreadable: Some(|name, _| Change::Unreadable(Key::object(Of::Policy, name))),
        holds: SELECTED,
        is_optional: false,
    },
    &tiered!(api::ClusterNetworkPolicy, Of::ClusterPolicy, of_cluster),
    &tiered!(api::AdminNetworkPolicy, Of::AdminPolicy, of_admin),
    &tiered!(
        api::BaselineAdminNetworkPolicy,
        Of::BaselinePolicy,
        of_baseline
    ),
    &Followed {
        events: all::<api::NetworkAttachmentDefinition>,
        name: namespaced,
        reduce: |it| Some((Definition::of(it), Stored::of(it))),
        change: |name, it| changed(move |state| state.learn_definition(name, it)),
        unreadable: None,
        holds: &[Of::Definition, Of::UserNetwork, Of::ClusterUserNetwork],
        is_optional: true,
    },
    &Followed {
        events: all::<api::MultiNetworkPolicy>,
        name: namespaced,
        reduce: |it| Some(MultiPolicy::of(it)),
        change: |name, it| changed(move |state| state.learn_multi(name, it)),
        unreadable: Some(|name, _| Change::Unreadable(Key::object(Of::MultiPolicy, name))),
        holds: &[Of::MultiPolicy, Of::Peers, Of::Policy, Of::Pod, Of::Members],
        is_optional: true,
    },
    &Followed {
        events: all::<api::UserDefinedNetwork>,
        name: |it| Key::object(Of::UserNetwork, namespaced(it)),
        reduce: |it| Some(UserNetwork::of_namespace(it)),
        change: |key, it| changed(move |state| state.learn_user_network(key, it)),
        unreadable: Some(|key, _| Change::Unreadable(key)),
        holds: &[Of::UserNetwork],
        is_optional: true,
    },
    &Followed {
        events: all::<api::ClusterUserDefinedNetwork>,
        name: |it| Key::named(Of::ClusterUserNetwork, it.name.as_str().into()),
        reduce: |it| Some(UserNetwork::of_cluster(it)),
        change: |key, it| changed(move |state| state.learn_user_network(key, it)),
        unreadable: Some(|key, _| Change::Unreadable(key)),
        holds: &[Of::ClusterUserNetwork],
        is_optional: true,
    },
    &Followed {
        events: all::<api::Service>,
        name: namespaced,
        reduce: Service::of,
        change: |name, service| changed(move |state| state.learn_service(name, service)),
        unreadable: Some(|name, _| Change::Unreadable(Key::service(name))),
        holds: &[Of::Service],
        is_optional: false,
    },
    &Followed {
        events: |server| endpoint_slices(server.clone()).boxed(),
        name: namespaced,
        reduce: Slice::of,
        change: |name, slice| changed(move |state| state.learn_slice(name, slice)),
        unreadable: Some(|name, slice| {
            let service = slice.labels.get(SERVICE_NAME).map(|it| it.as_str().into());
            changed(move |state| state.learn_unread_slice(name, service))
        }),
        holds: &[Of::Service],
        is_optional: false,
    },
];

/// What depends on policies, and on the namespaces that they select.
const SELECTED: &[Of] = &[
    Of::Namespace,
    Of::Peers,
    Of::Policy,
    Of::ClusterPolicy,
    Of::AdminPolicy,
    Of::BaselinePolicy,
    Of::Pod,
    Of::Members,
];

/// What depends on the namespaces themselves.
const OF_NAMESPACES: &[Of] = &[
    Of::Definition,
    Of::UserNetwork,
    Of::ClusterUserNetwork,
    Of::Namespace,
    Of::Peers,
    Of::Policy,
    Of::ClusterPolicy,
    Of::AdminPolicy,
    Of::BaselinePolicy,
    Of::Pod,
    Of::Members,
];

fn changed(learn: impl FnOnce(&mut State) + Send + 'static) -> Change {
    Change::Object(Instant::now(), Box::new(learn))
}
