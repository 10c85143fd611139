//! Against a stand-in API server: what the watch knows, when, and what becomes of it when the server fails.

use std::io::Write as _;
use std::sync::Arc;

use podwire_tests::apiserver::{ApiServer, pod};
use serde_json::{Value, json};

use super::super::{Annotations, Answer, Lack, Question, SourceError, Sources};
use super::*;
use crate::config::{KubeAccess, Need, Source, SourceConfig, Token};
use crate::plan::PodRef;

const ANNOTATION: &str = "k8s.ovn.org/pod-networks";
/// For waits that end by an event.
const LONG: Duration = Duration::from_secs(30);
/// For waits that end in vain.
const SHORT: Duration = Duration::from_millis(300);

fn server_access(server: &ApiServer, token: Token) -> KubeAccess {
    KubeAccess::Server {
        url: server.url(),
        ca: None,
        token,
    }
}

fn start(access: KubeAccess) -> Arc<Sources> {
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
    server.await_watches(1).unwrap();
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
    answer.unwrap().said.unwrap()
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

fn lack(answer: Result<Answer<String>, SourceError>) -> Lack {
    match answer.unwrap_err() {
        SourceError::Lacking { lack, .. } => lack,
        other => panic!("{other}"),
    }
}

/// Waits until the source fails of something that says `what`: a broken connection may come before it.
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
    let server = ApiServer::start().unwrap();
    server.apply(annotated("here", "u1", "a"));
    server.apply(pod("n2", "ns", "there", "u2", json!({ ANNOTATION: "b" })));
    let sources = watching(&server);
    let answer = ask(&sources, "here", "u1", LONG).await.unwrap();
    assert_eq!(answer.said.as_deref(), Some("a"));
    assert_eq!(answer.uid.as_deref(), Some("u1"));
    assert_eq!(answer.annotations.len(), 1, "{:?}", answer.annotations);
    let other = lack(ask(&sources, "there", "u2", SHORT).await);
    assert!(matches!(other, Lack::Pod { .. }), "{other:?}");
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
    let server = ApiServer::start().unwrap();
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
    assert_eq!(lists, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_and_an_annotation_that_come_later_end_the_wait() {
    let server = ApiServer::start().unwrap();
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
    let server = ApiServer::start().unwrap();
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
    let server = ApiServer::start().unwrap();
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
    let server = ApiServer::start().unwrap();
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
    let server = ApiServer::start().unwrap();
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
    let server = ApiServer::start().unwrap();
    let sources = watching(&server);
    let add = asking(&sources, "p", "u1").await;
    server.apply(bare("p", "u1"));
    server.delete("ns", "p");
    let error = add.await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::PodDeleted { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_break_the_watch_goes_on_from_the_last_bookmark() {
    let server = ApiServer::start().unwrap();
    server.apply(annotated("p", "u1", "a"));
    let sources = watching(&server);
    // Changes elsewhere let the version grow without an event for this node; the bookmark tells of it.
    for _ in 0..3 {
        server.apply(pod("n2", "ns", "q", "u2", json!({})));
    }
    server.bookmark();
    server.apply(annotated("last", "u3", "b"));
    ask(&sources, "last", "u3", LONG).await.unwrap();
    server.bookmark();
    server.end_watches(true);
    let requests = server
        .await_requests("a further watch", |requests| {
            requests
                .last()
                .is_some_and(|request| request.parameter("resourceVersion") == Some("7"))
        })
        .unwrap();
    let lists = requests
        .iter()
        .filter(|request| !request.is_watch())
        .count();
    assert_eq!(lists, 1, "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_version_lists_anew_and_what_is_gone_is_forgotten() {
    for by_status in [false, true] {
        let server = ApiServer::start().unwrap();
        server.apply(annotated("gone", "u1", "a"));
        server.apply(annotated("stays", "u2", "a"));
        let sources = watching(&server);
        server.hold(true);
        server.break_connections();
        server.await_watches(0).unwrap();
        server.delete("ns", "gone");
        server.apply(annotated("new", "u3", "b"));
        match by_status {
            true => server.compact_with_status(),
            false => server.compact(),
        }
        server.hold(false);
        assert_eq!(said(ask(&sources, "new", "u3", LONG).await), "b");
        assert_eq!(said(ask(&sources, "stays", "u2", LONG).await), "a");
        let lack = lack(ask(&sources, "gone", "u1", SHORT).await);
        assert!(matches!(lack, Lack::Pod { .. }), "{lack:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_away_known_pods_are_served_and_the_error_says_what_is_wrong() {
    let server = ApiServer::start().unwrap();
    server.apply(annotated("p", "u1", "a"));
    let sources = watching(&server);
    server.accept_tokens(Some(&["another"]));
    server.break_connections();
    failing(&sources, "Unauthorized").await;
    assert_eq!(said(ask(&sources, "p", "u1", LONG).await), "a");
    assert!(sources.problems().is_empty(), "what is known is served");
    let error = ask(&sources, "new", "u2", SHORT)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("has been failing for") && error.contains("Unauthorized"),
        "{error}"
    );
    let add = asking(&sources, "new", "u2").await;
    server.accept_tokens(None);
    server.apply(annotated("new", "u2", "b"));
    assert_eq!(said(add.await.unwrap()), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_yet_makes_the_source_not_ready() {
    let server = ApiServer::start().unwrap();
    server.hold(true);
    server.apply(annotated("p", "u1", "a"));
    let sources = start(server_access(&server, Token::None));
    server
        .await_requests("the list", |requests| !requests.is_empty())
        .unwrap();
    let problem = format!(
        "the pods of {} for node n1 are not known: no answer yet",
        server.url()
    );
    assert_eq!(sources.problems(), [problem]);
    let add = asking(&sources, "p", "u1").await;
    server.hold(false);
    assert_eq!(said(add.await.unwrap()), "a");
    assert!(sources.problems().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_each_watch_at_once_counts_as_failing() {
    let server = ApiServer::start().unwrap();
    server.end_watches(true);
    let sources = start(server_access(&server, Token::None));
    failing(&sources, "the server ended the watch at once").await;
    server.end_watches(false);
    let add = asking(&sources, "p", "u1").await;
    server.apply(annotated("p", "u1", "a"));
    assert_eq!(said(add.await.unwrap()), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_rotated_in_its_file_is_used_for_the_next_request() {
    let server = ApiServer::start().unwrap();
    server.accept_tokens(Some(&["first"]));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "first").unwrap();
    let sources = start(server_access(&server, Token::File(file.path().into())));
    server.await_watches(1).unwrap();
    server.accept_tokens(Some(&["second"]));
    server.apply(annotated("p", "u1", "a"));
    assert_eq!(
        said(ask(&sources, "p", "u1", LONG).await),
        "a",
        "the watch outlives its token"
    );
    server.break_connections();
    failing(&sources, "Unauthorized").await;
    std::fs::write(file.path(), "second\n").unwrap();
    let add = asking(&sources, "q", "u2").await;
    server.apply(annotated("q", "u2", "b"));
    assert_eq!(said(add.await.unwrap()), "b");
    std::fs::remove_file(file.path()).unwrap();
    server.break_connections();
    let problem = failing(&sources, "read token").await;
    assert!(problem.contains("No such file"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn https_is_spoken_to_a_server_whose_ca_is_known_and_to_no_other() {
    let server = ApiServer::start_tls().unwrap();
    let other = ApiServer::start_tls().unwrap();
    server.apply(annotated("p", "u1", "a"));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(server.ca().as_bytes()).unwrap();
    let access = |url: String| KubeAccess::Server {
        url,
        ca: Some(file.path().into()),
        token: Token::None,
    };
    let sources = start(access(server.url()));
    assert_eq!(said(ask(&sources, "p", "u1", LONG).await), "a");
    let sources = start(access(other.url()));
    failing(&sources, "certificate").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_leads_to_the_server_and_one_that_needs_a_program_is_refused() {
    let server = ApiServer::start_tls().unwrap();
    server.accept_tokens(Some(&["secret"]));
    server.apply(annotated("p", "u1", "a"));
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("ca.crt"), server.ca()).unwrap();
    std::fs::write(path("token"), "secret").unwrap();
    let kubeconfig = |user: Value| {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [{ "name": "k", "cluster": {
                "server": server.url(), "certificate-authority": path("ca.crt"),
            } }],
            "users": [{ "name": "u", "user": user }],
        })
    };
    let with_token = kubeconfig(json!({ "tokenFile": path("token") }));
    std::fs::write(path("good"), with_token.to_string()).unwrap();
    let sources = start(KubeAccess::Kubeconfig(path("good")));
    assert_eq!(said(ask(&sources, "p", "u1", LONG).await), "a");

    let program =
        json!({ "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false" });
    let with_program = kubeconfig(json!({ "exec": program }));
    std::fs::write(path("bad"), with_program.to_string()).unwrap();
    let sources = start(KubeAccess::Kubeconfig(path("bad")));
    failing(&sources, "its user needs a program (exec)").await;
    let sources = start(KubeAccess::Kubeconfig(path("none")));
    failing(&sources, "none: No such file").await;
    std::fs::write(path("half"), b"\xff\xfea").unwrap();
    let sources = start(KubeAccess::Kubeconfig(path("half")));
    failing(&sources, "half: stream did not contain valid UTF-8").await;
}

#[tokio::test(start_paused = true)]
async fn in_an_hour_of_failures_the_server_is_asked_a_bounded_number_of_times_and_at_once_when_an_add_waits()
 {
    let nudge = Notify::new();
    let mut pause = Pause::default();
    let hour = Duration::from_secs(3600);
    let began = tokio::time::Instant::now();
    let mut tries = 0;
    while began.elapsed() < hour {
        pause.wait(&nudge).await;
        tries += 1;
    }
    assert!((120..=250).contains(&tries), "{tries} tries in an hour");

    let began = tokio::time::Instant::now();
    nudge.notify_one();
    pause.wait(&nudge).await;
    assert_eq!(began.elapsed(), Pause::NUDGED);
}

#[test]
fn pauses_double_up_to_a_bound_and_half_of_each_is_chance() {
    let mut pause = Pause::default();
    let least: Vec<u128> = (0..10).map(|_| pause.next(0).as_millis()).collect();
    assert_eq!(
        least,
        [100, 200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]
    );
    assert_eq!(pause.next(u64::MAX), Pause::LONGEST);
    pause.reset();
    assert_eq!(pause.next(u64::MAX), Pause::SHORTEST);
}
