//! The image is what the manifests name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwire_tests::process::finish;
use podwire_tests::{controller_binary, stripped};
use serde_json::Value;

use crate::rbac::manifest;

fn run(program: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let finished = finish(command, b"", Duration::from_secs(60)).unwrap();
    finished.success(program)
}

fn blob(archive: &Path, digest: &Value) -> PathBuf {
    let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
    archive.join("blobs/sha256").join(digest)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_image_has_the_name_and_the_program_that_the_manifests_want() {
    let work = tempfile::tempdir().unwrap();
    let [archive, root] = ["archive", "root"].map(|name| work.path().join(name));
    let built = run(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/image/build"),
        &[
            &stripped(&controller_binary(), work.path()),
            "".as_ref(),
            env!("CARGO_PKG_VERSION").as_ref(),
            work.path(),
        ],
    );
    unpack(built.trim().as_ref(), &archive);
    let index = read(&archive.join("index.json"));
    let named = &index["manifests"][0];
    let parts = read(&blob(&archive, &named["digest"]));
    let config = read(&blob(&archive, &parts["config"]["digest"]));
    unpack(&blob(&archive, &parts["layers"][0]["digest"]), &root);

    let deployment = manifest("deployment.yaml").remove(0);
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(
        container["image"],
        named["annotations"]["io.containerd.image.name"]
    );
    let user = container["securityContext"]["runAsUser"].to_string();
    assert_eq!(config["config"]["User"], format!("{user}:{user}"));
    // The manifest gives no command: the image's own is run.
    assert_eq!(
        (&container["command"], &container["args"]),
        (&Value::Null, &Value::Null)
    );
    let program = config["config"]["Entrypoint"][0].as_str().unwrap();
    let version = run("chroot", &[&root, program.as_ref(), "--version".as_ref()]);
    assert_eq!(
        version.trim(),
        concat!("podwire-controller ", env!("CARGO_PKG_VERSION"))
    );
    // `explain --to` runs it.
    let trace = run(
        "chroot",
        &[&root, "/usr/bin/ovn-trace".as_ref(), "--version".as_ref()],
    );
    assert!(trace.starts_with("ovn-trace "), "{trace}");
}

fn unpack(file: &Path, directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let flags = ["--extract", "--file"].map(Path::new);
    run(
        "tar",
        &[flags[0], flags[1], file, "--directory".as_ref(), directory],
    );
}
