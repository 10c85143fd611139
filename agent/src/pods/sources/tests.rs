//! The order of the sources and what each need means, on pods put there by hand.

use super::pods::Pods;
use super::*;

const ANNOTATION: &str = "k8s.ovn.org/pod-networks";

fn sources(order: &[Source], need: Need) -> Sources {
    let asked = |source: &Source| match source {
        Source::Cni => Origin::Request,
        other => Origin::Watched(Watched {
            source: *other,
            place: format!("{other:?}"),
            known: Known::default(),
        }),
    };
    Sources {
        order: order.iter().map(asked).collect(),
        need,
        nudge: Arc::default(),
    }
}

fn put(sources: &Sources, source: Source, uid: &str, annotations: &[(&str, &str)]) {
    let annotations = annotations
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let pod = Pod::new(Some(uid.to_owned()), annotations);
    sources.known(source).unwrap().apply(name(), pod).unwrap();
}

fn name() -> PodName {
    PodName {
        namespace: "ns".into(),
        name: "p".into(),
    }
}

async fn ask(sources: &Sources, request: &[(&str, &str)]) -> Result<Answer<String>, SourceError> {
    let pod = PodRef {
        namespace: Some("ns".into()),
        name: "p".into(),
        uid: Some("u1".into()),
    };
    let request = request
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let question = Question {
        pod: Some(&pod),
        request: &request,
        wanted: ANNOTATION,
    };
    let read = |annotations: &Annotations| Ok(annotations.get(ANNOTATION).cloned());
    sources.ask(&question, Duration::ZERO, read).await
}

#[test]
fn whether_a_pod_exists_only_an_api_server_that_answers_can_tell() {
    let beside = sources(&[Source::Cni, Source::Dir], Need::Required);
    put(&beside, Source::Dir, "u1", &[]);
    assert_eq!(beside.exists(&name()), None);
    let sources = sources(&[Source::Kube], Need::Required);
    assert_eq!(sources.exists(&name()), None, "nothing was read yet");
    let known = sources.known(Source::Kube).unwrap();
    known.replace(Pods::default());
    assert_eq!(sources.exists(&name()), Some(false));
    put(&sources, Source::Kube, "u1", &[]);
    assert_eq!(sources.exists(&name()), Some(true));
    known.fails("gone".into());
    assert_eq!(sources.exists(&name()), None);
}

#[tokio::test]
async fn the_first_source_in_order_that_answers_is_believed() {
    use Source::{Cni, Dir, Kube};
    for (order, expected) in [
        ([Cni, Kube, Dir], "request"),
        ([Kube, Cni, Dir], "kube"),
        ([Dir, Kube, Cni], "dir"),
    ] {
        let sources = sources(&order, Need::Required);
        put(&sources, Kube, "u1", &[(ANNOTATION, "kube")]);
        put(&sources, Dir, "u1", &[(ANNOTATION, "dir")]);
        let answer = ask(&sources, &[(ANNOTATION, "request")]).await.unwrap();
        assert_eq!(answer.value.as_deref(), Some(expected));
        assert_eq!(
            answer.annotations[ANNOTATION], expected,
            "one source's word, unmixed"
        );
    }
}

#[tokio::test]
async fn one_that_says_nothing_on_the_question_is_passed_over() {
    let sources = sources(&[Source::Cni, Source::Kube, Source::Dir], Need::Required);
    put(&sources, Source::Kube, "u1", &[("podwire.io/mtu", "1400")]);
    put(&sources, Source::Dir, "u1", &[(ANNOTATION, "dir")]);
    let answer = ask(&sources, &[("ovn", "{}")]).await.unwrap();
    assert_eq!(answer.value.as_deref(), Some("dir"));
}

#[tokio::test]
async fn with_a_request_that_answers_the_api_still_says_the_uid() {
    let sources = sources(&[Source::Cni, Source::Kube], Need::Required);
    put(
        &sources,
        Source::Kube,
        "mirror",
        &[("kubernetes.io/config.mirror", "u1")],
    );
    let answer = ask(&sources, &[(ANNOTATION, "request")]).await.unwrap();
    assert_eq!(answer.uid.as_deref(), Some("mirror"));
}

#[tokio::test]
async fn without_need_a_known_pod_is_enough_and_an_unknown_one_is_awaited() {
    let sources = sources(&[Source::Cni, Source::Kube], Need::Optional);
    let error = ask(&sources, &[]).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("pod ns/p is not known to Kube after "),
        "{error}"
    );
    put(&sources, Source::Kube, "u1", &[("podwire.io/mtu", "1400")]);
    let answer = ask(&sources, &[]).await.unwrap();
    assert_eq!((answer.value, answer.annotations.len()), (None, 1));
}

#[tokio::test]
async fn without_need_and_without_watched_source_the_request_is_all_there_is() {
    let optional = sources(&[Source::Cni], Need::Optional);
    let answer = ask(&optional, &[("podwire.io/mtu", "1400")]).await.unwrap();
    assert_eq!((answer.value, answer.annotations.len()), (None, 1));
    let required = sources(&[Source::Cni], Need::Required);
    let error = ask(&required, &[]).await.unwrap_err().to_string();
    let expected =
        format!("the request for pod ns/p has no {ANNOTATION}, and no other source is set up");
    assert_eq!(error, expected);
}

#[tokio::test]
async fn what_is_nearest_to_an_answer_is_what_the_error_tells() {
    let sources = sources(&[Source::Kube, Source::Dir], Need::Required);
    let error = ask(&sources, &[]).await.unwrap_err().to_string();
    assert!(
        error.starts_with("pod ns/p is not known to Kube nor to Dir after "),
        "{error}"
    );
    put(&sources, Source::Dir, "u0", &[]);
    let error = ask(&sources, &[]).await.unwrap_err().to_string();
    assert!(error.ends_with("has uid u0"), "{error}");
    put(&sources, Source::Kube, "u1", &[("podwire.io/mtu", "1400")]);
    let error = ask(&sources, &[]).await.unwrap_err().to_string();
    assert!(
        error.ends_with("its annotations: podwire.io/mtu"),
        "{error}"
    );
}

#[tokio::test]
async fn a_wait_that_is_dropped_leaves_nothing_behind() {
    let sources = sources(&[Source::Kube], Need::Required);
    let known = sources.known(Source::Kube).unwrap();
    let waiter = Arc::default();
    drop(known.wait_on(&name(), &waiter));
    put(&sources, Source::Kube, "u1", &[]);
    known.delete(&name());
    assert!(matches!(known.see(&name()), Lookup::Unknown));
    let other = Arc::default();
    let (first, second) = (
        known.wait_on(&name(), &waiter),
        known.wait_on(&name(), &other),
    );
    put(&sources, Source::Kube, "u1", &[]);
    known.delete(&name());
    drop(first);
    assert!(matches!(known.see(&name()), Lookup::Gone(_)));
    drop(second);
    assert!(matches!(known.see(&name()), Lookup::Unknown));
}

#[test]
fn a_glance_takes_the_nearer_source_and_waits_for_none() {
    let sources = sources(&[Source::Cni, Source::Kube], Need::Required);
    put(
        &sources,
        Source::Kube,
        "u1",
        &[("podwire.io/mtu", "1400"), ("ovn", "kube")],
    );
    let pod = PodRef {
        namespace: Some("ns".into()),
        name: "p".into(),
        uid: Some("u1".into()),
    };
    let request = Annotations::from([("ovn".to_owned(), "request".to_owned())]);
    let question = Question {
        pod: Some(&pod),
        request: &request,
        wanted: "",
    };
    let seen = sources.glance(&question);
    assert_eq!(
        (seen["ovn"].as_str(), seen["podwire.io/mtu"].as_str()),
        ("request", "1400")
    );
    let other = PodRef {
        uid: Some("u2".into()),
        ..pod.clone()
    };
    assert_eq!(
        sources.glance(&Question {
            pod: Some(&other),
            ..question
        }),
        request
    );
}

/// What an ADD that went by the answer is told after a change.
async fn after(change: impl FnOnce(&Sources), by: Source) -> Option<String> {
    let sources = sources(&[Source::Cni, by], Need::Required);
    put(&sources, by, "u1", &[(ANNOTATION, "a")]);
    let answer = ask(&sources, &[]).await.unwrap();
    change(&sources);
    let pod = PodRef {
        namespace: Some("ns".into()),
        name: "p".into(),
        uid: Some("u1".into()),
    };
    let question = Question {
        pod: Some(&pod),
        request: &Annotations::new(),
        wanted: "",
    };
    let read = |annotations: &Annotations| Ok(annotations.get(ANNOTATION).cloned());
    let overturned = sources.overturned(&question, &answer, read);
    let overturned = tokio::time::timeout(Duration::ZERO, overturned).await;
    overturned.ok().map(|error| error.to_string())
}

#[tokio::test]
async fn an_answer_is_overturned_by_the_pods_end_its_successor_and_other_words() {
    let by = Source::Kube;
    let deleted = after(|sources| sources.known(by).unwrap().delete(&name()), by).await;
    let expected = "pod ns/p (uid u1) was deleted from Kube while this ADD ran";
    assert_eq!(deleted.as_deref(), Some(expected));
    let replaced = after(|sources| put(sources, by, "u2", &[(ANNOTATION, "a")]), by).await;
    let expected =
        "pod ns/p with uid u1 was replaced by one with uid u2 in Kube while this ADD ran";
    assert_eq!(replaced.as_deref(), Some(expected));
    for other in [&[(ANNOTATION, "b")][..], &[]] {
        let changed = after(|sources| put(sources, by, "u1", other), by).await;
        let expected = "the annotations of pod ns/p changed in Kube while this ADD ran";
        assert_eq!(changed.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn an_answer_holds_while_nothing_that_it_says_changes() {
    let by = Source::Kube;
    assert_eq!(after(|_| {}, by).await, None);
    let more = [(ANNOTATION, "a"), ("podwire.io/mtu", "1400")];
    assert_eq!(
        after(|sources| put(sources, by, "u1", &more), by).await,
        None
    );
}

/// Pods of a source that has been read, without annotation.
fn bare_pods(known: &Known) -> Vec<PodRef> {
    let pod = |number| PodRef {
        namespace: Some("ns".into()),
        name: format!("p{number}"),
        uid: Some("u1".into()),
    };
    let pods: Vec<PodRef> = (0..5).map(pod).collect();
    known.replace(listed(&pods, &[]));
    pods
}

/// What the API server lists when some of its pods are annotated.
fn listed(pods: &[PodRef], annotated: &[usize]) -> Pods {
    let mut listed = Pods::default();
    for (number, pod) in pods.iter().enumerate() {
        let is_annotated = annotated.contains(&number);
        let annotation = is_annotated.then(|| (ANNOTATION.to_owned(), "a".to_owned()));
        let known = Pod::new(pod.uid.clone(), annotation);
        listed.insert(PodName::of(pod), known).unwrap();
    }
    listed
}

/// Polls each future once, as a change would that woke them all; those that end are removed.
fn poll<F: Future>(futures: &mut Vec<std::pin::Pin<Box<F>>>) -> usize {
    let before = futures.len();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    futures.retain_mut(|future| future.as_mut().poll(&mut context).is_pending());
    before - futures.len()
}

#[tokio::test]
async fn a_change_of_one_pod_is_read_by_the_add_that_waits_for_it_alone() {
    let sources = sources(&[Source::Kube, Source::Dir], Need::Required);
    let known = sources.known(Source::Kube).unwrap();
    let pods = bare_pods(known);
    let (request, reads) = (Annotations::new(), std::cell::Cell::new(0));
    let read = |annotations: &Annotations| {
        reads.set(reads.get() + 1);
        Ok(annotations.get(ANNOTATION).cloned())
    };
    let question = |pod| Question {
        pod: Some(pod),
        request: &request,
        wanted: ANNOTATION,
    };
    let ask = |pod| {
        let (sources, read) = (&sources, &read);
        Box::pin(async move {
            sources
                .ask(&question(pod), Duration::from_secs(3600), read)
                .await
        })
    };
    let mut asking: Vec<_> = pods.iter().map(ask).collect();
    assert_eq!((poll(&mut asking), reads.take()), (0, 5));
    let annotated = Pod::new(Some("u1".into()), [(ANNOTATION.into(), "a".into())]);
    known.apply(PodName::of(&pods[2]), annotated).unwrap();
    assert_eq!((poll(&mut asking), reads.take()), (1, 1));
    known.replace(listed(&pods, &[2, 3]));
    assert_eq!((poll(&mut asking), reads.take()), (1, 1), "a list");
    known.delete(&PodName::of(&pods[0]));
    assert_eq!((poll(&mut asking), reads.take()), (1, 0), "a deletion");
    known.fails("connection lost".into());
    assert_eq!((poll(&mut asking), reads.take()), (0, 2), "a failure");
    known.fails("connection refused".into());
    assert_eq!(
        (poll(&mut asking), reads.take()),
        (0, 0),
        "the same failure"
    );
    known.recovered();
    assert_eq!((poll(&mut asking), reads.take()), (0, 2), "its end");
    sources
        .known(Source::Dir)
        .unwrap()
        .replace(listed(&pods, &[4]));
    assert_eq!((poll(&mut asking), reads.take()), (1, 4), "another source");
}

#[tokio::test]
async fn what_an_add_goes_by_is_read_again_only_when_its_annotations_change() {
    let sources = sources(&[Source::Kube], Need::Required);
    let known = sources.known(Source::Kube).unwrap();
    let pods = bare_pods(known);
    known.replace(listed(&pods, &[0, 1, 2, 3, 4]));
    let (request, reads) = (Annotations::new(), std::cell::Cell::new(0));
    let read = |annotations: &Annotations| {
        reads.set(reads.get() + 1);
        Ok(annotations.get(ANNOTATION).cloned())
    };
    let follow = |pod| {
        let (sources, read, request) = (&sources, &read, &request);
        Box::pin(async move {
            let question = Question {
                pod: Some(pod),
                request,
                wanted: ANNOTATION,
            };
            let answer = sources.ask(&question, Duration::ZERO, read).await.unwrap();
            sources.overturned(&question, &answer, read).await
        })
    };
    let mut following: Vec<_> = pods.iter().map(follow).collect();
    assert_eq!((poll(&mut following), reads.take()), (0, 5));
    assert_eq!(sources.awaited(), [], "their annotations have come");
    known.replace(listed(&pods, &[0, 1, 3, 4]));
    assert_eq!((poll(&mut following), reads.take()), (1, 1));
}
