//! A server that sends without end: what is wrong is told, what was known stays, and what comes
//! after it is served.

use podwire_apiserver::bounds::LARGEST_ANSWER;
use podwire_apiserver::watch::MOST_PAGES;
use podwire_tests::apiserver::Hostile;

use super::*;
use crate::pods::sources::pods::MOST_PODS;

async fn withstands(hostile: Hostile, what: &str) {
    let server = ApiServer::start();
    server.apply(annotated("p", "u1", "a"));
    let sources = watching(&server);
    server.misbehave(Some(hostile));
    // Lists are asked for only when the version has expired.
    server.compact();
    let problem = failing(&sources, what).await;
    assert!(problem.len() < 1000, "{} bytes: {problem}", problem.len());
    assert_eq!(said(ask(&sources, "p", "u1", LONG).await), "a");
    let add = asking(&sources, "new", "u2").await;
    server.apply(annotated("new", "u2", "b"));
    server.misbehave(None);
    assert_eq!(said(add.await.unwrap()), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_text_of_two_megabytes_is_cut() {
    withstands(Hostile::LongError, r#""code":500"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_end_is_given_up() {
    withstands(
        Hostile::EndlessList,
        &format!("answer is larger than {LARGEST_ANSWER} bytes"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_pages_without_end_is_given_up() {
    let what = format!("list does not end: it has more than {MOST_PAGES} pages");
    withstands(Hostile::EndlessPages, &what).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_json_is_told_in_a_line() {
    withstands(Hostile::NoJson, "expected").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_a_watch_without_end_is_given_up() {
    let what = format!("watch is longer than {LARGEST_ANSWER} bytes");
    withstands(Hostile::EndlessLine, &what).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_end_are_counted() {
    let what = format!("more than {MOST_PODS} pods");
    withstands(Hostile::EndlessPods, &what).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_too_long_for_a_request_is_not_gone_on_from() {
    withstands(
        Hostile::LongVersion,
        "sent a resourceVersion of 100000 bytes",
    )
    .await;
}
