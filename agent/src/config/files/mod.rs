//! Configuration files: podwire's own, and those that already are on nodes.

mod own;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::error::FileError;
use super::foreign;
use super::layers::Layer;
use super::settings::Settings;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// The format of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// podwire's own TOML.
    Own,
    /// ovn-kubernetes' INI.
    OvnK8s,
    /// MicroShift's YAML.
    Microshift,
}

impl Format {
    /// Checks whether a file with this content would be accepted. Its values are not checked.
    ///
    /// # Errors
    /// [`FileError::Content`].
    pub fn check(self, path: &Path, text: &str) -> Result<(), FileError> {
        self.read(path, text, &Settings::of_agent()).map(drop)
    }

    fn read(
        self,
        path: &Path,
        text: &str,
        settings: &Settings,
    ) -> Result<(Layer, Vec<String>), FileError> {
        let parsed = match self {
            Self::Own => own::parse(text, path, settings),
            Self::OvnK8s => foreign::ovn_k8s(text, path),
            Self::Microshift => foreign::microshift(text, path),
        };
        parsed.map_err(|wrong| FileError::Content {
            path: path.to_owned(),
            line: wrong.line,
            problem: wrong.problem,
        })
    }
}

/// The configuration files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// podwire's own.
    pub own: Place,
    /// ovn-kubernetes'.
    pub ovn_k8s: Place,
    /// MicroShift's.
    pub microshift: Place,
    /// What `podwire node` has found out about this node, in plain mode.
    pub node: Place,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// Whether it was set explicitly: then it must exist.
    pub named: bool,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            own: Place::usual("/etc/podwire/podwire.toml"),
            ovn_k8s: Place::usual("/etc/openvswitch/ovn_k8s.conf"),
            microshift: Place::usual("/etc/microshift/ovn.yaml"),
            node: Place::usual("/run/podwire/node/agent.toml"),
        }
    }
}

impl Place {
    fn usual(path: &str) -> Self {
        Self {
            path: path.into(),
            named: false,
        }
    }
}

/// The content of the files.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// In order of precedence, the highest first.
    pub(super) layers: Vec<Layer>,
    /// The node role's findings, below all others.
    pub(super) node: Layer,
    /// The files that exist.
    pub(super) found: Vec<PathBuf>,
    /// Unused keys, and other notes for the operator.
    pub(super) warnings: Vec<String>,
}

impl Places {
    /// Their paths, in order of precedence.
    pub(super) fn paths(&self) -> [&Path; 4] {
        [&self.own, &self.ovn_k8s, &self.microshift, &self.node].map(|place| place.path.as_path())
    }

    /// The explicitly set ones, with their flags.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let own = ("--config", &self.own);
        let named = [own, ("--config-file", &self.ovn_k8s)].into_iter();
        let named = named.filter(|(_, place)| place.named);
        named.map(|(flag, place)| (flag, place.path.as_path()))
    }

    /// Reads the files that exist.
    ///
    /// # Errors
    /// The first invalid file.
    pub(super) fn read(&self, settings: &Settings) -> Result<Read, FileError> {
        let mut read = Read::default();
        for (place, format) in [
            (&self.own, Format::Own),
            (&self.ovn_k8s, Format::OvnK8s),
            (&self.microshift, Format::Microshift),
            (&self.node, Format::Own),
        ] {
            let path = &place.path;
            // The node role wrote it.
            if settings.of_node && std::ptr::eq(place, &self.node) {
                continue;
            }
            let Some(text) = text(place)? else { continue };
            let (layer, warnings) = format.read(path, &text, settings)?;
            match std::ptr::eq(place, &self.node) {
                true => read.node = layer,
                false => read.layers.push(layer),
            }
            read.found.push(path.clone());
            let named = |warning: String| format!("{}: {warning}", path.display());
            read.warnings.extend(warnings.into_iter().map(named));
        }
        Ok(read)
    }
}

/// A file's text; None if it does not exist and was not set explicitly.
fn text(place: &Place) -> Result<Option<String>, FileError> {
    let Place { path, named } = place;
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_absent(&error) && !named => Ok(None),
        Err(source) => Err(FileError::Read {
            path: path.clone(),
            source,
        }),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

pub(super) fn read(path: &Path) -> io::Result<String> {
    // Opening a pipe would block until it has a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    let file = fs::File::open(path)?;
    if file.take(LARGEST + 1).read_to_string(&mut text)? as u64 > LARGEST {
        return Err(io::Error::other(format!("larger than {LARGEST} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
