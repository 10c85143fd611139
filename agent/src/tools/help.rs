//! Completion scripts and manual pages, from the same source as the help texts.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::{Exit, ToolError, show};

/// The flags of `podwire completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(hide_possible_values = true)]
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self, mut whole: Command) -> Result<Exit, ToolError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut whole, "podwire", &mut script);
        show(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Well)
    }
}

/// The flags of `podwire man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page for each command into this directory, and not podwire(1) alone to standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl ManArgs {
    pub(super) fn run(self, whole: Command) -> Result<Exit, ToolError> {
        match self.dir {
            Some(path) => clap_mangen::generate_to(whole, &path)
                .map_err(|source| ToolError::File { path, source })?,
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(whole)
                    .render(&mut page)
                    .map_err(ToolError::Output)?;
                show(&String::from_utf8_lossy(&page))?;
            }
        }
        Ok(Exit::Well)
    }
}
