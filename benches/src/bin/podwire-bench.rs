//! `podwire-bench`: measures, prints a table, and writes report.json and report.html.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use podwire_bench::bars::Bar;
use podwire_bench::cells::Extent;
use podwire_bench::error::Error;
use podwire_bench::report::change::changes;
use podwire_bench::report::table;
use podwire_bench::stage::{Order, SwitchSettings, run};
use podwire_bench::verdict::{self, Baseline, Verdict};

/// Measure pod-startup latency: podwire, its floor, and what users have today
#[derive(Debug, Parser)]
struct Arguments {
    /// Under two minutes, with fewer samples
    #[arg(long)]
    quick: bool,
    /// Only these cells: one, eight, thirty-two, burst, dual, bridges, ovn, ovn-eight, throughput,
    /// group-commit, ahead, profile, ports
    #[arg(long, value_name = "CELL", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these subjects: floor, podwire, bridge, forking; what is compared with an absent one is
    /// not measured
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    subjects: Vec<String>,
    /// How many other pods are there in the cell `ports`, in ascending order
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    present: Option<Vec<usize>>,
    /// In the cells `ports`, `ovn` and `ovn-eight`, also measure by perf in which functions
    /// ovs-vswitchd spends its time; it needs symbols and frame pointers
    #[arg(long)]
    functions: bool,
    /// A further flag of the agent's, such as --no-port-security; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    agent_flag: Vec<String>,
    /// A further flag of ovs-vswitchd's, such as --disable-system-route; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    switch_flag: Vec<String>,
    /// A setting of ovs-vswitchd's in other_config, such as max-idle=1000; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    switch_config: Vec<String>,
    /// In the cell `ports`, leave flows in the datapath from round to round, as where pods come
    /// and go continually
    #[arg(long)]
    keep_flows: bool,
    /// Number of runs; the promises are compared with the medians
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32)
        .range(1..))]
    runs: u32,
    /// Where report.json and report.html go; with several runs, into run-1 and so on in it
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    output: PathBuf,
    /// The static binary that does nothing
    #[arg(long, value_name = "PATH", env = "PODWIRE_EMPTY")]
    empty: PathBuf,
    /// Fail when a promise of SPECIFICATION.md is missed
    #[arg(long)]
    enforce: bool,
    /// Fail when a ratio is worse than in this file by more than the noise
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Show podwire's times of an earlier run, from its report.json, beside those of this one
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Write the ratios into this file, to compare later runs with
    #[arg(long, value_name = "FILE")]
    write_baseline: Option<PathBuf>,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("podwire-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and reports; the answer is whether every promise is kept.
fn measure(arguments: &Arguments) -> Result<bool, Error> {
    let extent = match arguments.quick {
        true => Extent::Quick,
        false => Extent::Full,
    };
    let order = Order {
        extent,
        empty: arguments.empty.clone(),
        only: arguments.only.clone(),
        subjects: arguments.subjects.clone(),
        present: match &arguments.present {
            Some(present) => present.clone(),
            None => extent.ports_present().to_vec(),
        },
        functions: arguments.functions,
        agent_flags: arguments.agent_flag.clone(),
        switch: SwitchSettings {
            flags: arguments.switch_flag.clone(),
            config: arguments.switch_config.clone(),
            keeps_flows: arguments.keep_flows,
        },
    };
    let mut bars = Vec::new();
    for number in 1..=arguments.runs {
        let output = match arguments.runs {
            1 => arguments.output.clone(),
            _ => arguments.output.join(format!("run-{number}")),
        };
        bars.push(one_run(&order, &output, arguments.before.as_deref())?);
    }
    let verdicts = verdict::medians(&bars);
    if arguments.runs > 1 {
        println!("\nmedians of {} runs", arguments.runs);
        print!("{}", verdict::table(&verdicts));
    }
    if let Some(file) = &arguments.write_baseline {
        Baseline::of(extent, &verdicts).write(file)?;
    }
    let regressions = match &arguments.baseline {
        Some(file) => Baseline::read(file)?.regressions(&verdicts),
        None => Vec::new(),
    };
    for regression in &regressions {
        println!("REGRESSION  {regression}");
    }
    let is_missed = |it: &Verdict| it.bar.holds() == Some(false);
    let missed = arguments.enforce && verdicts.iter().any(is_missed);
    Ok(regressions.is_empty() && !missed)
}

/// Runs once, prints the table, writes the reports, and returns the promises.
fn one_run(order: &Order, output: &Path, before: Option<&Path>) -> Result<Vec<Bar>, Error> {
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
    let report = run(order, &mut progress);
    if on_terminal {
        eprintln!();
    }
    let mut report = report?;
    if let Some(earlier) = before {
        report.changes = changes(earlier, &report)?;
    }
    print!("{}", table::table(&report));
    report.write(output)?;
    println!("\n{0}/report.html, {0}/report.json", output.display());
    Ok(report.bars)
}
