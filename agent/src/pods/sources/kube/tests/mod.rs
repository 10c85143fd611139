//! Against a stand-in API server: what the watch knows, when, and what becomes of it when the
//! server fails.

mod access;
mod breaks;
mod hostile;

use std::io::Write as _;
use std::sync::Arc;

use podwire_tests::apiserver::{ApiServer, pod};
use serde_json::{Value, json};

use super::super::{Annotations, Answer, Missing, Question, SourceError, Sources};
use super::*;
use crate::config::{Access, Need, Source, SourceConfig, Token};
use crate::plan::PodRef;

const ANNOTATION: &str = "k8s.ovn.org/pod-networks";
/// For waits that end by an event.
const LONG: Duration = Duration::from_secs(30);
/// For waits that end in vain.
const SHORT: Duration = Duration::from_millis(300);

fn server_access(server: &ApiServer, token: Token) -> Access {
    Access::Server {
        url: server.url(),
        ca: None,
        token,
    }
}

fn start(access: Access) -> Arc<Sources> {
    let kube = KubeConfig {
        node: "n1".into(),
        access,
    };
    Arc::new(Sources::start(&SourceConfig {
        order: vec![Source::Cni, Source::Kube],
        annotations: Need::Required,
        kube: Some(kube),
        dir: None,
    }))
}

fn watching(server: &ApiServer) -> Arc<Sources> {
    let sources = start(server_access(server, Token::None));
    server.await_watches(1);
    sources
}

async fn ask(
    sources: &Sources,
    name: &str,
    uid: &str,
    patience: Duration,
) -> Result<Answer<String>, SourceError> {
    ask_and_tell(sources, name, uid, patience, &Notify::new()).await
}

/// Tells of each look at the sources.
async fn ask_and_tell(
    sources: &Sources,
    name: &str,
    uid: &str,
    patience: Duration,
    looked: &Notify,
) -> Result<Answer<String>, SourceError> {
    let pod = PodRef {
        namespace: Some("ns".into()),
        name: name.into(),
        uid: Some(uid.into()),
    };
    let question = Question {
        pod: Some(&pod),
        request: &Annotations::new(),
        wanted: ANNOTATION,
    };
    let read = |annotations: &Annotations| {
        looked.notify_one();
        Ok(annotations.get(ANNOTATION).cloned())
    };
    sources.ask(&question, patience, read).await
}

/// Asks in a task of its own, which has looked once, and so waits, when this returns.
async fn asking(
    sources: &Arc<Sources>,
    name: &'static str,
    uid: &'static str,
) -> tokio::task::JoinHandle<Result<Answer<String>, SourceError>> {
    let looked = Arc::new(Notify::new());
    let task = tokio::spawn({
        let (sources, looked) = (Arc::clone(sources), Arc::clone(&looked));
        async move { ask_and_tell(&sources, name, uid, LONG, &looked).await }
    });
    looked.notified().await;
    task
}

fn said(answer: Result<Answer<String>, SourceError>) -> String {
    answer.unwrap().value.unwrap()
}

fn annotated(name: &str, uid: &str, value: &str) -> Value {
    pod(
        "n1",
        "ns",
        name,
        uid,
        json!({ ANNOTATION: value, "other": "not kept" }),
    )
}

fn bare(name: &str, uid: &str) -> Value {
    pod("n1", "ns", name, uid, json!({}))
}

fn missing(answer: Result<Answer<String>, SourceError>) -> Missing {
    match answer.unwrap_err() {
        SourceError::Missing { missing, .. } => missing,
        other => panic!("{other}"),
    }
}

/// Waits until the source fails of something that says `what`: a broken connection may come before
/// it.
async fn failing(sources: &Sources, what: &str) -> String {
    let mut health = sources.known(Source::Kube).unwrap().health();
    let problem = |health: &super::super::Health| health.failing.clone().map(|(_, text)| text);
    let says_so =
        |health: &super::super::Health| problem(health).is_some_and(|text| text.contains(what));
    let health = health.wait_for(says_so).await.unwrap();
    problem(&health).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_this_node_are_known_and_nothing_but_their_metadata_is_asked_for() {
    let server = ApiServer::start();
    server.apply(annotated("here", "u1", "a"));
    server.apply(pod("n2", "ns", "there", "u2", json!({ ANNOTATION: "b" })));
    let sources = watching(&server);
    let answer = ask(&sources, "here", "u1", LONG).await.unwrap();
    assert_eq!(answer.value.as_deref(), Some("a"));
    assert_eq!(answer.uid.as_deref(), Some("u1"));
    assert_eq!(answer.annotations.len(), 1, "{:?}", answer.annotations);
    let other = missing(ask(&sources, "there", "u2", SHORT).await);
    assert!(matches!(other, Missing::Pod { .. }), "{other:?}");
    for request in server.requests() {
        assert_eq!(request.parameter("fieldSelector"), Some("spec.nodeName=n1"));
        assert!(
            request.accept.contains("as=PartialObjectMetadata"),
            "{request:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_more_pods_than_a_page_is_listed_whole() {
    let server = ApiServer::start();
    for number in 0..1001 {
        server.apply(annotated(&format!("p{number}"), "u", "a"));
    }
    let sources = watching(&server);
    assert_eq!(sources.known(Source::Kube).unwrap().len(), 1001);
    let lists = server
        .requests()
        .iter()
        .filter(|request| !request.is_watch())
        .count();
    assert_eq!(lists, 1001_usize.div_ceil(PAGE as usize));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_and_an_annotation_that_come_later_end_the_wait() {
    let server = ApiServer::start();
    let sources = watching(&server);
    let add = asking(&sources, "p", "u1").await;
    server.apply(bare("p", "u1"));
    server.apply(annotated("p", "u1", "a"));
    assert_eq!(said(add.await.unwrap()), "a");
    let polls = server
        .requests()
        .iter()
        .filter(|request| !request.is_watch())
        .count();
    assert_eq!(
        polls, 1,
        "it was listed once, and nothing was asked for after that"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_tells_an_unknown_pod_from_one_without_annotation() {
    let server = ApiServer::start();
    server.apply(bare("bare", "u1"));
    let sources = watching(&server);
    let error = ask(&sources, "nobody", "u2", SHORT)
        .await
        .unwrap_err()
        .to_string();
    let place = format!("{} for node n1", server.url());
    let start = format!("pod ns/nobody is not known to {place} after ");
    assert!(error.starts_with(&start), "{error}");
    let error = ask(&sources, "bare", "u1", SHORT)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("pod ns/bare is not annotated after "),
        "{error}"
    );
    let end = format!(": awaited {ANNOTATION}; its annotations: none that podwire reads");
    assert!(error.ends_with(&end), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_pod_of_the_same_name_is_not_taken_for_it() {
    let server = ApiServer::start();
    server.apply(annotated("p", "old", "a"));
    let sources = watching(&server);
    let error = ask(&sources, "p", "new", SHORT)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("of uid new (K8S_POD_UID)"), "{error}");
    assert!(
        error.ends_with("the pod of that name there has uid old"),
        "{error}"
    );
    let add = asking(&sources, "p", "new").await;
    server.delete("ns", "p");
    server.apply(annotated("p", "new", "b"));
    assert_eq!(said(add.await.unwrap()), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pods_mirror_has_another_uid_which_is_what_ovn_knows() {
    let server = ApiServer::start();
    for (name, mark) in [
        ("m", "kubernetes.io/config.mirror"),
        ("h", "kubernetes.io/config.hash"),
    ] {
        server.apply(pod(
            "n1",
            "ns",
            name,
            "mirror",
            json!({ ANNOTATION: "a", mark: "manifest" }),
        ));
    }
    let sources = watching(&server);
    for name in ["m", "h"] {
        let answer = ask(&sources, name, "manifest", LONG).await.unwrap();
        assert_eq!(answer.uid.as_deref(), Some("mirror"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_ends_when_the_pod_is_deleted() {
    let server = ApiServer::start();
    server.apply(bare("p", "u1"));
    let sources = watching(&server);
    let add = asking(&sources, "p", "u1").await;
    server.delete("ns", "p");
    let error = add.await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::PodDeleted { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("pod ns/p (uid u1) was deleted"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_came_and_went_between_two_looks_was_deleted() {
    let server = ApiServer::start();
    let sources = watching(&server);
    let add = asking(&sources, "p", "u1").await;
    server.apply(bare("p", "u1"));
    server.delete("ns", "p");
    let error = add.await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::PodDeleted { .. }), "{error}");
}
