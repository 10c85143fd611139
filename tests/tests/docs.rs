//! The pages for people: each is linked from the README, no link leads nowhere, and the messages
//! that they quote are in the code. The order of the agent's rooms is the one of its imports, and
//! no crate has a circle of modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use podwire_tests::source::{self, Module, root};

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
    for module in Module::of_crate("agent") {
        let Some(above) = module.path.first().and_then(|room| at(room)) else {
            continue;
        };
        for path in module.paths() {
            if let [origin, name, ..] = &*path
                && origin == "crate"
                && at(name).is_some_and(|below| below < above)
            {
                upward.push(format!("{} imports {name}", module.path.join("::")));
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
}

/// The names of what a path in a module leads to, from the crate's root; None if it leads elsewhere
/// or begins in the module itself.
fn from_root(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let parent = module.len().checked_sub(supers)?;
            Some([&module[..parent], &path[supers..]].concat())
        }
        _ => None,
    }
}

/// Of a crate, and of each module that has others in it: the two that are in it import each other,
/// or something in them does.
#[test]
fn no_modules_beside_each_other_import_each_other_in_a_circle() {
    let mut circles = BTreeSet::new();
    for name in source::CRATES {
        let mut imports: BTreeMap<(Vec<String>, String), BTreeSet<String>> = BTreeMap::new();
        for module in Module::of_crate(name) {
            for target in module.paths() {
                let Some(target) = from_root(&module.path, &target) else {
                    continue;
                };
                let both = module.path.iter().zip(&target);
                let common = both.take_while(|(one, other)| one == other).count();
                if let (Some(own), Some(other)) = (module.path.get(common), target.get(common)) {
                    let place = (target[..common].to_vec(), own.clone());
                    imports.entry(place).or_default().insert(other.clone());
                }
            }
        }
        for (parent, one) in imports.keys() {
            // Whom it leads to, by however many others beside it.
            let mut reached = BTreeSet::new();
            let mut next = vec![one];
            while let Some(module) = next.pop() {
                let named = imports.get(&(parent.clone(), module.clone()));
                next.extend(named.into_iter().flatten().filter(|it| reached.insert(*it)));
            }
            if reached.contains(one) {
                circles.insert(format!("{name} {}: {one}", parent.join("::")));
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
    let modules = ["agent", "agent/netns", "agent/tools", "cni"]
        .into_iter()
        .flat_map(Module::of_crate);
    let code: Vec<String> = modules.map(|module| module.texts().join("\n")).collect();
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
            files.extend(source::files(&entry.path()));
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
