//! Objects with the fields that Kubernetes' API has got up to 1.36: none of them stops a watch, and
//! of each object is read what podwire uses. The fixtures are written by the types of k8s.io/api.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::time::Duration;

use futures_util::StreamExt as _;
use podwire_apiserver::object::Object;
use podwire_apiserver::watch::{Event, Selection, Watch};
use podwire_apiserver::{Access, Token};
use podwire_cluster::api::{
    EndpointSlice, IntOrString, Namespace, NetworkPolicy, Node, Part, Pod, Service,
};
use podwire_cluster::service;
use podwire_tests::apiserver::ApiServer;
use serde_json::Value;

fn fixtures() -> Vec<Value> {
    serde_json::from_str(include_str!("kubernetes-1.36.json")).unwrap()
}

/// The objects of a kind as a watch has them, by a list and, once that has ended, by changes.
async fn watched<K: Object>() -> [Vec<K>; 2] {
    let server = ApiServer::start();
    let fixtures = fixtures();
    let apply = || fixtures.iter().for_each(|it| server.apply(it.clone()));
    apply();
    let count = fixtures.iter().filter(|it| it["kind"] == K::KIND).count();
    let access = Access::Server {
        url: server.url(),
        ca: None,
        token: Token::None,
    };
    let mut events = Box::pin(Watch::<K, _>::new(access, Selection::default()).into_stream());
    let [mut listed, mut applied] = [Vec::new(), Vec::new()];
    let collect = async {
        while applied.len() < count {
            match events.next().await.unwrap() {
                Event::Listed(object) => listed.push(object),
                Event::Applied(object) => applied.push(object),
                Event::Watching => apply(),
                Event::Unreadable(problem) => panic!("{problem}"),
                Event::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), collect).await;
    ended.expect("not all objects in 30 s");
    assert_eq!(listed.len(), count);
    [listed, applied]
}

#[tokio::test]
async fn nodes_have_subnets_and_addresses_of_both_families() {
    for nodes in watched::<Node>().await {
        let [node] = &nodes[..] else { panic!() };
        let subnets: Vec<_> = node.spec.all_pod_cidrs().collect();
        assert_eq!(subnets, ["10.244.0.0/24", "fd00:10:244::/64"]);
        let addresses: Vec<_> = node.status.internal_ips().collect();
        assert_eq!(addresses, ["192.0.2.11", "2001:db8::11"]);
        assert_eq!(node.status.conditions[0].status, "False");
    }
}

#[tokio::test]
async fn pods_with_sidecars_that_are_resized_in_place_have_their_addresses() {
    for pods in watched::<Pod>().await {
        let [pod] = &pods[..] else { panic!() };
        assert_eq!(
            (&*pod.spec.node_name, &*pod.status.phase),
            ("node-a", "Running")
        );
        assert!(!pod.spec.host_network);
        let addresses: Vec<_> = pod.status.pod_ips.iter().map(|it| &*it.ip).collect();
        assert_eq!(addresses, ["10.244.0.5", "fd00:10:244::5"]);
    }
}

#[tokio::test]
async fn services_of_both_families_have_their_policies_and_the_mode_of_their_addresses() {
    for services in watched::<Service>().await {
        let [service] = &services[..] else { panic!() };
        let addresses: Vec<_> = service.spec.all_cluster_ips().collect();
        assert_eq!(addresses, ["10.96.3.4", "fd00:10:96::34"]);
        let policies = [
            &*service.spec.external_traffic_policy,
            &*service.spec.internal_traffic_policy,
        ];
        assert_eq!(policies, ["Local", "Cluster"]);
        assert_eq!(service.spec.health_check_node_port, Some(31002));
        let ingress = service.status.load_balancer.ingress.iter();
        let ingress: Vec<_> = ingress.map(|it| (&*it.ip, &*it.ip_mode)).collect();
        assert_eq!(ingress, [("203.0.113.7", "Proxy"), ("", "")]);
    }
}

#[tokio::test]
async fn slices_of_v1_have_endpoints_that_say_nothing_of_themselves_or_end() {
    for slices in watched::<EndpointSlice>().await {
        let front = slices.iter().find(|it| it.metadata.name == "front-x7k2p");
        let endpoints = front.unwrap().endpoints.iter();
        let endpoints: Vec<_> = endpoints
            .map(|it| (it.node(), it.conditions.ready, it.conditions.serving))
            .collect();
        assert_eq!(
            endpoints,
            [
                (Some("node-a"), Some(true), Some(true)),
                (None, None, None),
                (None, Some(false), Some(true)),
            ]
        );
        let empty = slices.iter().find(|it| it.metadata.name == "none-yet");
        assert!(empty.unwrap().endpoints.is_empty() && empty.unwrap().ports.is_empty());
    }
}

#[tokio::test]
async fn namespaces_and_policies_with_ranges_of_ports_and_blocks_are_read() {
    for namespaces in watched::<Namespace>().await {
        let labels = &namespaces[0].metadata.labels;
        assert_eq!(labels["kubernetes.io/metadata.name"], "shop");
    }
    for policies in watched::<NetworkPolicy>().await {
        let spec = read(&policies[0].spec);
        assert_eq!(*read(&spec.policy_types), ["Ingress", "Egress"]);
        assert!(read(&spec.egress).is_empty());
        let rule = read(&read(&spec.ingress)[0]);
        let block = read(&rule.from[0]).ip_block.as_ref().unwrap();
        assert_eq!(block.except, ["2001:db8:1::/48"]);
        let [range, all] = &rule.ports[..] else {
            panic!()
        };
        assert!(matches!(read(range).port, Some(IntOrString::Int(8000))));
        assert_eq!(read(range).end_port, Some(8080));
        assert!(read(all).port.is_none() && read(all).end_port.is_none());
    }
}

fn read<T: std::fmt::Debug>(part: &Part<T>) -> &T {
    match part {
        Part::Read(value) => value,
        Part::Unreadable(problem) => panic!("{problem}"),
    }
}

/// Of two families, a balancer in proxy mode and endpoints without conditions.
#[tokio::test]
async fn a_service_is_reduced_to_addresses_ports_and_the_endpoints_that_are_ready() {
    let [services, _] = watched::<Service>().await;
    let front = service::Service::of(&services[0]).unwrap();
    assert!(front.is_external_local && !front.is_internal_local);
    assert_eq!(front.health_port, Some(31002));
    assert_eq!(front.affinity, None);
    let addresses: Vec<_> = front.cluster_ips.iter().map(|it| it.to_string()).collect();
    assert_eq!(addresses, ["10.96.3.4", "fd00:10:96::34"]);
    assert!(
        front.balancer_ips.is_empty(),
        "a balancer in proxy mode is asked itself"
    );
    let [slices, _] = watched::<EndpointSlice>().await;
    let slices: Vec<_> = slices.iter().filter_map(service::Slice::of).collect();
    let [(name, slice)] = &slices[..] else {
        panic!("{slices:?}")
    };
    assert_eq!(&**name, "front");
    let ready = front.endpoints(&front.ports[0], [slice].into_iter(), |_| true);
    let ready: Vec<_> = ready.iter().map(ToString::to_string).collect();
    assert_eq!(ready, ["[fd00:10:244::5]:8080", "[fd00:10:244:1::6]:8080"]);
    let ended = front.endpoints(&front.ports[0], [slice].into_iter(), |it| !it.ready);
    let ended: Vec<_> = ended.iter().map(ToString::to_string).collect();
    assert_eq!(ended, ["[fd00:10:244:1::7]:8080"]);
}
