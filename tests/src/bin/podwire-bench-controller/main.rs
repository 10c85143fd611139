//! What podwire-controller costs at scale: a real northbound ovsdb-server, the tests' API server
//! with a cluster of the promised size, and the controller as it is shipped, in a process of its
//! own.
//!
//! Prints a table of what was measured beside what is promised (SPECIFICATION.md), and writes it as
//! JSON to the path in the first argument. With `--enforce` a broken promise is a failure.
//!
//! With `scale` first, ovn-northd is measured too ([`scale`]); with `host`, what each node does
//! ([`host`]).

mod cluster;
mod floor;
mod host;
mod process;
mod scale;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cluster::Cluster;
use podwire_tests::Failure;
use process::Controller;
use serde_json::{Value, json};

/// How many pods are created one by one, and how fast.
const CREATED: u32 = 2000;
const PER_SECOND: u32 = 100;

/// What one size costs.
struct Measured {
    /// From the start beside an empty database until every row and every annotation is there.
    from_empty: Duration,
    /// From the start beside a full one until everything was compared, and what was written.
    restart: Duration,
    restart_operations: u64,
    /// The peak of memory at each start, in KiB.
    resident: [u64; 2],
    /// Processor time of the controller at each start.
    start_time: [Duration; 2],
    /// From the object's creation until the request with its annotation, after its row; sorted.
    latencies: Vec<Duration>,
    /// The same of pods for which nothing is computed ([`floor`]).
    floor: Vec<Duration>,
    /// Processor time of the controller for each pod created, in µs.
    each_pod: f64,
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("scale", rest)) = arguments.split_first().map(|(it, rest)| (&**it, rest)) {
        return scale::main(rest);
    }
    if arguments == ["host"] {
        return host::main();
    }
    let enforce = arguments.iter().any(|it| it == "--enforce");
    arguments.retain(|it| it != "--enforce");
    let measured = measure(5, 100, 100).and_then(|small| Ok((small, measure(500, 100, 10_000)?)));
    match measured {
        Ok((small, large)) => {
            let rows = rows(&small, &large);
            let is_kept = print(&rows);
            if let Some(path) = arguments.first()
                && let Err(error) = std::fs::write(path, format!("{:#}", report(&rows)))
            {
                eprintln!("write {path}: {error}");
                return ExitCode::FAILURE;
            }
            match is_kept || !enforce {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("podwire-bench-controller: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(nodes: u32, pods_of_each: u32, services: u32) -> Result<Measured, Failure> {
    let cluster = Cluster::new(nodes, pods_of_each, services)?;
    let size = cluster.size();
    eprintln!("{size}: from empty");
    let began = Instant::now();
    let mut first = Controller::start(&cluster)?;
    first.await_done()?;
    let from_empty = began.elapsed();
    let (resident, start_time) = (first.resident()?, first.processor_time()?);
    eprintln!("{size}: {CREATED} pods, {PER_SECOND} each second");
    let [latencies, floor] = cluster.create(CREATED, Duration::from_secs(1) / PER_SECOND)?;
    let used = first.processor_time()? - start_time;
    first.stop()?;
    eprintln!("{size}: restart");
    let began = Instant::now();
    let mut second = Controller::start(&cluster)?;
    let restart_operations = second.await_done()?;
    let restart = began.elapsed();
    let resident = [resident, second.resident()?];
    let start_time = [start_time, second.processor_time()?];
    second.stop()?;
    Ok(Measured {
        from_empty,
        restart,
        restart_operations,
        resident,
        start_time,
        latencies,
        floor,
        each_pod: used.as_secs_f64() * 1e6 / f64::from(CREATED),
    })
}

/// What was measured, with its bar.
struct Row {
    name: &'static str,
    unit: &'static str,
    measured: f64,
    most: f64,
}

fn rows(small: &Measured, large: &Measured) -> Vec<Row> {
    let row = |name, unit, measured, most| Row {
        name,
        unit,
        measured,
        most,
    };
    let figure = |name, unit, measured| row(name, unit, measured, f64::INFINITY);
    let quantile = |of: &[Duration], percent: usize| {
        let at = (of.len() * percent / 100).min(of.len() - 1);
        of[at].as_secs_f64() * 1e3
    };
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 KiB")]
    let megabytes = |start: usize| large.resident[start] as f64 * 1024.0 / 1e6;
    let processor = |start: usize| large.start_time[start].as_secs_f64();
    vec![
        row("empty to done", "s", large.from_empty.as_secs_f64(), 60.0),
        row(
            "restart beside a full database",
            "s",
            large.restart.as_secs_f64(),
            10.0,
        ),
        #[expect(clippy::cast_precision_loss, reason = "it is zero or thousands")]
        row(
            "operations of the restart",
            "",
            large.restart_operations as f64,
            0.0,
        ),
        row(
            "resident memory, peak of the first start",
            "MB",
            megabytes(0),
            300.0,
        ),
        row(
            "resident memory, peak of the restart",
            "MB",
            megabytes(1),
            300.0,
        ),
        row(
            "pod created to row and annotation, p50",
            "ms",
            quantile(&large.latencies, 50),
            5.0,
        ),
        row("the same, p99", "ms", quantile(&large.latencies, 99), 20.0),
        figure(
            "the same without a controller (the floor), p50",
            "ms",
            quantile(&large.floor, 50),
        ),
        figure("the floor, p99", "ms", quantile(&large.floor, 99)),
        row(
            "processor time per pod at 50,000 pods, by that at 500",
            "",
            large.each_pod / small.each_pod,
            1.3,
        ),
        figure("processor time, empty to done", "s", processor(0)),
        figure("processor time of the restart", "s", processor(1)),
        figure(
            "processor time per pod at 50,000 pods",
            "µs",
            large.each_pod,
        ),
        figure("processor time per pod at 500 pods", "µs", small.each_pod),
        figure("p50 at 500 pods", "ms", quantile(&small.latencies, 50)),
        figure("p99 at 500 pods", "ms", quantile(&small.latencies, 99)),
    ]
}

/// Prints a table; true when every promise is kept.
fn print(rows: &[Row]) -> bool {
    println!("{:55} {:>12} {:>10}", "", "measured", "at most");
    for row in rows {
        let most = match row.most.is_finite() {
            true => format!("{} {}", row.most, row.unit),
            false => String::new(),
        };
        let missed = if row.measured > row.most {
            "  missed"
        } else {
            ""
        };
        let measured = format!("{:.2} {}", row.measured, row.unit);
        println!("{:55} {measured:>12} {most:>10}{missed}", row.name);
    }
    rows.iter().all(|row| row.measured <= row.most)
}

fn report(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let most = row.most.is_finite().then_some(row.most);
        json!({ "name": row.name, "unit": row.unit, "measured": row.measured, "most": most })
    };
    json!({ "rows": rows.iter().map(row).collect::<Vec<_>>() })
}
