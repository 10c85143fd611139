//! Where unsafe code may stand: in the netns room, each use with its argument.

use std::fs;
use std::path::{Path, PathBuf};

/// `#[unsafe(no_mangle)]` on `main`: an attribute, and no block (its `reason` says more).
const NO_BLOCK: [&str; 1] = ["cni/src/plugin/main.rs"];
const ROOM: &str = "agent/src/netns/";

#[test]
fn only_the_netns_room_has_unsafe_code_and_argues_for_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut blocks = 0;
    for file in sources(root) {
        let name = file
            .strip_prefix(root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap();
            // Of this file, which names what it looks for.
            if name == "tests/tests/unsafe_code.rs" || !code.contains("unsafe") {
                continue;
            }
            if code.trim() == "#![forbid(unsafe_code)]" {
                continue;
            }
            let place = format!("{name}:{}: {line}", at + 1);
            if code.contains("unsafe_code") || code.contains("#[unsafe(") {
                let allowed = name.starts_with(ROOM) || NO_BLOCK.contains(&name.as_str());
                assert!(allowed, "unsafe code is for {ROOM} alone: {place}");
            } else if code.contains("unsafe {") {
                assert!(
                    name.starts_with(ROOM),
                    "unsafe code is for {ROOM} alone: {place}"
                );
                let argued = lines[..at]
                    .iter()
                    .rev()
                    .take(6)
                    .any(|line| line.starts_with("// SAFETY:"));
                assert!(argued, "without its argument (`// SAFETY:`): {place}");
                blocks += 1;
            }
        }
    }
    assert!(blocks > 0, "the search finds nothing at all");
}

/// All Rust files of the project.
fn sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if !name.to_string_lossy().starts_with('.') && name != "target" {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}
