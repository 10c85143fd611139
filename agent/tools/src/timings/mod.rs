//! `podwire timings`: where the last operations spent their time, as a waterfall in the terminal,
//! as a page, or as JSON.

mod html;
mod waterfall;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use podwire_cni::spec::Command;
use podwire_daemon::words;
use serde::{Deserialize, Serialize};

use super::paint::width;
use super::time::now_micros;
use super::{CommonArgs, Exit, ToolError, json, show, yaml};
use podwire::inspect::Filter;

/// The flags of `podwire timings`.
#[derive(Debug, Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct TimingsArgs {
    /// Show only this pod, NAMESPACE/NAME or NAME
    pod: Option<String>,
    /// Number of operations, the newest
    #[arg(short = 'l', long, value_name = "NUMBER", default_value_t = 10)]
    last: usize,
    /// Verbs to show: ADD, DEL, CHECK, GC, STATUS
    #[arg(
        long,
        value_name = "VERBS",
        value_delimiter = ',',
        default_value = "ADD,DEL",
        value_parser = PossibleValuesParser::new(Command::ALL.map(Command::as_str)),
        ignore_case = true,
        hide_possible_values = true
    )]
    verbs: Vec<String>,
    /// text, html (one page for a browser), or json or yaml for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    output: Output,
    #[command(flatten)]
    common: CommonArgs,
}

/// The format of timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A waterfall for the terminal
    Text,
    /// One self-contained page
    Html,
    /// As the agent sent it
    Json,
    /// The same as YAML
    Yaml,
}

/// The answer to `GET /v1/traces`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct TraceList {
    operations: Vec<Traced>,
}

/// A finished operation, as serialised from [`podwire::observe::Operation`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Traced {
    verb: String,
    container: String,
    ifname: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    started_unix_micros: u64,
    duration_micros: f64,
    outcome: Ended,
    phases: Vec<Step>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Ended {
    Failed { code: u32, msg: String },
    Ok(String),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    name: String,
    start_micros: f64,
    duration_micros: f64,
    /// The operation failed in this step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
}

words! {
    /// What a step is, for its colour.
    enum Kind {
        /// Waiting: for a turn, an annotation, the switch, OVN.
        Wait = "waiting",
        Kernel = "kernel",
        Database = "OVSDB",
        Agent = "agent",
    }
}

impl Kind {
    fn of(step: &str) -> Self {
        match step.split(':').next().unwrap_or_default() {
            "queue" | "netlink queue" | "annotations" | "ovs-vswitchd" | "ovn-controller" => {
                Self::Wait
            }
            "ovsdb" => Self::Database,
            "make pair" | "link and rows" | "host links" | "pod" => Self::Kernel,
            end if end.starts_with("host end") || end.starts_with("pod ") => Self::Kernel,
            _ => Self::Agent,
        }
    }
}

impl TimingsArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let filter = Filter {
            pod: self.pod.clone(),
            last: Some(self.last),
            verbs: self.verbs.iter().map(|verb| verb.to_uppercase()).collect(),
            ..Filter::default()
        };
        let path = format!("/v1/traces{filter}");
        let list: TraceList = self.common.agent().get(&path).await?;
        if let Some(pod) = self.pod.filter(|_| list.operations.is_empty()) {
            return Err(ToolError::NotFound(format!(
                "the agent has had no operation of a pod {pod} since it started\nlook: podwire \
                 ports"
            )));
        }
        match self.output {
            Output::Json => show(&json(&list)?)?,
            Output::Yaml => show(&yaml(&list)?)?,
            Output::Html => show(&html::page(&list.operations, now_micros()))?,
            Output::Text => {
                let paint = self.common.paint();
                let text = waterfall::text(&list.operations, now_micros(), width(), paint);
                show(&text)?;
            }
        }
        Ok(Exit::Well)
    }
}

/// The steps, ordered by their start.
fn in_order(operation: &Traced) -> Vec<&Step> {
    let mut steps: Vec<&Step> = operation.phases.iter().collect();
    steps.sort_by(|a, b| a.start_micros.total_cmp(&b.start_micros));
    steps
}

#[cfg(test)]
mod tests;
