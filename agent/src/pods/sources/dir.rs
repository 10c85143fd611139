//! Pod manifests in a directory, for machines without Kubernetes: read whole at start and after each change.
//!
//! A directory of manifests is small, and one change is often several files or, in a mounted ConfigMap, a symlink; so the
//! inotify events only say when to look, never what has changed.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::manifest;
use super::{Known, Pod, PodName};
use crate::changes::Changes;

/// The endings of files that are read.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// The largest file that is read, in bytes.
const LARGEST: u64 = 4 << 20;

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
        // The watch is set before the files are read, so that no change falls between.
        let changes = Changes::of(directory)?;
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
        return;
    }
    let problems = problems.join("; ");
    tracing::warn!(directory = %directory.display(), problems, "not everything could be read");
    known.fails(problems);
}

#[derive(Debug, Default)]
struct Found {
    pods: HashMap<PodName, Pod>,
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
                None => {
                    writers.insert(name.clone(), path.clone());
                    found.pods.insert(name, pod);
                }
            }
        }
    }
    Ok(found)
}

/// A file's text; none when it has gone since it was listed.
fn read_file(path: &Path) -> Result<Option<String>, String> {
    let mut text = String::new();
    let read = fs::metadata(path).and_then(|metadata| {
        // Opening a pipe would wait for its writer.
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let file = fs::File::open(path)?;
        file.take(LARGEST + 1).read_to_string(&mut text)
    });
    match read {
        Ok(size) if size as u64 > LARGEST => Err(format!("larger than {LARGEST} bytes")),
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
