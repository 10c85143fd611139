//! Completion scripts, generated like the help texts, and the headings of the agent's flags.

use clap::{Args, Command};
use clap_complete::Shell;

use super::{Exit, ToolError, show};

/// The agent's flags by subject, in the order of its help; others are plain options. A name that
/// ends with `_` is a prefix.
const HEADINGS: [(&str, &[&str]); 6] = [
    ("Open vSwitch", &["ovsdb", "ovs_", "bridge"]),
    ("OVN", &["mode", "wait", "ovn_"]),
    (
        "Pods",
        &[
            "subnets",
            "no_gateway",
            "mtu",
            "max_mtu",
            "no_port_security",
            "quiet_pods",
        ],
    ),
    (
        "Annotations",
        &[
            "sources",
            "annotations",
            "pod_dir",
            "kubeconfig",
            "k8s_",
            "node_name",
        ],
    ),
    ("Container runtime", &["cni_", "install_conf"]),
    ("Observation", &["log", "metrics_"]),
];

/// The command line, with the agent's many flags under headings.
pub fn grouped(whole: Command) -> Command {
    whole.mut_subcommand("agent", |agent| {
        agent.mut_args(|flag| match heading(flag.get_id().as_str()) {
            Some(heading) if flag.get_help_heading().is_none() => flag.help_heading(heading),
            _ => flag,
        })
    })
}

fn heading(flag: &str) -> Option<&'static str> {
    let is_of = |name: &&str| *name == flag || (name.ends_with('_') && flag.starts_with(*name));
    let found = HEADINGS.iter().find(|(_, names)| names.iter().any(is_of));
    found.map(|(heading, _)| *heading)
}

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
