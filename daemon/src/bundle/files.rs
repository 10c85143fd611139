//! The files of a bundle, and how they are written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::redact::Redactor;
use podwire_apiserver::brief;

/// The size limit of a file, in bytes; a longer one is truncated.
const LONGEST: usize = 4 << 20;
/// What an archive's name ends with.
const ARCHIVE: &str = ".tar.gz";
/// Names that a directory should not have.
const OTHER_ARCHIVES: [&str; 6] = [".tgz", ".tar", ".gz", ".zip", ".xz", ".zst"];

/// The collected files.
#[derive(Debug, Default)]
pub struct Files {
    /// What is removed from their text.
    pub redactor: Redactor,
    files: Vec<(String, String)>,
    missing: Vec<Missing>,
    absent: Vec<Missing>,
}

/// Why there is no text for a file.
#[derive(Debug, Clone)]
pub enum Lack {
    /// It should be there: something is wrong, or could not be asked.
    Missing(String),
    /// This machine does not have it, and nothing is wrong.
    Absent(String),
}

/// The text of a file by its name, or why there is none.
pub type Text = (String, Result<String, Lack>);

/// What could not be collected, or is not there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Missing {
    /// Its name in the bundle.
    pub file: String,
    /// The reason.
    pub why: String,
}

impl Files {
    /// Adds a file, without its secrets, or records why it is missing.
    pub fn put(&mut self, file: &str, text: Result<String, impl std::fmt::Display>) {
        match text {
            Ok(mut text) => {
                if text.len() > LONGEST {
                    text.truncate(text.floor_char_boundary(LONGEST));
                    text.push_str("\n(cut off here)\n");
                }
                self.files.push((file.to_owned(), text));
            }
            Err(why) => self.missing.push(Missing {
                file: file.to_owned(),
                why: brief(&why),
            }),
        }
    }

    /// Adds what a source has.
    pub fn extend(&mut self, texts: impl IntoIterator<Item = Text>) {
        for (file, text) in texts {
            match text {
                Ok(text) => self.put(&file, Ok::<_, String>(text)),
                Err(Lack::Missing(why)) => self.put(&file, Err(why)),
                Err(Lack::Absent(why)) => self.absent.push(Missing {
                    file,
                    why: brief(&why),
                }),
            }
        }
    }

    /// Adds a value, as indented JSON.
    pub fn put_json(&mut self, file: &str, value: &impl Serialize) {
        self.put(file, serde_json::to_string_pretty(value));
    }

    /// Number of files.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// What should be there, and could not be collected.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// What this machine does not have.
    pub fn absent(&self) -> &[Missing] {
        &self.absent
    }

    /// Writes a directory, or an archive if the path ends with `.tar.gz`. Only its owner can read
    /// it.
    ///
    /// # Errors
    /// The kernel's, also if the path exists.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_suffix(ARCHIVE) {
            Some(directory) => self.archive(new_file(path)?, directory)?.sync_all(),
            None => self.directory(path),
        }
    }

    /// Writes an archive.
    ///
    /// # Errors
    /// The output's.
    pub fn write_to(&self, output: impl io::Write) -> io::Result<()> {
        self.archive(output, "podwire")?.flush()
    }

    fn directory(&self, path: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(path)?;
        builder.recursive(true);
        for (name, text) in &self.files {
            let file = path.join(name);
            builder.create(file.parent().unwrap_or(path))?;
            new_file(&file)?.write_all(self.redactor.text(text).as_bytes())?;
        }
        Ok(())
    }

    fn archive<W: io::Write>(&self, output: W, directory: &str) -> io::Result<W> {
        let encoder = GzEncoder::new(output, Compression::default());
        let mut archive = tar::Builder::new(encoder);
        for (name, text) in &self.files {
            let text = self.redactor.text(text);
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            archive.append_data(&mut header, format!("{directory}/{name}"), text.as_bytes())?;
        }
        archive.into_inner()?.finish()
    }
}

/// Whether a path names an archive of a kind that is not written.
pub fn is_other_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |suffix: &&str| name.ends_with(*suffix);
    !ends(&ARCHIVE) && OTHER_ARCHIVES.iter().any(ends)
}

fn new_file(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
