//! The pages for people: each is linked from the README, no link leads nowhere, and the messages
//! that they quote are in the code. The order of the agent's rooms is the one of its imports, and
//! no crate has a circle of modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The Rust sources below a directory.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// A source without what only tests see; a string that goes on in the next line is on one.
fn shipped(path: &Path) -> Option<String> {
    let relative = path.strip_prefix(root()).unwrap();
    let is_test = relative
        .components()
        .any(|it| matches!(it.as_os_str().to_str(), Some("tests" | "tests.rs")));
    let text = fs::read_to_string(path).unwrap();
    let (shipped, _) = text.split_once("#[cfg(test)]\nmod").unwrap_or((&text, ""));
    let mut lines = shipped.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let whole = lines.fold(first, |text, line| text + line.trim_start());
    (!is_test).then_some(whole)
}

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_owned()
}

/// All pages, as paths from the repository's root.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = [
        "README.md",
        "CONTRIBUTING.md",
        "SPECIFICATION.md",
        "CHANGELOG.md",
    ]
    .map(PathBuf::from)
    .into();
    for directory in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(root().join(directory)).unwrap().flatten();
        let names = entries.map(|entry| Path::new(directory).join(entry.file_name()));
        pages.extend(names.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    pages
}

/// The targets of a page's links, those to other sites left out.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    let here = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    targets.filter(here).map(str::to_owned).collect()
}

/// The anchor that a heading gets where Markdown is shown.
fn anchor(heading: &str) -> String {
    let plain = heading.trim().to_lowercase().replace(' ', "-");
    plain
        .chars()
        .filter(|it| it.is_alphanumeric() || *it == '-' || *it == '_')
        .collect()
}

#[test]
fn no_link_of_a_page_leads_nowhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for link in links(&text) {
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let Ok(metadata) = fs::metadata(root().join(&target)) else {
                broken.push(format!("{}: {link}", page.display()));
                continue;
            };
            if fragment.is_empty() || metadata.is_dir() {
                continue;
            }
            let text = fs::read_to_string(root().join(&target)).unwrap();
            let headings = text.lines().filter(|line| line.starts_with('#'));
            if !headings
                .map(|line| anchor(line.trim_start_matches('#')))
                .any(|it| it == fragment)
            {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_linked_in_the_readme() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let linked = links(&readme);
    let pages = pages().into_iter().filter(|page| {
        page.file_name().is_some_and(|name| name != "README.md")
            && !page.starts_with("docs/decisions")
    });
    let missing: Vec<_> = pages
        .filter(|page| !linked.iter().any(|link| Path::new(link) == page))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The agent's rooms in the order in which CONTRIBUTING.md tells them.
fn documented_rooms() -> Vec<String> {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let rooms = lines.filter_map(|line| line.split_once("  "));
    rooms.map(|(room, _)| room.to_owned()).collect()
}

/// The code of a shipped source, without comments.
fn code(path: &Path) -> Option<String> {
    let text = shipped(path)?;
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// What paths that begin with `prefix` name next, the branches of `{…}` included.
fn named_after<'a>(code: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let first = |path: &'a str| path.trim_start().split(|it| !is_name(it)).next().unwrap();
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        // `super::super::x` is of another module than `super::x`.
        if code[..at].ends_with("::") {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(branches) = rest.strip_prefix('{') else {
            names.insert(first(rest));
            continue;
        };
        let (mut depth, mut from) = (0_usize, 0);
        for (at, character) in branches.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    names.insert(first(&branches[from..at]));
                    from = at + 1;
                    if character == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    names
}

#[test]
fn no_room_of_the_agent_imports_one_above_it() {
    let order = documented_rooms();
    let at = |room: &str| order.iter().position(|it| it == room);
    let library = fs::read_to_string(root().join("agent/src/lib.rs")).unwrap();
    let modules = library.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let mut rooms: Vec<&str> = modules.collect();
    rooms.sort_unstable();
    let mut documented: Vec<&str> = order.iter().map(String::as_str).collect();
    documented.sort_unstable();
    assert_eq!(documented, rooms, "CONTRIBUTING.md and agent/src/lib.rs");

    let mut upward = Vec::new();
    let agent = root().join("agent/src");
    let mut files = Vec::new();
    sources(&agent, &mut files);
    for path in files {
        let relative = path.strip_prefix(&agent).unwrap();
        let first = relative.components().next().unwrap().as_os_str();
        let room = first.to_str().unwrap().trim_end_matches(".rs");
        let (Some(above), Some(code)) = (at(room), code(&path)) else {
            continue;
        };
        for name in named_after(&code, "crate::") {
            if at(name).is_some_and(|below| below < above) {
                upward.push(format!("{}: {room} imports {name}", relative.display()));
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
}

/// A source's module, as the names from the crate's root to it.
fn module(source: &Path, relative: &Path) -> Vec<String> {
    let names = relative.with_extension("");
    let names = names.iter().map(|name| name.to_str().unwrap().to_owned());
    let mut names: Vec<String> = names.collect();
    if source.file_name().is_some_and(|name| name == "mod.rs") {
        names.pop();
    }
    names
}

/// Of a crate, and of each module that has others in it: the two that are in it import each other,
/// or something in them does.
#[test]
fn no_two_modules_beside_each_other_import_each_other() {
    let mut circles = BTreeSet::new();
    for name in [
        "cni",
        "ovs",
        "apiserver",
        "cluster",
        "daemon",
        "node",
        "agent",
        "controller",
    ] {
        let directory = root().join(name).join("src");
        let mut files = Vec::new();
        sources(&directory, &mut files);
        let modules: Vec<(Vec<String>, String)> = files
            .iter()
            .filter(|path| !path.ends_with("src/lib.rs"))
            .filter_map(|path| {
                let relative = path.strip_prefix(&directory).unwrap();
                Some((module(path, relative), code(path)?))
            })
            .collect();
        let mut imports: BTreeMap<(&[String], &str), BTreeSet<&str>> = BTreeMap::new();
        for (module, code) in &modules {
            for depth in 0..module.len() {
                let parent = &module[..depth];
                let path: String = parent.iter().map(|name| format!("{name}::")).collect();
                let named = imports.entry((parent, &module[depth])).or_default();
                named.extend(named_after(code, &format!("crate::{path}")));
                named.extend(named_after(code, &"super::".repeat(module.len() - depth)));
            }
        }
        for ((parent, one), named) in &imports {
            for other in named.iter().filter(|other| other > &one) {
                let back = imports.get(&(*parent, *other));
                if back.is_some_and(|named| named.contains(one)) {
                    circles.insert(format!("{name} {}: {one} and {other}", parent.join("::")));
                }
            }
        }
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn no_crate_depends_on_one_below_it_in_contributing() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let crates: Vec<&str> = rows
        .filter_map(|row| Some(row.split_once("/` |")?.0))
        .collect();
    let manifest = |directory: &str| -> toml::Table {
        let text = fs::read_to_string(root().join(directory).join("Cargo.toml")).unwrap();
        text.parse().unwrap()
    };
    let workspace = manifest("");
    let mut members = workspace["workspace"]["members"]
        .as_array()
        .unwrap()
        .clone();
    members.sort_by_key(|member| crates.iter().position(|it| member.as_str() == Some(it)));
    let members: Vec<&str> = members.iter().filter_map(toml::Value::as_str).collect();
    assert_eq!(crates, members, "CONTRIBUTING.md and Cargo.toml");

    let mut known = BTreeSet::new();
    let paths = workspace["workspace"]["dependencies"].as_table().unwrap();
    for directory in crates {
        let manifest = manifest(directory);
        for name in manifest["dependencies"].as_table().unwrap().keys() {
            let of_ours = paths[name].get("path").and_then(toml::Value::as_str);
            assert!(
                of_ours.is_none_or(|path| known.contains(path)),
                "{directory} depends on {name}"
            );
        }
        known.insert(directory.to_owned());
    }
}

/// The first cells of the rows of a page's tables whose header begins with `message`.
fn quoted_messages(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let tables = text.split("\n| message |").skip(1);
    let rows = tables.flat_map(|table| {
        let rows = table.lines().skip(2);
        rows.take_while(|line| line.starts_with('|'))
    });
    let quotes = rows.filter_map(|row| row.strip_prefix("| `")?.split_once('`'));
    quotes.map(|(quote, _)| quote.to_owned()).collect()
}

#[test]
fn the_messages_that_pages_quote_are_in_the_code() {
    let mut files = Vec::new();
    for crate_root in ["agent/src", "cni/src"] {
        sources(&root().join(crate_root), &mut files);
    }
    let code: Vec<String> = files.iter().filter_map(|path| shipped(path)).collect();
    for (page, least) in [("docs/troubleshooting.md", 8), ("docs/errors.md", 10)] {
        let messages = quoted_messages(page);
        assert!(messages.len() >= least, "{page}: {messages:?}");
        for message in messages {
            let parts: Vec<&str> = message.split('…').map(str::trim).collect();
            let is_there = code
                .iter()
                .any(|text| parts.iter().all(|part| text.contains(part)));
            assert!(is_there, "{page} quotes {message:?}");
        }
    }
}

/// rustfmt leaves a function as it is when it can't break one of its lines. The text of a raw
/// string is data, and may be longer.
#[test]
fn no_line_of_code_is_longer_than_100_columns() {
    let mut files = Vec::new();
    for entry in fs::read_dir(root()).unwrap().flatten() {
        if entry.path().join("Cargo.toml").exists() {
            sources(&entry.path(), &mut files);
        }
    }
    let mut long = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let mut is_raw = false;
        for (number, line) in text.lines().enumerate() {
            let began = is_raw;
            let mut has_raw = false;
            let mut rest = line;
            while let Some((_, after)) = rest.split_once(if is_raw { "\"#" } else { "r#\"" }) {
                (is_raw, has_raw, rest) = (!is_raw, true, after);
            }
            let relative = path.strip_prefix(root()).unwrap().display();
            if line.chars().count() > 100 && !began && !has_raw {
                long.push(format!("{relative}:{}: {line}", number + 1));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}
