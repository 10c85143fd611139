//! `podwire man`: a manual page for each command, from its help text and the pages here: examples,
//! files, and references.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use serde::Deserialize;

use super::{Exit, ToolError, show};

const PAGES: &str = include_str!("man/pages.toml");
/// A file that concerns every command.
const EVERYWHERE: &str = "/run/podwire/agent.sock";

/// What the pages contain beyond the help texts.
#[derive(Debug, Deserialize)]
struct Pages {
    /// Files, with their descriptions.
    files: BTreeMap<String, String>,
    /// By command.
    pages: BTreeMap<String, Page>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Page {
    /// Command lines, with descriptions.
    examples: Vec<(String, String)>,
    /// Those of this command alone.
    files: Vec<String>,
    /// References to other pages.
    also: Vec<String>,
}

/// The flags of `podwire man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page for each command into this directory, instead of podwire(1) to standard
    /// output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl ManArgs {
    pub(super) fn run(self, mut whole: Command) -> Result<Exit, ToolError> {
        whole.build();
        match self.dir {
            Some(directory) => write_all(&whole, &directory)?,
            None => show(&page(&whole).map_err(ToolError::Output)?)?,
        }
        Ok(Exit::Well)
    }
}

/// Writes the pages of a command and of its subcommands.
fn write_all(command: &Command, directory: &Path) -> Result<(), ToolError> {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_all(below, directory)?;
    }
    let path = directory.join(format!("{}.1", name(command)));
    let written = page(command).and_then(|text| fs::write(&path, text));
    written.map_err(|source| ToolError::File { path, source })
}

/// `podwire-node-init`
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: &Command) -> io::Result<String> {
    let name = name(command);
    let man = Man::new(command.clone())
        .source(concat!("podwire ", env!("CARGO_PKG_VERSION")))
        .manual("podwire manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|it| !it.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    if let Some(notes) = command.get_after_help() {
        rest.control("SH", ["NOTES"]);
        for line in notes.to_string().lines() {
            rest.text([roman(line)]).control("br", []);
        }
    }
    let Pages { files, mut pages } = toml::from_str(PAGES).map_err(io::Error::other)?;
    let page = pages.remove(name).unwrap_or_default();
    if !page.examples.is_empty() {
        rest.control("SH", ["EXAMPLES"]);
        let pairs = page.examples.iter();
        paragraphs(&mut rest, pairs.map(|(line, what)| (line, what)));
    }
    rest.control("SH", ["FILES"]);
    let of_page = page.files.iter().map(String::as_str);
    let of_page = std::iter::once(EVERYWHERE).chain(of_page);
    let described = of_page.filter_map(|file| files.get_key_value(file));
    paragraphs(&mut rest, described.collect::<Vec<_>>());
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman(page.also.join(", "))]);
    rest.to_writer(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Adds the items, each with its description below it.
fn paragraphs<'a>(roff: &mut Roff, pairs: impl IntoIterator<Item = (&'a String, &'a String)>) {
    for (thing, what) in pairs {
        roff.control("TP", [])
            .text([bold(thing)])
            .text([roman(what)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_and_every_page_that_a_page_names_is_there() {
        let Pages { files, pages } = toml::from_str(PAGES).unwrap();
        assert!(files.contains_key(EVERYWHERE));
        for (name, page) in &pages {
            assert!(!page.examples.is_empty(), "{name}");
            let mut described = page.files.iter();
            assert!(described.all(|file| files.contains_key(file)), "{name}");
            for also in page.also.iter().filter(|it| it.starts_with("podwire")) {
                let other = also.strip_suffix("(1)").unwrap();
                assert!(other != name && pages.contains_key(other), "{name}: {also}");
            }
        }
    }
}
