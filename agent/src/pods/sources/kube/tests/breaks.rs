use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn after_a_break_the_watch_goes_on_from_the_last_bookmark() {
    let server = ApiServer::start();
    server.apply(annotated("p", "u1", "a"));
    let sources = watching(&server);
    // Changes elsewhere let the version grow without an event for this node; the bookmark tells of
    // it.
    for _ in 0..3 {
        server.apply(pod("n2", "ns", "q", "u2", json!({})));
    }
    server.bookmark();
    server.apply(annotated("last", "u3", "b"));
    ask(&sources, "last", "u3", LONG).await.unwrap();
    server.bookmark();
    server.end_watches(true);
    let requests = server.await_requests("a further watch", |requests| {
        requests
            .last()
            .is_some_and(|request| request.parameter("resourceVersion") == Some("7"))
    });
    let lists = requests
        .iter()
        .filter(|request| !request.is_watch())
        .count();
    assert_eq!(lists, 1, "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_version_lists_anew_and_what_is_gone_is_forgotten() {
    for by_status in [false, true] {
        let server = ApiServer::start();
        server.apply(annotated("gone", "u1", "a"));
        server.apply(annotated("stays", "u2", "a"));
        let sources = watching(&server);
        server.hold(true);
        server.break_connections();
        server.await_watches(0);
        server.delete("ns", "gone");
        server.apply(annotated("new", "u3", "b"));
        match by_status {
            true => server.compact_with_status(),
            false => server.compact(),
        }
        server.hold(false);
        assert_eq!(said(ask(&sources, "new", "u3", LONG).await), "b");
        assert_eq!(said(ask(&sources, "stays", "u2", LONG).await), "a");
        let missing = missing(ask(&sources, "gone", "u1", SHORT).await);
        assert!(matches!(missing, Missing::Pod { .. }), "{missing:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_away_known_pods_are_served_and_the_error_says_what_is_wrong() {
    let server = ApiServer::start();
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
    let server = ApiServer::start();
    server.hold(true);
    server.apply(annotated("p", "u1", "a"));
    let sources = start(server_access(&server, Token::None));
    server.await_requests("the list", |requests| !requests.is_empty());
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
    let server = ApiServer::start();
    server.end_watches(true);
    let sources = start(server_access(&server, Token::None));
    failing(&sources, "the server ended the watch at once").await;
    server.end_watches(false);
    let add = asking(&sources, "p", "u1").await;
    server.apply(annotated("p", "u1", "a"));
    assert_eq!(said(add.await.unwrap()), "a");
}
