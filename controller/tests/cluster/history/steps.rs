//! What happens to a cluster.

use proptest::prelude::*;

use super::{MACS, NODES, PODS, POLICIES, SERVICES};

/// The node in whose subnet an address is requested, and its offset there.
pub(super) type Wish = Option<(u8, u8)>;

/// What somebody writes into an annotation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text {
    Nothing,
    Empty,
    Garbage,
    /// That of another object.
    Of(u8),
}

/// One change of the cluster.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Node(u8),
    NoNode(u8),
    /// Removed and back at once.
    NodeAgain(u8),
    NodeSubnets(u8, Text),
    /// On a node, with a wish for one of [`MACS`]. Of one that it replaces the end may not be told.
    Pod(u8, u8, Wish, Option<usize>, bool),
    NoPod(u8),
    PodDone(u8, u8),
    /// One that is there gets another name, with its annotations.
    PodRenamed(u8, u8),
    PodNetworks(u8, Text),
    PodWishes(u8, Wish),
    /// A pod or a service gets a label.
    Labelled(&'static str, u8, u8),
    /// For all pods, or those with a label; from all pods with a label, or of a team.
    Policy(u8, Option<u8>, Result<u8, u8>),
    NoPolicy(u8),
    /// One of the whole cluster, of either tier: for whom, what it does, and from whom.
    Tiered(u8, bool, Option<u8>, u8, Result<u8, u8>),
    NoTiered(u8),
    /// The namespace belongs to a team.
    Team(u8),
    /// Somebody empties all groups, and adds a stranger to all sets.
    MembersChanged,
    /// With endpoints on the client's node alone, or all of them.
    Service(u8, bool),
    NoService(u8),
    /// One that is there gets another name, with its address.
    ServiceRenamed(u8, u8),
    /// Each with its node.
    Endpoints(u8, Vec<(u8, u8)>),
    NoEndpoints(u8),
    /// A slice goes to another service, or to none.
    EndpointsOf(u8, Option<u8>),
    /// The definition of a second network, with one of two subnets, or other excluded addresses.
    Definition(u8),
    NoDefinition,
    /// A pod asks for that network so many times, and for one without a definition; or for a
    /// user's.
    Asks(u8, u8),
    /// A user's network for the namespaces of a team.
    UserNetwork(u8),
    NoUserNetwork,
    /// Somebody removes its definition, or edits it.
    DefinitionRemoved,
    DefinitionEdited,
    /// The controller dies wherever it is, and another starts.
    Crash,
    /// Nobody leads until the next of these.
    Away,
    /// Somebody removes a port.
    PortRemoved(u8),
    /// Somebody removes a node's switch with all ports, or its router port.
    SwitchRemoved(u8),
    RouterPortRemoved(u8),
    /// Everything is compared.
    Settle,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let (nodes, pods, services) = (0..NODES, 0..PODS, 0..SERVICES);
    let pods_of_labels = pods.clone();
    let wish = proptest::option::weighted(0.6, (0..NODES, 0..4_u8));
    let mac = proptest::option::weighted(0.3, 0..MACS.len());
    let text = |others: u8| {
        prop_oneof![
            Just(Text::Nothing),
            Just(Text::Empty),
            Just(Text::Garbage),
            (0..others).prop_map(Text::Of),
        ]
    };
    let of_nodes = prop_oneof![
        6 => nodes.clone().prop_map(Step::Node),
        1 => nodes.clone().prop_map(Step::NoNode),
        2 => nodes.clone().prop_map(Step::NodeAgain),
        2 => (nodes.clone(), text(NODES)).prop_map(|(node, text)| Step::NodeSubnets(node, text)),
        1 => nodes.clone().prop_map(Step::SwitchRemoved),
        1 => nodes.clone().prop_map(Step::RouterPortRemoved),
    ];
    let of_pods = prop_oneof![
        8 => (pods.clone(), nodes.clone(), wish.clone(), mac, any::<bool>())
            .prop_map(|(pod, node, wish, mac, is_told)| Step::Pod(pod, node, wish, mac, is_told)),
        2 => pods.clone().prop_map(Step::NoPod),
        1 => (pods.clone(), nodes.clone()).prop_map(|(pod, node)| Step::PodDone(pod, node)),
        2 => (pods.clone(), pods.clone()).prop_map(|(pod, name)| Step::PodRenamed(pod, name)),
        3 => (pods.clone(), text(PODS)).prop_map(|(pod, text)| Step::PodNetworks(pod, text)),
        2 => (pods.clone(), wish).prop_map(|(pod, wish)| Step::PodWishes(pod, wish)),
        1 => (pods.clone(), 0..3_u8).prop_map(|(pod, label)| Step::Labelled("Pod", pod, label)),
        1 => pods.prop_map(Step::PortRemoved),
    ];
    let label = 0..3_u8;
    let from = prop_oneof![label.clone().prop_map(Ok), label.clone().prop_map(Err)];
    let by = from.clone();
    let of_policies = prop_oneof![
        4 => (0..POLICIES, proptest::option::of(label.clone()), from)
            .prop_map(|(policy, of, from)| Step::Policy(policy, of, from)),
        2 => (0..POLICIES).prop_map(Step::NoPolicy),
        4 => (0..POLICIES, any::<bool>(), proptest::option::of(label.clone()), 0..3_u8, by)
            .prop_map(|(policy, is_first, of, action, from)| {
                Step::Tiered(policy, is_first, of, action, from)
            }),
        2 => (0..POLICIES).prop_map(Step::NoTiered),
        2 => label.clone().prop_map(Step::Team),
        3 => (pods_of_labels, label).prop_map(|(pod, label)| Step::Labelled("Pod", pod, label)),
        1 => Just(Step::MembersChanged),
    ];
    let of_services = prop_oneof![
        3 => (services.clone(), any::<bool>())
            .prop_map(|(service, is_local)| Step::Service(service, is_local)),
        1 => services.clone().prop_map(Step::NoService),
        2 => (services.clone(), proptest::collection::vec((3..9_u8, nodes), 0..4))
            .prop_map(|(service, ends)| Step::Endpoints(service, ends)),
        2 => (services.clone(), services.clone())
            .prop_map(|(service, name)| Step::ServiceRenamed(service, name)),
        2 => (services.clone(), proptest::option::weighted(0.8, services.clone()))
            .prop_map(|(slice, service)| Step::EndpointsOf(slice, service)),
        1 => (services.clone(), 0..3_u8)
            .prop_map(|(service, label)| Step::Labelled("Service", service, label)),
        1 => services.prop_map(Step::NoEndpoints),
    ];
    let of_networks = prop_oneof![
        2 => (0..3_u8).prop_map(Step::Definition),
        1 => Just(Step::NoDefinition),
        5 => (0..PODS, 0..4_u8).prop_map(|(pod, times)| Step::Asks(pod, times)),
        2 => (0..2_u8).prop_map(Step::UserNetwork),
        1 => Just(Step::NoUserNetwork),
        1 => Just(Step::DefinitionRemoved),
        1 => Just(Step::DefinitionEdited),
    ];
    prop_oneof![
        8 => of_networks,
        6 => of_nodes,
        12 => of_pods,
        6 => of_services,
        6 => of_policies,
        1 => Just(Step::Crash),
        2 => Just(Step::Away),
        1 => Just(Step::Settle),
    ]
}
