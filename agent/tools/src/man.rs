//! `podwire man`: a manual page for each command, from its help text and the pages here: examples,
//! files, and references.

mod pages;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{Exit, ToolError, show};
use pages::{EVERYWHERE, PAGES, Page};

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
    let page = PAGES.iter().find(|page| page.name == name);
    let files = EVERYWHERE.iter().chain(page.map_or(&[][..], |it| it.files));
    if let Some(Page { examples, .. }) = page {
        rest.control("SH", ["EXAMPLES"]);
        paragraphs(&mut rest, *examples);
    }
    rest.control("SH", ["FILES"]);
    paragraphs(&mut rest, files);
    rest.control("SH", ["SEE ALSO"]);
    let also = page.map_or(&[][..], |it| it.also);
    let also: Vec<&str> = also
        .iter()
        .copied()
        .filter(|it| *it != format!("{name}(1)"))
        .collect();
    rest.text([roman(also.join(", "))]);
    rest.to_writer(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Adds the items, each with its description below it.
fn paragraphs<'a>(roff: &mut Roff, pairs: impl IntoIterator<Item = &'a (&'a str, &'a str)>) {
    for (thing, what) in pairs {
        roff.control("TP", [])
            .text([bold(*thing)])
            .text([roman(*what)]);
    }
}
