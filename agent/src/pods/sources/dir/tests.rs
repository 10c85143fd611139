//! On a real directory: which files count, and that each kind of change is noticed.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::Notify;

use super::super::{Annotations, Health, Missing, Question, SourceError, Sources};
use crate::config::{Need, Source, SourceConfig};
use crate::plan::PodRef;

use super::*;

const ANNOTATION: &str = "podwire.io/mtu";

fn start(directory: &Path) -> Arc<Sources> {
    Arc::new(Sources::start(&SourceConfig {
        order: vec![Source::Cni, Source::Dir],
        annotations: Need::Required,
        kube: None,
        dir: Some(directory.to_owned()),
    }))
}

async fn ask(sources: &Sources, name: &str, looked: &Notify) -> Result<String, SourceError> {
    let pod = PodRef {
        namespace: None,
        name: name.into(),
        uid: Some("any".into()),
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
    let answer = sources
        .ask(&question, Duration::from_secs(30), read)
        .await?;
    Ok(answer.value.unwrap_or_default())
}

async fn said(sources: &Sources, name: &str) -> String {
    ask(sources, name, &Notify::new()).await.unwrap()
}

/// Asks in a task of its own, which waits when this returns.
async fn asking(
    sources: &Arc<Sources>,
    name: &'static str,
) -> tokio::task::JoinHandle<Result<String, SourceError>> {
    let looked = Arc::new(Notify::new());
    let task = tokio::spawn({
        let (sources, looked) = (Arc::clone(sources), Arc::clone(&looked));
        async move { ask(&sources, name, &looked).await }
    });
    looked.notified().await;
    task
}

async fn health(sources: &Sources, wanted: impl FnMut(&Health) -> bool) -> String {
    let mut health = sources.known(Source::Dir).unwrap().health();
    let health = health.wait_for(wanted).await.unwrap();
    health
        .failing
        .clone()
        .map(|(_, text)| text)
        .unwrap_or_default()
}

async fn read_once(sources: &Sources) {
    health(sources, |health| health.is_read).await;
}

fn manifest(name: &str, mtu: u32) -> String {
    format!("kind: Pod\nmetadata: {{name: {name}, annotations: {{{ANNOTATION}: \"{mtu}\"}}}}\n")
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test]
async fn files_of_three_endings_are_read_and_others_are_not() {
    let dir = directory();
    for (file, name) in [
        ("a.yaml", "a"),
        ("b.yml", "b"),
        (".hidden.yaml", "h"),
        ("c.txt", "c"),
    ] {
        fs::write(dir.path().join(file), manifest(name, 1400)).unwrap();
    }
    let json = format!(
        r#"{{"kind":"Pod","metadata":{{"name":"d","annotations":{{"{ANNOTATION}":"1401"}}}}}}"#
    );
    fs::write(dir.path().join("d.json"), json).unwrap();
    fs::create_dir(dir.path().join("e.yaml")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("f.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sources = start(dir.path());
    read_once(&sources).await;
    for (name, mtu) in [("a", "1400"), ("b", "1400"), ("d", "1401")] {
        assert_eq!(said(&sources, name).await, mtu);
    }
    assert_eq!(sources.known(Source::Dir).unwrap().len(), 3);
    let problems = health(&sources, |health| health.failing.is_some()).await;
    assert!(
        problems.contains("e.yaml: not a regular file; "),
        "{problems}"
    );
    assert!(
        problems.contains("f.yaml: not a regular file"),
        "{problems}"
    );
}

#[tokio::test]
async fn a_file_that_is_written_moved_in_or_changed_ends_a_wait() {
    let dir = directory();
    let sources = start(dir.path());
    read_once(&sources).await;
    let add = asking(&sources, "written").await;
    fs::write(dir.path().join("w.yaml"), manifest("written", 1400)).unwrap();
    assert_eq!(add.await.unwrap().unwrap(), "1400");

    let add = asking(&sources, "moved").await;
    let elsewhere = directory();
    fs::write(elsewhere.path().join("m"), manifest("moved", 1401)).unwrap();
    fs::rename(elsewhere.path().join("m"), dir.path().join("m.yaml")).unwrap();
    assert_eq!(add.await.unwrap().unwrap(), "1401");

    fs::write(
        dir.path().join("b.yaml"),
        "kind: Pod\nmetadata: {name: bare}\n",
    )
    .unwrap();
    let add = asking(&sources, "bare").await;
    fs::write(dir.path().join("b.yaml"), manifest("bare", 1402)).unwrap();
    assert_eq!(add.await.unwrap().unwrap(), "1402");
}

#[tokio::test]
async fn a_file_that_is_removed_takes_its_pods_along() {
    let dir = directory();
    fs::write(
        dir.path().join("p.yaml"),
        "kind: Pod\nmetadata: {name: p}\n",
    )
    .unwrap();
    let sources = start(dir.path());
    read_once(&sources).await;
    let add = asking(&sources, "p").await;
    fs::remove_file(dir.path().join("p.yaml")).unwrap();
    let error = add.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "pod default/p was deleted from {} while this ADD ran",
            dir.path().display()
        )
    );
}

#[tokio::test]
async fn a_faulty_file_is_named_and_keeps_no_other_from_being_read() {
    let dir = directory();
    fs::write(dir.path().join("a.yaml"), "kind: [Pod\n").unwrap();
    fs::write(dir.path().join("b.yaml"), manifest("b", 1400)).unwrap();
    fs::write(dir.path().join("c.yaml"), manifest("b", 1500)).unwrap();
    let sources = start(dir.path());
    assert_eq!(said(&sources, "b").await, "1400");
    let problems = health(&sources, |health| health.failing.is_some()).await;
    let file = |name: &str| dir.path().join(name).display().to_string();
    assert!(
        problems.starts_with(&format!("{}: ", file("a.yaml"))),
        "{problems}"
    );
    let twice = format!(
        "{}: pod default/b is already in {}, which counts",
        file("c.yaml"),
        file("b.yaml")
    );
    assert!(problems.ends_with(&twice), "{problems}");
    assert!(
        sources.problems().is_empty(),
        "an ADD of a pod in a good file is served"
    );
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    fs::remove_file(dir.path().join("c.yaml")).unwrap();
    health(&sources, |health| health.failing.is_none()).await;
}

#[tokio::test]
async fn a_directory_may_come_later_and_go_and_come_again() {
    let above = directory();
    let dir = above.path().join("not/yet");
    let sources = start(&dir);
    health(&sources, |health| health.failing.is_some()).await;
    let [problem] = &sources.problems()[..] else {
        panic!()
    };
    assert!(problem.contains("No such file"), "{problem}");
    for name in ["first", "second"] {
        let add = asking(&sources, name).await;
        fs::create_dir(above.path().join("not")).unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("p.yaml"), manifest(name, 1400)).unwrap();
        assert_eq!(add.await.unwrap().unwrap(), "1400");
        fs::remove_dir_all(above.path().join("not")).unwrap();
        health(&sources, |health| health.failing.is_some()).await;
    }
    assert!(sources.problems().is_empty(), "what was read stays known");
}

#[tokio::test]
async fn a_mounted_config_map_changes_by_one_symlink() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    let version = |name: &str, mtu| {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("p.yaml"), manifest("p", mtu)).unwrap();
    };
    version("..1", 1400);
    std::os::unix::fs::symlink("..1", path("..data")).unwrap();
    std::os::unix::fs::symlink("..data/p.yaml", path("p.yaml")).unwrap();
    let sources = start(dir.path());
    assert_eq!(said(&sources, "p").await, "1400");
    let name = PodName {
        namespace: "default".into(),
        name: "p".into(),
    };
    let waiter = Arc::<super::super::Waiter>::default();
    let _wait = sources.known(Source::Dir).unwrap().wait_on(&name, &waiter);
    let mut changes = waiter.wake.subscribe();
    version("..2", 1500);
    std::os::unix::fs::symlink("..2", path("..new")).unwrap();
    fs::rename(path("..new"), path("..data")).unwrap();
    while said(&sources, "p").await != "1500" {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_request_without_pod_can_be_looked_up_nowhere() {
    let dir = directory();
    let sources = start(dir.path());
    let question = Question {
        pod: None,
        request: &Annotations::new(),
        wanted: ANNOTATION,
    };
    let nothing = |_: &Annotations| Ok(None::<()>);
    let answer = sources
        .ask(&question, Duration::from_secs(30), nothing)
        .await;
    match answer.unwrap_err() {
        SourceError::Missing {
            missing: Missing::PodName,
            ..
        } => {}
        other => panic!("{other}"),
    }
}
