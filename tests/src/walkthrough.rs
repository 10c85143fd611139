//! Pages that are followed as they are written: their commands, one after the other, on a machine
//! of its own.
//!
//! The machine is a set of namespaces in which a shell may mount over what it likes; it ends with
//! the shell, and every process in it too.

use std::process::Command;
use std::time::Duration;

use crate::binaries::workspace;
use crate::failure::Failure;
use crate::process::finish;
use crate::{agent_binary, controller_binary, plugin_binary};

/// Longer than any page takes; less than the runner of the tests gives one.
const LIMIT: Duration = Duration::from_secs(100);

/// Directories in which what is written ends with the machine, or that are empty on it; $PODWIRE
/// and $PLUGIN are the binaries under test.
const PRELUDE: &str = r#"
set -euo pipefail
ip link set lo up
mount -t tmpfs none /run
mkdir -p /run/lock /run/netns /run/above
mount --make-shared /run
written_to_an_overlay() {
    local directory above
    for directory; do
        above=/run/above/${directory//\//-}
        mkdir "$above" "$above/upper" "$above/work"
        mount -t overlay none -o "lowerdir=$directory,upperdir=$above/upper,workdir=$above/work" "$directory"
    done
}
# As on a machine that never had any of it.
empty() {
    local directory
    for directory; do
        mkdir -p "$directory"
        mount -t tmpfs none "$directory"
    done
}
"#;

/// The commands of the console blocks of a page or of a part of it: the lines that begin with `# `.
pub fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```console\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    blocks
        .flat_map(|block| block.lines().filter_map(|line| line.strip_prefix("# ")))
        .map(str::to_owned)
        .collect()
}

/// A page in the course of being followed.
#[derive(Clone, Debug)]
pub struct Walkthrough {
    script: String,
    environment: Vec<(String, String)>,
}

impl Walkthrough {
    /// On a machine that this piece of bash makes up, with `written_to_an_overlay DIRECTORY…` and
    /// `empty DIRECTORY…` at hand.
    pub fn on(machine: &str) -> Walkthrough {
        Walkthrough {
            script: format!("{PRELUDE}{machine}\n"),
            environment: Vec::new(),
        }
    }

    /// Sets an environment variable of the machine's shell.
    pub fn variable(mut self, name: &str, value: &str) -> Walkthrough {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs a command of the page, and shows it before what it prints.
    pub fn follow(&mut self, command: &str) {
        let quoted = command.replace('\'', r"'\''");
        self.aside(&format!("printf '%s\\n' '# {quoted}'\n{command}"));
    }

    /// Runs what the page leaves to others.
    pub fn aside(&mut self, script: &str) {
        self.script.push_str(script);
        self.script.push('\n');
    }

    /// Goes through all of it, in the directory of a checkout.
    ///
    /// # Errors
    /// [`Failure::Exit`] with all that was printed when one of the commands fails: the rest is not
    /// run then.
    pub fn run(&self) -> Result<Transcript, Failure> {
        let mut shell = Command::new("unshare");
        shell
            .args(["--mount", "--net", "--ipc", "--pid", "--mount-proc"])
            .args(["--fork", "--kill-child", "bash", "-c", &self.script])
            .current_dir(workspace())
            .env("PODWIRE", agent_binary())
            .env("PLUGIN", plugin_binary())
            .env("CONTROLLER", controller_binary())
            // As a person's `make` has it, not one that runs the tests.
            .env_remove("MAKEFLAGS");
        for (name, value) in &self.environment {
            shell.env(name, value);
        }
        let finished = finish(shell, b"", LIMIT)?;
        let stderr = finished.stderr.clone();
        let stdout = finished.success("the page's commands");
        Ok(Transcript { stdout, stderr })
    }
}

/// What was shown and printed, all commands having succeeded.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// Each command, after `# `, and under it what it printed.
    pub stdout: String,
    /// What went to the standard error of any.
    pub stderr: String,
}

impl Transcript {
    /// What the last command that begins so printed; `None` when there is none.
    pub fn printed_by(&self, beginning: &str) -> Option<&str> {
        let (_, after) = self.stdout.rsplit_once(&format!("# {beginning}"))?;
        let own = after.split("\n# ").next()?;
        Some(own.split_once('\n').map_or("", |(_, printed)| printed))
    }
}
