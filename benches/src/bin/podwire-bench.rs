//! `podwire-bench`: measures, prints a table, and writes report.json and report.html.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use podwire_bench::cells::Extent;
use podwire_bench::report::table;
use podwire_bench::stage::{Order, run};

/// Measure pod-startup latency: podwire, its floor, and what users have today
#[derive(Debug, Parser)]
struct Arguments {
    /// Under two minutes, with fewer samples
    #[arg(long)]
    quick: bool,
    /// Only these cells: one, eight, thirty-two, burst, dual, ovn, throughput, group-commit, profile, ports
    #[arg(long, value_name = "CELL", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these subjects: floor, podwire, bridge, forking; what is compared with an absent one is not measured
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    subjects: Vec<String>,
    /// Where report.json and report.html go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    output: PathBuf,
    /// The static binary that does nothing
    #[arg(long, value_name = "PATH", env = "PODWIRE_EMPTY")]
    empty: PathBuf,
    /// Fail when a promise of SPECIFICATION.md is missed
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let order = Order {
        extent: if arguments.quick {
            Extent::Quick
        } else {
            Extent::Full
        },
        empty: arguments.empty,
        only: arguments.only,
        subjects: arguments.subjects,
    };
    let began = Instant::now();
    let on_terminal = std::io::stderr().is_terminal();
    let mut last_stage = String::new();
    let mut progress = |what: &str| {
        let stage = what.split(", round").next().unwrap_or(what);
        let is_new = stage != last_stage;
        let seconds = began.elapsed().as_secs();
        // A terminal shows each round in its one line; a log only each stage.
        let mut errors = std::io::stderr().lock();
        let _ = match (on_terminal, is_new) {
            (true, true) if !last_stage.is_empty() => {
                write!(errors, "\n\x1b[2K{seconds:>5} s  {what}")
            }
            (true, _) => write!(errors, "\r\x1b[2K{seconds:>5} s  {what}"),
            (false, true) => writeln!(errors, "{seconds:>5} s  {stage}"),
            (false, false) => Ok(()),
        };
        stage.clone_into(&mut last_stage);
    };
    let report = run(&order, &mut progress);
    if on_terminal {
        eprintln!();
    }
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("podwire-bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", table::table(&report));
    if let Err(error) = report.write(&arguments.output) {
        eprintln!("podwire-bench: {error}");
        return ExitCode::FAILURE;
    }
    println!(
        "\n{0}/report.html, {0}/report.json",
        arguments.output.display()
    );
    let missed = report.bars.iter().any(|bar| bar.holds() == Some(false));
    match arguments.enforce && missed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
