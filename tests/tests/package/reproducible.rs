//! Packages and images are the same whoever builds them, where and when; and each has the licences
//! of what is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwire_tests::process::finish;
use podwire_tests::{agent_binary, controller_binary, plugin_binary, stripped};

use super::workspace;

/// What differs for another builder, beside the time: the machine's name, the rights of new files,
/// the time zone and the language.
const ELSEWHERE: &str = "hostname elsewhere; umask 077; export TZ=Asia/Tokyo LC_ALL=C; exec \"$@\"";

/// Builds by these words and a directory for the output, here and elsewhere; where it is.
fn same(words: &[&str], work: &Path) -> PathBuf {
    let [one, two] = ["one", "two"].map(|name| work.join(name).display().to_string());
    let elsewhere = ["unshare", "--uts", "sh", "-c", ELSEWHERE, "sh"];
    let [first, second] = [(&[][..], one), (&elsewhere[..], two)].map(|(before, output)| {
        let words = [before, words, &[&output]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(workspace());
        command.env("DEB_COMPRESSION", "none");
        command.env("RPM_COMPRESSION", "w0.gzdio");
        let built = finish(command, b"", Duration::from_secs(90)).unwrap();
        PathBuf::from(built.success(&words.join(" ")).trim())
    });
    let read = |path: &Path| fs::read(path).unwrap();
    assert!(
        read(&first) == read(&second),
        "{words:?}: two builds differ"
    );
    first
}

/// The programs under test, without the debugger's part.
fn programs(work: &Path) -> [String; 3] {
    let [agent, controller] = [agent_binary(), controller_binary()].map(|it| stripped(&it, work));
    [agent, plugin_binary(), controller].map(|it| it.display().to_string())
}

fn shell(line: &str, work: &Path) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(work);
    let done = finish(command, b"", Duration::from_secs(60)).unwrap();
    done.success(line)
}

/// Asserts that the licences of the crates in a program are below this directory.
fn has_licences(work: &Path, below: &str) {
    let text = shell(&format!("zcat {below}/licences.gz"), work);
    for word in ["  tokio-1.", "Permission is hereby granted, free of charge"] {
        assert!(text.contains(word), "{word:?} is not in {below}:\n{text}");
    }
}

#[test]
fn debian_packages() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    let [agent, plugin, controller] = programs(work);
    for (name, program, plugin) in [
        ("podwire", &agent, &*plugin),
        ("podwire-controller", &controller, ""),
    ] {
        let package = same(&["deploy/debian/build", program, plugin, "0.1.0"], work);
        let to = format!("dpkg-deb --extract {} {name}.root", package.display());
        shell(&to, work);
        has_licences(work, &format!("{name}.root/usr/share/doc/{name}"));
    }
}

#[test]
#[ignore = "takes minutes: make test-reproducible"]
fn the_rpm() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    let [agent, plugin, _] = programs(work);
    let package = same(&["deploy/rpm/build", &agent, &plugin, "0.1.0"], work);
    let install = "--noscripts --nodeps --noplugins --install";
    let to = work.join("root");
    fs::create_dir(&to).unwrap();
    let (root, package) = (to.display(), package.display());
    shell(&format!("rpm --root {root} {install} {package}"), work);
    has_licences(work, "root/usr/share/doc/podwire");
}

#[test]
#[ignore = "takes minutes: make test-reproducible"]
fn images() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    let [agent, plugin, controller] = programs(work);
    for (name, program, plugin, of_debian) in [
        ("podwire", &*agent, &*plugin, "nftables"),
        ("podwire-controller", &controller, "", "ovn-common"),
        ("podwire-ovn", "ovn", "", "openvswitch-switch"),
    ] {
        let image = same(&["deploy/image/build", program, plugin, "0.1.0"], work);
        let share = format!("{name}.root/usr/share");
        // The layer is the largest of the blobs.
        let unpack = format!(
            "mkdir -p {name}.root {name}.oci && tar -xf {} -C {name}.oci && \
             tar -xzf $(ls -S {name}.oci/blobs/sha256/* | head -n 1) -C {name}.root",
            image.display()
        );
        shell(&unpack, work);
        let read = |file: String| {
            let text = fs::read_to_string(work.join(&share).join(&file));
            text.unwrap_or_else(|error| panic!("{name}: {file}: {error}"))
        };
        assert!(read(format!("doc/{name}/LICENSE")).contains("Apache License"));
        for package in ["libc6", of_debian] {
            assert!(!read(format!("doc/{package}/copyright")).is_empty());
        }
        assert!(read("common-licenses/GPL-2".into()).contains("GNU GENERAL PUBLIC LICENSE"));
        if name != "podwire-ovn" {
            has_licences(work, &format!("{share}/doc/{name}"));
        }
    }
}
