//! What commands print: text for people, JSON or YAML for programs.

use std::fmt::Display;
use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use itertools::Itertools as _;
use serde::Serialize;

/// The flag of commands that show one answer.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// text, or json or yaml for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub output: Format,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
    /// The same as YAML
    Yaml,
}

impl Format {
    /// The answer in this format; `text` formats it for people.
    ///
    /// # Errors
    /// It can't be encoded.
    pub fn encode(
        self,
        answer: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> io::Result<String> {
        match self {
            Self::Text => Ok(text()),
            Self::Json => json(answer),
            Self::Yaml => yaml(answer),
        }
    }
}

/// The first of many, and the number of the others, for a text of limited length.
pub fn some(all: &[impl Display], most: usize, between: &str, last: &str) -> String {
    let named = all.iter().take(most).join(between);
    match all.len().saturating_sub(most) {
        0 => named,
        more => format!("{named}{last}{more} more"),
    }
}

/// A part of a text that may be missing, with what is around it.
pub fn part(before: &str, value: Option<impl Display>, after: &str) -> String {
    value.map_or_else(String::new, |it| format!("{before}{it}{after}"))
}

/// A value as indented JSON.
///
/// # Errors
/// It can't be encoded.
pub fn json(value: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(io::Error::other)
}

/// A value as YAML.
///
/// # Errors
/// It can't be encoded.
pub fn yaml(value: &impl Serialize) -> io::Result<String> {
    let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
    Ok(text.trim_end_matches('\n').to_owned() + "\n")
}

/// Writes to standard output. A closed pipe is an ordinary error, and no panic.
///
/// # Errors
/// The kernel's.
pub fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
