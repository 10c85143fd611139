//! `cni-conformance`: checks a CNI plugin against the specification.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use cni_conformance::spec::Version;
use cni_conformance::{Finding, Kind, Outage, Report, Selection, Subject, Trouble, ipam, report};
use nix::sys::signal::{SigSet, Signal};
use serde_json::Value;

const ABOUT: &str = "Each case runs the plugin as a runtime would, in network and mount namespaces \
                     of its own, in every version that the plugin lists. Needs root and iproute2. \
                     The exit status is 0 when no MUST is broken, 1 when one is, 2 when a case \
                     could not be judged or the command line is wrong.";

/// Holds a CNI plugin to the specification, 0.3.0 to 1.1.0
#[derive(Debug, Parser)]
#[command(name = "cni-conformance", version, after_help = ABOUT, max_term_width = 120)]
struct Options {
    /// The plugin's binary
    #[arg(long, value_name = "DIR/NAME", required_unless_present = "list")]
    plugin: Option<PathBuf>,
    /// Its network configuration, or a list that holds one
    #[arg(long, value_name = "FILE", required_unless_present = "list")]
    conf: Option<PathBuf>,
    /// What the plugin is for: it makes an interface, adjusts one of a chain, or manages addresses
    #[arg(long, value_enum, default_value = "interface")]
    kind: PluginKind,
    /// An `ipam` section (JSON) for every case, or whether it delegates although the configuration
    /// has none: `yes`, `no` [default: by the configuration]
    #[arg(long, value_name = "IPAM")]
    ipam: Option<String>,
    /// The form of the report
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Where the report goes, instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only the case of this name, or those that have this part, or are as this pattern with `*`
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// Only this version; may be repeated
    #[arg(long = "spec", value_name = "VERSION")]
    versions: Vec<Version>,
    /// List the cases and what each checks, and run none
    #[arg(long)]
    list: bool,
    /// Run the plugin in this network namespace, and look for leftovers there [default: a private
    /// one for each case, with /run and /var/lib/cni empty]
    #[arg(long, value_name = "PATH")]
    host_netns: Option<PathBuf>,
    /// A shell command that prepares each private host, such as with a link for macvlan
    #[arg(long, value_name = "COMMAND")]
    prepare: Option<String>,
    /// A directory where a file that names a deleted container is a leftover; may be repeated
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,
    /// A shell command that prints what else is held on the host, an item per line
    #[arg(long, value_name = "COMMAND")]
    held: Option<String>,
    /// A shell command that makes the plugin unable to serve an ADD
    #[arg(long, value_name = "COMMAND", requires = "recovery")]
    outage: Option<String>,
    /// A shell command that makes it able again
    #[arg(long, value_name = "COMMAND", requires = "outage")]
    recovery: Option<String>,
    /// CNI_ARGS, for a plugin that can't do without
    #[arg(long, value_name = "K=V;K=V")]
    cni_args: Option<String>,
    /// CNI_PATH [default: the plugin's directory]
    #[arg(long, value_name = "DIR:DIR")]
    cni_path: Option<String>,
    /// How long one exec of the plugin may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PluginKind {
    Interface,
    Chained,
    Ipam,
}

impl From<PluginKind> for Kind {
    fn from(kind: PluginKind) -> Kind {
        match kind {
            PluginKind::Interface => Kind::Interface,
            PluginKind::Chained => Kind::Chained,
            PluginKind::Ipam => Kind::Ipam,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Tap,
    Junit,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let [_, role, script] = arguments.as_slice()
        && role.as_bytes() == ipam::ARGUMENT.as_bytes()
    {
        return ipam::main(Path::new(script));
    }
    let options = Options::parse();
    match run(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cni-conformance: {error}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{step} {}: {source}", .path.display())]
    File {
        step: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("--ipam: {0}")]
    Ipam(String),
    #[error(transparent)]
    Suite(#[from] Trouble),
}

fn run(options: &Options) -> Result<ExitCode, Error> {
    let selection = Selection {
        pattern: options.case.clone(),
        versions: options.versions.clone(),
        ..Selection::default()
    };
    if options.list {
        let cases = cni_conformance::cases().filter(|case| selection.takes(case));
        print(&report::list(cases));
        return Ok(ExitCode::SUCCESS);
    }
    let subject = subject(options)?;
    stop_on_signal(&selection.stop);
    let mut progress = Progress::new();
    let report = cni_conformance::run(&subject, &selection, &mut |case, finding| {
        progress.tell(case.id, finding);
    })?;
    progress.clear();
    let colours = options.output.is_none()
        && std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none();
    let text = match options.format {
        Format::Table => report::table(&report, colours),
        Format::Tap => report::tap(&report),
        Format::Junit => report::junit(&report),
    };
    match &options.output {
        None => print(&text),
        Some(path) => std::fs::write(path, text).map_err(|source| Error::File {
            step: "writing",
            path: path.clone(),
            source,
        })?,
    }
    Ok(exit_code(&report))
}

fn exit_code(report: &Report) -> ExitCode {
    match (report.conforms(), report.is_complete()) {
        (false, _) => ExitCode::from(1),
        (true, false) => ExitCode::from(2),
        (true, true) => ExitCode::SUCCESS,
    }
}

fn subject(options: &Options) -> Result<Subject, Error> {
    let path = options.conf.clone().unwrap_or_default();
    let conf = std::fs::read(&path).map_err(|source| Error::File {
        step: "reading",
        path,
        source,
    })?;
    let plugin = options.plugin.clone().unwrap_or_default();
    let mut subject = Subject::new(plugin, &conf)?;
    subject.kind = options.kind.into();
    match options.ipam.as_deref() {
        None => {}
        Some("yes") => subject.delegates = true,
        Some("no") => subject.delegates = false,
        Some(text) => {
            let section: Value = serde_json::from_str(text)
                .map_err(|error| Error::Ipam(format!("not yes, no or JSON: {error}")))?;
            if !section["type"].is_string() {
                return Err(Error::Ipam("the section has no `type`".into()));
            }
            subject.conf.insert("ipam".into(), section);
            subject.delegates = true;
        }
    }
    if let Some(path) = &options.cni_path {
        subject.cni_path = std::env::split_paths(path).collect();
    }
    let outage = options.outage.clone().zip(options.recovery.clone());
    subject.outage = outage.map(|(begin, end)| Outage { begin, end });
    subject.cni_args.clone_from(&options.cni_args);
    subject.host_netns.clone_from(&options.host_netns);
    subject.prepare.clone_from(&options.prepare);
    subject.state.clone_from(&options.state);
    subject.held.clone_from(&options.held);
    subject.limit = Duration::from_secs(options.timeout);
    Ok(subject)
}

/// The first SIGINT or SIGTERM ends the run after the case that is under way, so that a host that
/// outlives it is left as it was; the second ends the process.
fn stop_on_signal(stop: &Arc<AtomicBool>) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // Blocked before any other thread starts, so that only the one below gets them; std unblocks
    // them again in children. Where blocking fails, the default action ends the process.
    if signals.thread_block().is_ok() {
        let stop = Arc::clone(stop);
        thread::spawn(move || {
            while signals.wait().is_ok() {
                if stop.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
                eprintln!("cni-conformance: ending after this case");
            }
        });
    }
}

/// The case that runs, on a terminal that the report does not go to or over.
struct Progress(bool);

impl Progress {
    fn new() -> Progress {
        Progress(std::io::stderr().is_terminal())
    }

    fn tell(&mut self, case: &str, finding: Option<&Finding>) {
        if self.0 && finding.is_none() {
            eprint!("\r\x1b[K{case}");
        }
    }

    fn clear(&mut self) {
        if self.0 {
            eprint!("\r\x1b[K");
        }
    }
}

fn print(text: &str) {
    // A reader that has gone away (`… | head`) is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
