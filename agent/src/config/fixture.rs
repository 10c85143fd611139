//! An agent that is inputs things in every way, none of which is this process's own.

use std::fs;
use std::path::PathBuf;

use clap::{Error, Parser};

use super::command::AgentCommand;
use super::environment::Environment;
use super::files::{Place, Places};
use super::load::{Loaded, Loader};
use super::{LoadError, command_line};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    agent: AgentCommand,
}

/// What is inputs.
pub(super) struct Inputs {
    dir: tempfile::TempDir,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    /// Where the files are that were written.
    pub(super) places: Places,
}

impl Inputs {
    /// Nothing.
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| Place {
            path: dir.path().join(name),
            named: false,
        };
        Self {
            places: Places {
                own: place("podwire.toml"),
                ovn_k8s: place("ovn_k8s.conf"),
                microshift: place("ovn.yaml"),
                node: place("node.toml"),
            },
            dir,
            flags: Vec::new(),
            variables: Vec::new(),
        }
    }

    pub(super) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    pub(super) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn own(self, text: &str) -> Self {
        fs::write(&self.places.own.path, text).unwrap();
        self
    }

    pub(super) fn ovn_k8s(self, text: &str) -> Self {
        fs::write(&self.places.ovn_k8s.path, text).unwrap();
        self
    }

    pub(super) fn microshift(self, text: &str) -> Self {
        fs::write(&self.places.microshift.path, text).unwrap();
        self
    }

    pub(super) fn node_role(self, text: &str) -> Self {
        fs::write(&self.places.node.path, text).unwrap();
        self
    }

    pub(super) fn service_account(self, file: &str) -> Self {
        fs::write(self.dir.path().join(file), "").unwrap();
        self
    }

    /// A path below the directory of all this.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(super) fn command(&self) -> Result<AgentCommand, Error> {
        let flags = self.flags.iter().map(Into::into);
        let arguments = ["podwire".into(), "agent".into()].into_iter().chain(flags);
        let mut arguments = command_line(arguments);
        arguments.remove(0);
        let mut command = Cli::try_parse_from(arguments)?.agent;
        let usual = Places::default();
        let here = |given: &mut Place, usual: &Place, here: &Place| {
            if given == usual {
                given.clone_from(here);
            }
        };
        let (given, places) = (&mut command.places, &self.places);
        here(&mut given.own, &usual.own, &places.own);
        here(&mut given.ovn_k8s, &usual.ovn_k8s, &places.ovn_k8s);
        here(&mut given.microshift, &usual.microshift, &places.microshift);
        here(&mut given.node, &usual.node, &places.node);
        Ok(command)
    }

    pub(super) fn loader(&self) -> Loader {
        let command = self.command().unwrap();
        let variables: Vec<(&str, &str)> = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        Loader::new(command, Environment::of(&variables, self.dir.path()))
    }

    pub(super) fn load(&self) -> Result<Loaded, LoadError> {
        self.loader().load()
    }

    /// Why it is refused, without the directory's name, which is another one each time.
    pub(super) fn refusal(&self) -> String {
        let text = self.load().unwrap_err().to_string();
        text.replace(&format!("{}/", self.dir.path().display()), "")
    }
}
