//! Pod manifests in a directory, for machines without Kubernetes: all are read at start and after
//! each change.
//!
//! A directory of manifests is small, and one change often concerns several files or, in a mounted
//! ConfigMap, a symlink. So inotify events only say when to read, never what has changed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use podwire_daemon::file::if_there;
use podwire_daemon::files::FileEvents;
use podwire_daemon::output::some;

use super::manifest;
use super::pods::Pods;
use super::{Known, PodName};
use podwire_apiserver::read_text;

/// The suffixes of files that are read.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// The largest file that is read, in bytes.
const LARGEST: usize = 4 << 20;
/// The number of problems reported one by one.
const MOST_PROBLEMS: usize = 8;

/// Watches until the runtime ends, or inotify itself fails, which is logged.
pub(super) async fn watch(directory: PathBuf, known: Known) {
    let failure = match follow(&directory, &known).await {
        Ok(never) => match never {},
        Err(error) => format!("watch {}: {error}", directory.display()),
    };
    tracing::error!(error = failure, "manifests are no longer followed");
    known.fails(failure);
}

async fn follow(directory: &Path, known: &Known) -> io::Result<std::convert::Infallible> {
    loop {
        // The watch is set before the files are read, so that no change is missed.
        let changes = FileEvents::of(directory)?;
        match read_all(directory.to_owned()).await {
            Ok(found) => {
                known.replace(found.pods);
                report(directory, known, &found.problems);
            }
            Err(error) => report(directory, known, &[error.to_string()]),
        }
        changes.next().await?;
    }
}

fn report(directory: &Path, known: &Known, problems: &[String]) {
    if problems.is_empty() {
        return known.recovered();
    }
    let problems = some(problems, MOST_PROBLEMS, "; ", "; and ");
    tracing::warn!(directory = %directory.display(), problems, "not everything could be read");
    known.fails(problems);
}

#[derive(Debug, Default)]
struct Found {
    pods: Pods,
    problems: Vec<String>,
}

async fn read_all(directory: PathBuf) -> io::Result<Found> {
    tokio::task::spawn_blocking(move || read_files(&directory))
        .await
        .map_err(io::Error::other)?
}

fn read_files(directory: &Path) -> io::Result<Found> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) && !is_hidden {
            files.push(path);
        }
    }
    files.sort_unstable();
    let mut found = Found::default();
    let mut writers: BTreeMap<PodName, PathBuf> = BTreeMap::new();
    for path in files {
        let file = path.display();
        let pods = match read_file(&path).and_then(|text| match text {
            Some(text) => manifest::parse(&text),
            None => Ok(Vec::new()),
        }) {
            Ok(pods) => pods,
            Err(problem) => {
                found.problems.push(format!("{file}: {problem}"));
                continue;
            }
        };
        for (name, pod) in pods {
            match writers.get(&name) {
                Some(first) => found.problems.push(format!(
                    "{file}: pod {name} is already in {}, which counts",
                    first.display()
                )),
                None => match found.pods.insert(name.clone(), pod) {
                    Ok(_) => drop(writers.insert(name, path.clone())),
                    Err(too_much) => {
                        found.problems.push(format!("{file}: {too_much}"));
                        return Ok(found);
                    }
                },
            }
        }
    }
    Ok(found)
}

/// A file's text; None if it was removed since it was listed.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    if_there(read_text(path, LARGEST)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
