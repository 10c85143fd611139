//! The fuzz targets' entry points, run over the inputs that are kept: those that each format was
//! begun with, what fuzzing found worth keeping, and every input that once was a finding. `make
//! fuzz` looks for more.

#[path = "../../fuzz/entries.rs"]
#[allow(
    unreachable_pub,
    reason = "the fuzz targets, a workspace of their own, call the same functions"
)]
mod entries;

use std::path::Path;

fn replay(target: &str, entry: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let mut inputs = 0;
    for file in std::fs::read_dir(&directory)
        .expect("the corpus is part of the repository")
        .flatten()
    {
        let input = std::fs::read(file.path()).expect("the corpus can be read");
        // Names the input that a panic comes from; shown only then.
        println!("{}", file.path().display());
        entry(&input);
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", directory.display());
}

#[test]
fn cni_stdin_and_environment() {
    replay("cni", entries::cni);
}

#[test]
fn wire_format() {
    replay("wire", entries::wire);
}

#[test]
fn annotations() {
    replay("annotations", entries::annotations);
}

#[test]
fn ovsdb_frames() {
    replay("ovsdb", entries::ovsdb);
}

#[test]
fn configuration() {
    replay("config", entries::config);
}

#[test]
fn spooled_dels() {
    replay("spool", entries::spool);
}

#[test]
fn kubeconfigs() {
    replay("kubeconfig", entries::kubeconfig);
}

#[test]
fn pod_manifests() {
    replay("manifest", entries::manifest);
}
