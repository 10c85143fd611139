//! The files of a bundle, and how they are written.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use super::redact::Redactor;
use podwire_apiserver::brief;

/// The size limit of a file that is kept until all are there, in bytes; a longer one is cut off.
const LONGEST: usize = 4 << 20;
/// The same of one that is written at once. What computes a file in a large cluster prints it.
const LONGEST_WRITTEN: usize = 64 << 20;
/// What an archive's name ends with.
const ARCHIVE: &str = ".tar.gz";
/// Names that a directory should not have.
const OTHER_ARCHIVES: [&str; 6] = [".tgz", ".tar", ".gz", ".zip", ".xz", ".zst"];

/// The collected files.
#[derive(Debug)]
pub struct Files {
    /// What is removed from their text.
    pub redactor: Redactor,
    to: Sink,
    longest: usize,
    count: usize,
    cut: Vec<String>,
    missing: Vec<Missing>,
    absent: Vec<Missing>,
    /// Why nothing more can be written.
    failed: Option<io::Error>,
}

/// Where the files go.
#[derive(Debug)]
enum Sink {
    /// Kept, until all are there.
    Memory(Vec<(String, String)>),
    Directory(PathBuf),
    Archive(Archive<fs::File>),
}

/// A compressed archive, with all files in one directory.
struct Archive<W: io::Write> {
    builder: tar::Builder<GzEncoder<W>>,
    directory: String,
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
    /// To be kept until all are there.
    pub fn in_memory() -> Self {
        Self::of(Sink::Memory(Vec::new()), LONGEST)
    }

    /// To be written as they come: in a new directory, or in an archive if the path ends with
    /// `.tar.gz`. Only its owner can read it.
    ///
    /// # Errors
    /// The kernel's, also if the path exists.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(Sink::open(path)?, LONGEST_WRITTEN))
    }

    fn of(to: Sink, longest: usize) -> Self {
        Self {
            redactor: Redactor::default(),
            to,
            longest,
            count: 0,
            cut: Vec::new(),
            missing: Vec::new(),
            absent: Vec::new(),
            failed: None,
        }
    }

    /// Adds a file, without its secrets, or records why it is missing.
    pub fn put(&mut self, file: &str, text: Result<String, impl fmt::Display>) {
        match text {
            Ok(mut text) => {
                if text.len() > self.longest {
                    text.truncate(text.floor_char_boundary(self.longest));
                    text.push_str("\n(cut off here)\n");
                    self.cut.push(file.to_owned());
                }
                self.count += 1;
                match &mut self.to {
                    Sink::Memory(files) => files.push((file.to_owned(), text)),
                    to if self.failed.is_none() => {
                        self.failed = to.append(file, &self.redactor.text(&text)).err();
                    }
                    _ => {}
                }
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
        self.count
    }

    /// The size limit of each, in bytes.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Those that were longer, and are cut off there.
    pub fn cut(&self) -> &[String] {
        &self.cut
    }

    /// Why nothing more can be written, if so.
    pub fn failed(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// What should be there, and could not be collected.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// What this machine does not have.
    pub fn absent(&self) -> &[Missing] {
        &self.absent
    }

    /// Writes what was kept, as [`Files::at`].
    ///
    /// # Errors
    /// The kernel's, also if the path exists.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut to = Sink::open(path)?;
        self.kept(|file, text| to.append(file, text))?;
        to.close()
    }

    /// Writes what was kept, as an archive.
    ///
    /// # Errors
    /// The output's.
    pub fn write_to(&self, output: impl io::Write) -> io::Result<()> {
        let mut archive = Archive::new(output, "podwire".to_owned());
        self.kept(|file, text| archive.append(file, text))?;
        archive.close()?.flush()
    }

    /// Ends what was written as it came.
    ///
    /// # Errors
    /// The first one of the kernel's.
    pub fn close(self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.to.close(),
        }
    }

    fn kept(&self, mut put: impl FnMut(&str, &str) -> io::Result<()>) -> io::Result<()> {
        let Sink::Memory(files) = &self.to else {
            return Ok(());
        };
        let mut files = files.iter();
        files.try_for_each(|(file, text)| put(file, &self.redactor.text(text)))
    }
}

impl Sink {
    fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(directory) = name.strip_suffix(ARCHIVE) {
            let archive = Archive::new(new_file(path)?, directory.to_owned());
            return Ok(Self::Archive(archive));
        }
        fs::DirBuilder::new().mode(0o700).create(path)?;
        Ok(Self::Directory(path.to_owned()))
    }

    fn append(&mut self, name: &str, text: &str) -> io::Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Archive(archive) => archive.append(name, text),
            Self::Directory(path) => {
                let file = path.join(name);
                let mut builder = fs::DirBuilder::new();
                let directory = file.parent().unwrap_or(path);
                builder.mode(0o700).recursive(true).create(directory)?;
                new_file(&file)?.write_all(text.as_bytes())
            }
        }
    }

    fn close(self) -> io::Result<()> {
        match self {
            Self::Memory(_) | Self::Directory(_) => Ok(()),
            Self::Archive(archive) => archive.close()?.sync_all(),
        }
    }
}

impl<W: io::Write> Archive<W> {
    fn new(output: W, directory: String) -> Self {
        let builder = tar::Builder::new(GzEncoder::new(output, Compression::default()));
        Self { builder, directory }
    }

    fn append(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        let name = format!("{}/{name}", self.directory);
        self.builder.append_data(&mut header, name, text.as_bytes())
    }

    fn close(self) -> io::Result<W> {
        self.builder.into_inner()?.finish()
    }
}

impl<W: io::Write> fmt::Debug for Archive<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").finish_non_exhaustive()
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
