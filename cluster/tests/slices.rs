//! EndpointSlices of servers of different ages.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use podwire_cluster::api::EndpointSlice;

use podwire_apiserver::watch::Event;
use podwire_apiserver::{Access, Token};
use podwire_cluster::endpoint_slices;
use podwire_tests::apiserver::{ApiServer, endpoints};
use serde_json::json;

type Events = Pin<Box<dyn Stream<Item = Event<EndpointSlice>> + Send>>;

fn follow(server: &ApiServer) -> Events {
    Box::pin(endpoint_slices(Access::Server {
        url: server.url(),
        ca: None,
        token: Token::None,
    }))
}

/// The next slice that the stream has: its name, and its endpoints' nodes.
async fn next(events: &mut Events) -> (String, Vec<Option<String>>) {
    let find = async {
        loop {
            if let Event::Listed(slice) | Event::Applied(slice) = events.next().await.unwrap() {
                let nodes = slice
                    .endpoints
                    .iter()
                    .map(|it| it.node().map(str::to_owned));
                return (slice.metadata.name, nodes.collect());
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), find).await;
    found.expect("no slice in 30 s")
}

fn old_slice(name: &str) -> serde_json::Value {
    let mut slice = endpoints("default", name, &["10.244.0.3", "10.244.1.3"], 8080);
    slice["apiVersion"] = "discovery.k8s.io/v1beta1".into();
    slice["endpoints"][0]["topology"] = json!({ "kubernetes.io/hostname": "node-a" });
    slice
}

#[tokio::test]
async fn slices_of_a_server_without_v1_are_those_of_v1beta1_with_nodes_from_their_topology() {
    let server = ApiServer::start();
    server.has_slices_of("v1beta1");
    server.apply(old_slice("listed"));
    let mut events = follow(&server);
    let nodes = vec![Some("node-a".to_owned()), None];
    assert_eq!(
        next(&mut events).await,
        ("listed-1".to_owned(), nodes.clone())
    );
    server.apply(old_slice("later"));
    assert_eq!(next(&mut events).await, ("later-1".to_owned(), nodes));
}

#[tokio::test]
async fn slices_go_on_when_an_upgrade_of_the_server_brings_v1_and_removes_v1beta1() {
    let server = ApiServer::start();
    server.has_slices_of("v1beta1");
    server.apply(old_slice("before"));
    let mut events = follow(&server);
    assert_eq!(next(&mut events).await.0, "before-1");
    server.has_slices_of("v1");
    server.delete_object("EndpointSlice", "default", "before-1");
    server.apply(endpoints("default", "after", &["10.244.0.4"], 8080));
    server.compact();
    server.break_connections();
    assert_eq!(next(&mut events).await.0, "after-1");
}
