//! The numbers promised for the binary that is installed: its size, its memory, and that it
//! needs no loader.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;

use serde_json::json;

use crate::call::{Call, Outcome, PATIENCE, conf};
use crate::fake_agent::{FakeAgent, reply, take_post};

/// Both promises: bytes of the file, and of VmHWM.
const LIMIT: u64 = 1_500_000;
/// How the binary is built; the Makefile does the same.
const BUILD: &str = "rustc -p podwire-cni --bin podwire-cni --profile plugin -- \
                     -C target-feature=+crt-static -C relocation-model=static";

/// The binary named by PODWIRE_PLUGIN, or else one that is built now.
fn plugin() -> PathBuf {
    if let Some(path) = env::var_os("PODWIRE_PLUGIN") {
        return path.into();
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let built = Command::new(cargo)
        .args(BUILD.split_whitespace())
        .current_dir(&workspace)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    target.join("plugin/podwire-cni")
}

#[test]
fn the_installed_binary_is_small_static_and_frugal() {
    use std::io::Write;
    let binary = plugin();
    let bytes = fs::read(&binary).unwrap();
    assert!(
        bytes.len() as u64 <= LIMIT,
        "{} has {} bytes",
        binary.display(),
        bytes.len()
    );
    assert!(
        !has_interpreter(&bytes),
        "{} is not static",
        binary.display()
    );

    let (seen, posted) = mpsc::channel();
    let (go, measured) = mpsc::channel::<()>();
    let agent = FakeAgent::new(move |mut stream| {
        take_post(&mut stream);
        seen.send(()).unwrap();
        measured.recv().unwrap();
        stream.write_all(reply(200, "{}").as_bytes()).unwrap();
    });
    // As many annotations as Kubernetes allows a pod.
    let annotations = json!({"io.kubernetes.cri.pod-annotations": {"a": "v".repeat(256 * 1024)}});
    let conf = conf(&agent.socket(), json!({"runtimeConfig": annotations}));
    let child = Call::of(&binary, "ADD").stdin(conf).spawn();
    posted.recv_timeout(PATIENCE).unwrap();
    let peak = peak_memory(child.id());
    go.send(()).unwrap();
    Outcome::of(child).assert_answer(b"{}");
    agent.end();
    assert!(peak <= LIMIT, "{peak} bytes of VmHWM");
}

/// VmHWM in bytes: the resident pages at their highest, file-backed ones too (proc(5)).
/// getrusage's ru_maxrss would be that of the parent, which the child starts from.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib * 1024
}

/// Whether an ELF-64 file asks for a loader: a program header of type PT_INTERP (elf(5)).
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, length: usize| {
        elf[at..at + length]
            .iter()
            .rev()
            .fold(0usize, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (start, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    (0..count).any(|header| number(start + header * size, 4) == PT_INTERP as usize)
}
