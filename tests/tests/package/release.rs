//! What is published of a build: signatures, and a release's directory.

use std::fs;

use podwire_tests::TestNode;

use super::{run, ship, workspace};

#[test]
fn a_signature_holds_for_what_was_built_and_for_nothing_else() {
    let node = TestNode::new();
    ship(&node);
    let home = "/run/keys";
    fs::create_dir(node.path(home)).unwrap();
    let gpg = |line: &str| {
        let line = format!("GNUPGHOME={home} gpg --batch --pinentry-mode loopback {line}");
        node.shell(&line)
    };
    run(&node, "chmod", format!("700 {home}"));
    let made = "--passphrase '' --quick-generate-key signer@example.test ed25519 sign never";
    gpg(made).success("gpg --quick-generate-key");
    run(
        &node,
        "make",
        "--no-print-directory package PACKAGES=/run/out",
    );
    let sign = |key: &str| {
        node.shell(&format!(
            "cd {} && GNUPGHOME={home} deploy/sign '{key}' /run/out; gpgconf --homedir {home} \
             --kill all",
            workspace().display()
        ))
    };
    sign("signer@example.test").assert_says(Some(0), &["/run/out/SHA256SUMS.asc"]);
    let verify = || gpg("--verify /run/out/SHA256SUMS.asc /run/out/SHA256SUMS");
    let check = || node.shell("cd /run/out && sha256sum --check SHA256SUMS");
    assert!(verify().status.success());
    check().assert_says(Some(0), &["podwire_", ".deb: OK", "podwire-controller_"]);
    let sums = node.path("/run/out/SHA256SUMS");
    let text = fs::read_to_string(&sums).unwrap();
    fs::write(&sums, text.replacen('a', "b", 1)).unwrap();
    assert!(!verify().status.success(), "of another text");
    assert!(!check().status.success(), "of another file");
    sign("nobody@example.test");
    assert!(!node.path("/run/out/SHA256SUMS.asc").exists());
    assert!(!sums.exists());
}

/// The commands by which docs/install.md has a release checked.
fn check_of_the_docs() -> String {
    let page = fs::read_to_string(workspace().join("docs/install.md")).unwrap();
    let (_, section) = page.split_once("### A release, and how").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_release_has_what_breaks_and_is_checked_as_the_docs_say() {
    let node = TestNode::new();
    ship(&node);
    let home = "/run/keys";
    fs::create_dir(node.path(home)).unwrap();
    let keyed = |line: &str| node.shell(&format!("export GNUPGHOME={home}; {line}"));
    run(&node, "chmod", format!("700 {home}"));
    let made = "gpg --batch --pinentry-mode loopback --passphrase '' --quick-generate-key \
                signer@example.test ed25519 sign never";
    keyed(made).success("gpg --quick-generate-key");
    run(
        &node,
        "make",
        "--no-print-directory package PACKAGES=/run/out",
    );
    let version = env!("CARGO_PKG_VERSION");
    let release = |changelog: &str| {
        fs::write(node.path("/run/changelog"), changelog).unwrap();
        keyed(&format!(
            "cd {} && CHANGELOG=/run/changelog deploy/release signer@example.test {version} \
             /run/dist /run/out; code=$?; gpgconf --kill all; exit $code",
            workspace().display()
        ))
    };
    let refused = |changelog: &str, why: &str| {
        let done = release(changelog);
        assert!(
            !done.status.success() && done.stderr.contains(why),
            "{done:?}"
        );
        assert!(!node.path("/run/dist").exists());
    };
    refused("## Unreleased\n### Breaks\n- it\n", "has no section");
    refused(
        &format!("## {version}0\n### Breaks\n- it\n"),
        "has no section",
    );
    refused(
        &format!("## {version} (today)\n- it\n"),
        "has no '### Breaks'",
    );
    let changelog = format!(
        "## Unreleased\n- later\n## {version} (today)\n### Breaks\n- nothing\n## 0.0.1\n- before\n"
    );
    release(&changelog).success("deploy/release");
    let notes = fs::read_to_string(node.path("/run/dist/NOTES.md")).unwrap();
    assert!(notes.contains("- nothing"), "{notes}");
    assert!(
        !notes.contains("before") && !notes.contains("later"),
        "{notes}"
    );
    let check = || keyed(&format!("set -e; cd /run/dist; {}", check_of_the_docs()));
    let told = check();
    told.assert_says(
        Some(0),
        &["podwire_", ".deb: OK", "NOTES.md: OK", "COMMIT: OK"],
    );
    for (file, from, to) in [("NOTES.md", "nothing", "all"), ("SHA256SUMS", "a", "b")] {
        let path = node.path(&format!("/run/dist/{file}"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert!(!check().status.success(), "{file} is another");
        fs::write(&path, text).unwrap();
    }
    assert!(check().status.success());
    let again = release(&changelog);
    assert!(again.stderr.contains("/run/dist exists"), "{again:?}");
}
