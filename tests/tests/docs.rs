//! The pages for people: each is to be found from the README, and no link leads nowhere.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
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
